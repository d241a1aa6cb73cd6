"""Which runs ended first, for those who do not keep them for ever."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the index."""
    op.execute(
        "CREATE INDEX ix_runs_finished_at ON runs (finished_at) WHERE finished_at IS NOT NULL"
    )


def downgrade() -> None:
    """Takes it away again."""
    op.execute("DROP INDEX ix_runs_finished_at")
