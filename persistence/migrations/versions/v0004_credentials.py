"""What graphs show when they call the API themselves."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column."""
    op.execute("ALTER TABLE runs ADD COLUMN credential uuid")


def downgrade() -> None:
    """Takes it away again."""
    op.execute("ALTER TABLE runs DROP COLUMN credential")
