"""Crons, lifetimes of threads, and webhooks."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE threads
    ADD COLUMN ttl_minutes double precision,
    ADD COLUMN ttl_strategy text,
    ADD COLUMN ttl_swept_at timestamptz,
    ADD COLUMN expires_at timestamptz GENERATED ALWAYS AS (
        CASE WHEN ttl_swept_at IS NULL OR ttl_swept_at < updated_at THEN
        ((updated_at AT TIME ZONE 'UTC') + make_interval(secs => ttl_minutes * 60))
        AT TIME ZONE 'UTC' END) STORED,
    ADD CONSTRAINT ck_threads_ttl CHECK (
        (ttl_minutes IS NULL) = (ttl_strategy IS NULL)
        AND ttl_minutes > 0 AND ttl_strategy IN ('delete', 'keep_latest'));
CREATE INDEX ix_threads_expiry ON threads (expires_at) WHERE expires_at IS NOT NULL;

ALTER TABLE runs ADD COLUMN webhook text;

CREATE TABLE crons (
    cron_id uuid CONSTRAINT pk_crons PRIMARY KEY,
    assistant_id uuid NOT NULL CONSTRAINT fk_crons_assistant_id
        REFERENCES assistants (assistant_id) ON DELETE CASCADE,
    thread_id uuid CONSTRAINT fk_crons_thread_id
        REFERENCES threads (thread_id) ON DELETE CASCADE,
    user_id text NOT NULL DEFAULT '',
    schedule text NOT NULL,
    timezone text,
    end_time text,
    ends_at timestamptz,
    payload json NOT NULL,
    request json NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}',
    on_run_completed text,
    enabled boolean NOT NULL DEFAULT true,
    next_run_date timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ck_crons_end CHECK ((end_time IS NULL) = (ends_at IS NULL)),
    CONSTRAINT ck_crons_on_run_completed CHECK (
        (on_run_completed IS NULL) = (thread_id IS NOT NULL)
        AND on_run_completed IN ('delete', 'keep'))
);
CREATE INDEX ix_crons_due ON crons (next_run_date) WHERE enabled;
CREATE INDEX ix_crons_created_at ON crons (created_at, cron_id);
CREATE INDEX ix_crons_thread_id ON crons (thread_id);
CREATE INDEX ix_crons_assistant_id ON crons (assistant_id);

CREATE TABLE webhook_deliveries (
    run_id uuid CONSTRAINT pk_webhook_deliveries PRIMARY KEY,
    url text NOT NULL,
    body json NOT NULL,
    failure jsonb,
    attempts integer NOT NULL DEFAULT 0,
    due_at timestamptz DEFAULT clock_timestamp(),
    error text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ix_webhook_deliveries_due_at ON webhook_deliveries (due_at);
"""

DOWNGRADE = """
DROP TABLE webhook_deliveries, crons;
ALTER TABLE runs DROP COLUMN webhook;
ALTER TABLE threads DROP COLUMN expires_at, DROP COLUMN ttl_swept_at, DROP COLUMN ttl_strategy,
    DROP COLUMN ttl_minutes;
"""


def upgrade() -> None:
    """Adds the tables and columns."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """Takes them away again."""
    op.execute(DOWNGRADE)
