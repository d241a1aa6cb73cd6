"""Indexes for pages of threads in every order, without the threads of stateless runs."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

UPGRADE = """
DROP INDEX ix_threads_updated_at, ix_threads_created_at;
CREATE INDEX ix_threads_updated_at ON threads (updated_at, thread_id) WHERE NOT temporary;
CREATE INDEX ix_threads_created_at ON threads (created_at, thread_id) WHERE NOT temporary;
CREATE INDEX ix_threads_state_updated_at
    ON threads ((coalesce(state_updated_at, created_at)), thread_id) WHERE NOT temporary;
CREATE INDEX ix_threads_status ON threads (status, updated_at, thread_id) WHERE NOT temporary;
"""

DOWNGRADE = """
DROP INDEX ix_threads_updated_at, ix_threads_created_at, ix_threads_state_updated_at,
    ix_threads_status;
CREATE INDEX ix_threads_updated_at ON threads (updated_at, thread_id);
CREATE INDEX ix_threads_created_at ON threads (created_at, thread_id);
"""


def upgrade() -> None:
    """Makes the indexes anew."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """Makes them as they were."""
    op.execute(DOWNGRADE)
