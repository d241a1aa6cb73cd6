"""What was asked for before, so that who asks again gets the same run."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table."""
    op.execute("""
        CREATE TABLE request_keys (
            key bytea CONSTRAINT pk_request_keys PRIMARY KEY,
            request bytea NOT NULL,
            run_id uuid NOT NULL,
            created_at timestamptz NOT NULL DEFAULT clock_timestamp()
        )
    """)
    op.execute("CREATE INDEX ix_request_keys_created_at ON request_keys (created_at)")


def downgrade() -> None:
    """Drops it."""
    op.execute("DROP TABLE request_keys")
