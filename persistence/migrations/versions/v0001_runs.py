"""Assistants, threads, runs and worker instances."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE assistants (
    assistant_id uuid CONSTRAINT pk_assistants PRIMARY KEY,
    graph_id text NOT NULL,
    name text NOT NULL,
    description text,
    config jsonb NOT NULL DEFAULT '{}',
    context jsonb NOT NULL DEFAULT '{}',
    metadata jsonb NOT NULL DEFAULT '{}',
    version integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ck_assistants_version CHECK (version >= 1)
);
CREATE INDEX ix_assistants_created_at ON assistants (created_at, assistant_id);
CREATE INDEX ix_assistants_graph_id ON assistants (graph_id);

CREATE TABLE assistant_versions (
    assistant_id uuid NOT NULL CONSTRAINT fk_assistant_versions_assistant_id
        REFERENCES assistants (assistant_id) ON DELETE CASCADE,
    version integer NOT NULL,
    graph_id text NOT NULL,
    name text NOT NULL,
    description text,
    config jsonb NOT NULL,
    context jsonb NOT NULL,
    metadata jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_assistant_versions PRIMARY KEY (assistant_id, version)
);

CREATE TABLE threads (
    thread_id uuid CONSTRAINT pk_threads PRIMARY KEY,
    status text NOT NULL DEFAULT 'idle',
    rest_status text NOT NULL DEFAULT 'idle',
    metadata jsonb NOT NULL DEFAULT '{}',
    config jsonb NOT NULL DEFAULT '{}',
    "values" jsonb,
    interrupts jsonb,
    error jsonb,
    temporary boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    state_updated_at timestamptz,
    CONSTRAINT ck_threads_status CHECK (status IN ('busy', 'error', 'idle', 'interrupted')),
    CONSTRAINT ck_threads_rest_status CHECK (rest_status IN ('error', 'idle', 'interrupted'))
);
CREATE INDEX ix_threads_updated_at ON threads (updated_at, thread_id);
CREATE INDEX ix_threads_created_at ON threads (created_at, thread_id);
CREATE INDEX ix_threads_metadata ON threads USING gin (metadata jsonb_path_ops);
CREATE INDEX ix_threads_temporary ON threads (updated_at) WHERE temporary;

CREATE TABLE runs (
    run_id uuid CONSTRAINT pk_runs PRIMARY KEY,
    thread_id uuid NOT NULL CONSTRAINT fk_runs_thread_id
        REFERENCES threads (thread_id) ON DELETE CASCADE,
    assistant_id uuid NOT NULL,
    graph_id text NOT NULL,
    status text NOT NULL DEFAULT 'pending',
    metadata jsonb NOT NULL DEFAULT '{}',
    kwargs json NOT NULL,
    multitask_strategy text NOT NULL,
    queue_seq bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    attempt integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    claimed_by text,
    lease_expires_at timestamptz,
    available_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    cancel_requested_at timestamptz,
    cancel_action text,
    cancel_reason text,
    resumable boolean NOT NULL DEFAULT false,
    output json,
    error jsonb,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at timestamptz,
    finished_at timestamptz,
    CONSTRAINT ck_runs_status
        CHECK (status IN ('error', 'interrupted', 'pending', 'running', 'success', 'timeout')),
    CONSTRAINT ck_runs_running_has_lease
        CHECK ((status = 'running') = (claimed_by IS NOT NULL)
           AND (status = 'running') = (lease_expires_at IS NOT NULL)),
    CONSTRAINT ck_runs_running_has_attempt
        CHECK (status <> 'running' OR (attempt > 0 AND started_at IS NOT NULL)),
    CONSTRAINT ck_runs_terminal_is_finished
        CHECK ((status IN ('error', 'interrupted', 'success', 'timeout'))
            = (finished_at IS NOT NULL)),
    CONSTRAINT ck_runs_counts CHECK (attempt >= 0 AND crashes >= 0 AND crashes <= attempt),
    CONSTRAINT ck_runs_cancel
        CHECK ((cancel_requested_at IS NULL) = (cancel_action IS NULL)
           AND (cancel_reason IS NULL) = (cancel_action IS NULL)
           AND cancel_action IN ('interrupt', 'rollback')
           AND (status <> 'pending' OR cancel_action IS NULL)),
    CONSTRAINT ck_runs_multitask_strategy
        CHECK (multitask_strategy IN ('enqueue', 'interrupt', 'reject', 'rollback'))
);
CREATE UNIQUE INDEX uq_runs_running ON runs (thread_id) WHERE status = 'running';
CREATE INDEX ix_runs_line ON runs (thread_id, available_at, queue_seq) WHERE status = 'pending';
CREATE INDEX ix_runs_pending ON runs (available_at, queue_seq) WHERE status = 'pending';
CREATE INDEX ix_runs_thread ON runs (thread_id, created_at, run_id);

CREATE TABLE instances (
    owner text CONSTRAINT pk_instances PRIMARY KEY,
    slot_key text NOT NULL,
    boot_id text NOT NULL,
    slots integer NOT NULL,
    free integer NOT NULL,
    heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""


def upgrade() -> None:
    """Creates every table."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """Drops every table."""
    op.execute("DROP TABLE instances, runs, threads, assistant_versions, assistants")
