"""How many events a run wrote, so that a reader sees when some are missing."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column. Of runs that are over already nobody knows it."""
    op.execute("ALTER TABLE runs ADD COLUMN events integer")


def downgrade() -> None:
    """Takes it away again."""
    op.execute("ALTER TABLE runs DROP COLUMN events")
