"""The tables. What a column means stands beside it; what rows may exist, the constraints say.

JSON comes in two kinds: ``jsonb`` where we search or merge, ``json`` where the client's order of
keys must survive. LangGraph's own tables (checkpoints, store) are not here: see checkpoints.py.
"""

from collections.abc import Iterable
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSON, JSONB, UUID

from persistence.lifecycle import TERMINAL, CancelAction, MultitaskStrategy, RunStatus, ThreadStatus
from persistence.ttl import TtlStrategy

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

_Time = sa.DateTime(timezone=True)
_EMPTY = sa.text("'{}'")
_NOW = sa.text("clock_timestamp()")


def words(values: Iterable[StrEnum]) -> str:
    """Returns the values as a list of SQL literals, in a stable order."""
    return ", ".join(sorted(f"'{value}'" for value in values))


assistants = sa.Table(
    "assistants",
    metadata,
    sa.Column("assistant_id", UUID, primary_key=True),
    sa.Column("graph_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("description", sa.Text),
    sa.Column("config", JSONB, nullable=False, server_default=_EMPTY),
    sa.Column("context", JSONB, nullable=False, server_default=_EMPTY),
    sa.Column("metadata", JSONB, nullable=False, server_default=_EMPTY),
    sa.Column("version", sa.Integer, nullable=False, server_default=sa.text("1")),
    sa.Column("created_at", _Time, nullable=False, server_default=_NOW),
    sa.Column("updated_at", _Time, nullable=False, server_default=_NOW),
    sa.CheckConstraint("version >= 1", name="version"),
    sa.Index("ix_assistants_created_at", "created_at", "assistant_id"),
    sa.Index("ix_assistants_graph_id", "graph_id"),
)

# Every version an assistant has had, the present one among them.
assistant_versions = sa.Table(
    "assistant_versions",
    metadata,
    sa.Column(
        "assistant_id",
        UUID,
        sa.ForeignKey("assistants.assistant_id", ondelete="CASCADE"),
        primary_key=True,
    ),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("graph_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("description", sa.Text),
    sa.Column("config", JSONB, nullable=False),
    sa.Column("context", JSONB, nullable=False),
    sa.Column("metadata", JSONB, nullable=False),
    sa.Column("created_at", _Time, nullable=False, server_default=_NOW),
)

_LISTED = sa.text("NOT temporary")

threads = sa.Table(
    "threads",
    metadata,
    sa.Column("thread_id", UUID, primary_key=True),
    sa.Column("status", sa.Text, nullable=False, server_default=ThreadStatus.IDLE.value),
    # What the status becomes again when the thread's last active run goes without leaving a trace.
    sa.Column("rest_status", sa.Text, nullable=False, server_default=ThreadStatus.IDLE.value),
    sa.Column("metadata", JSONB, nullable=False, server_default=_EMPTY),
    # What runs were configured with, for show: it reaches no later run.
    sa.Column("config", JSONB, nullable=False, server_default=_EMPTY),
    # The root state's values after the last change of state; null until there is one.
    sa.Column("values", JSONB),
    # {task_id: [{"id","value"}]}; null until the first change of state.
    sa.Column("interrupts", JSONB),
    # {"error","message"} of the last run, if it failed or was cancelled.
    sa.Column("error", JSONB),
    # Made for one stateless run; swept some seconds after that run's end.
    sa.Column("temporary", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("created_at", _Time, nullable=False, server_default=_NOW),
    sa.Column("updated_at", _Time, nullable=False, server_default=_NOW),
    # Moves with the state only; null until the first change of state.
    sa.Column("state_updated_at", _Time),
    # Minutes after the last change of the thread until the strategy is applied to it.
    sa.Column("ttl_minutes", sa.Double),
    sa.Column("ttl_strategy", sa.Text),
    # When the history was last removed by the strategy; it is not again before the next change.
    sa.Column("ttl_swept_at", _Time),
    # In UTC because time zones make timestamptz + interval depend on settings.
    sa.Column(
        "expires_at",
        _Time,
        sa.Computed(
            "CASE WHEN ttl_swept_at IS NULL OR ttl_swept_at < updated_at THEN"
            " ((updated_at AT TIME ZONE 'UTC') + make_interval(secs => ttl_minutes * 60))"
            " AT TIME ZONE 'UTC' END",
            persisted=True,
        ),
    ),
    sa.CheckConstraint(f"status IN ({words(ThreadStatus)})", name="status"),
    sa.CheckConstraint(
        f"rest_status IN ({words(set(ThreadStatus) - {ThreadStatus.BUSY})})", name="rest_status"
    ),
    sa.CheckConstraint(
        "(ttl_minutes IS NULL) = (ttl_strategy IS NULL)"
        f" AND ttl_minutes > 0 AND ttl_strategy IN ({words(TtlStrategy)})",
        name="ttl",
    ),
    # One for each order in which threads are listed. Those of stateless runs never are.
    sa.Index("ix_threads_updated_at", "updated_at", "thread_id", postgresql_where=_LISTED),
    sa.Index("ix_threads_created_at", "created_at", "thread_id", postgresql_where=_LISTED),
    sa.Index(
        "ix_threads_state_updated_at",
        sa.text("coalesce(state_updated_at, created_at)"),
        "thread_id",
        postgresql_where=_LISTED,
    ),
    sa.Index("ix_threads_status", "status", "updated_at", "thread_id", postgresql_where=_LISTED),
    sa.Index(
        "ix_threads_metadata",
        "metadata",
        postgresql_using="gin",
        postgresql_ops={"metadata": "jsonb_path_ops"},
    ),
    sa.Index("ix_threads_temporary", "updated_at", postgresql_where=sa.text("temporary")),
    sa.Index("ix_threads_expiry", "expires_at", postgresql_where=sa.text("expires_at IS NOT NULL")),
)

_PENDING = sa.text(f"status = '{RunStatus.PENDING}'")
_RUNNING = sa.text(f"status = '{RunStatus.RUNNING}'")

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("run_id", UUID, primary_key=True),
    sa.Column(
        "thread_id", UUID, sa.ForeignKey("threads.thread_id", ondelete="CASCADE"), nullable=False
    ),
    # Not a foreign key: a run outlives its assistant, and carries all a worker needs.
    sa.Column("assistant_id", UUID, nullable=False),
    sa.Column("graph_id", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False, server_default=RunStatus.PENDING.value),
    sa.Column("metadata", JSONB, nullable=False, server_default=_EMPTY),
    # The wire's kwargs object: everything a worker needs to execute the run.
    sa.Column("kwargs", JSON, nullable=False),
    sa.Column("multitask_strategy", sa.Text, nullable=False),
    # Place in line on the thread among runs available at the same moment.
    sa.Column("queue_seq", sa.BigInteger, sa.Identity(always=True), nullable=False),
    # The fencing token: grows by one with each claim.
    sa.Column("attempt", sa.Integer, nullable=False, server_default=sa.text("0")),
    # Attempts that ended because a process died: what retries are counted by.
    sa.Column("crashes", sa.Integer, nullable=False, server_default=sa.text("0")),
    # The lease: "host/worker slot/boot id" of its holder, and its end by this database's clock.
    sa.Column("claimed_by", sa.Text),
    sa.Column("lease_expires_at", _Time),
    # What the graph shows when it calls the API itself: drawn anew with each claim.
    sa.Column("credential", UUID),
    # Not before; later than the moment of creation for delayed runs.
    sa.Column("available_at", _Time, nullable=False, server_default=_NOW),
    # The wish to stop. Only a running run can have one: a pending one is ended on the spot.
    sa.Column("cancel_requested_at", _Time),
    sa.Column("cancel_action", sa.Text),
    # Who asked and how, for people; becomes the error's message when the run is stopped.
    sa.Column("cancel_reason", sa.Text),
    # Whether streams of this run may be rejoined with their past.
    sa.Column("resumable", sa.Boolean, nullable=False, server_default=sa.false()),
    # URL that is told of the run's end; may be a credential.
    sa.Column("webhook", sa.Text),
    # What wait and join answer.
    sa.Column("output", JSON),
    # {"error","message"}: how it failed, or by whom it was cancelled.
    sa.Column("error", JSONB),
    # How many events its last attempt wrote; null when nobody knows.
    sa.Column("events", sa.Integer),
    # In the future for a delayed run, as the wire has it.
    sa.Column("created_at", _Time, nullable=False, server_default=_NOW),
    sa.Column("updated_at", _Time, nullable=False, server_default=_NOW),
    sa.Column("started_at", _Time),
    sa.Column("finished_at", _Time),
    sa.CheckConstraint(f"status IN ({words(RunStatus)})", name="status"),
    sa.CheckConstraint(
        f"(status = '{RunStatus.RUNNING}') = (claimed_by IS NOT NULL)"
        f" AND (status = '{RunStatus.RUNNING}') = (lease_expires_at IS NOT NULL)",
        name="running_has_lease",
    ),
    sa.CheckConstraint(
        f"status <> '{RunStatus.RUNNING}' OR (attempt > 0 AND started_at IS NOT NULL)",
        name="running_has_attempt",
    ),
    sa.CheckConstraint(
        f"(status IN ({words(TERMINAL)})) = (finished_at IS NOT NULL)", name="terminal_is_finished"
    ),
    sa.CheckConstraint("attempt >= 0 AND crashes >= 0 AND crashes <= attempt", name="counts"),
    sa.CheckConstraint(
        "(cancel_requested_at IS NULL) = (cancel_action IS NULL)"
        " AND (cancel_reason IS NULL) = (cancel_action IS NULL)"
        f" AND cancel_action IN ({words(CancelAction)})"
        f" AND (status <> '{RunStatus.PENDING}' OR cancel_action IS NULL)",
        name="cancel",
    ),
    sa.CheckConstraint(
        f"multitask_strategy IN ({words(MultitaskStrategy)})", name="multitask_strategy"
    ),
    # At most one run of a thread executes: the last word on it. Holds exactly the running rows, so
    # the search for expired leases reads it too; with an index of its own on lease_expires_at every
    # heartbeat would touch an indexed column (no HOT update).
    sa.Index("uq_runs_running", "thread_id", unique=True, postgresql_where=_RUNNING),
    # Who is first in line on a thread.
    sa.Index("ix_runs_line", "thread_id", "available_at", "queue_seq", postgresql_where=_PENDING),
    # Who waits longest of all.
    sa.Index("ix_runs_pending", "available_at", "queue_seq", postgresql_where=_PENDING),
    # Lists of a thread's runs, newest first.
    sa.Index("ix_runs_thread", "thread_id", "created_at", "run_id"),
    # Who ended first of all.
    sa.Index(
        "ix_runs_finished_at", "finished_at", postgresql_where=sa.text("finished_at IS NOT NULL")
    ),
)

# One row per worker instance, kept by its heartbeat.
instances = sa.Table(
    "instances",
    metadata,
    # "host/worker slot/boot id"
    sa.Column("owner", sa.Text, primary_key=True),
    # "host/worker slot"
    sa.Column("slot_key", sa.Text, nullable=False),
    sa.Column("boot_id", sa.Text, nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("free", sa.Integer, nullable=False),
    sa.Column("heartbeat_at", _Time, nullable=False, server_default=_NOW),
)

# What is to be run again and again.
crons = sa.Table(
    "crons",
    metadata,
    sa.Column("cron_id", UUID, primary_key=True),
    sa.Column(
        "assistant_id",
        UUID,
        sa.ForeignKey("assistants.assistant_id", ondelete="CASCADE"),
        nullable=False,
    ),
    # Null: each firing makes a thread.
    sa.Column("thread_id", UUID, sa.ForeignKey("threads.thread_id", ondelete="CASCADE")),
    sa.Column("user_id", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("schedule", sa.Text, nullable=False),
    # IANA name; null means UTC.
    sa.Column("timezone", sa.Text),
    # As the client wrote it, and what it means.
    sa.Column("end_time", sa.Text),
    sa.Column("ends_at", _Time),
    # What the client sent, for show; and what it means, checked: the firing makes runs of it.
    sa.Column("payload", JSON, nullable=False),
    sa.Column("request", JSON, nullable=False),
    sa.Column("metadata", JSONB, nullable=False, server_default=_EMPTY),
    # What becomes of the threads that firings make; null with a thread.
    sa.Column("on_run_completed", sa.Text),
    sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()),
    # Null when no date comes before the end.
    sa.Column("next_run_date", _Time),
    sa.Column("created_at", _Time, nullable=False, server_default=_NOW),
    sa.Column("updated_at", _Time, nullable=False, server_default=_NOW),
    sa.CheckConstraint("(end_time IS NULL) = (ends_at IS NULL)", name="end"),
    sa.CheckConstraint(
        "(on_run_completed IS NULL) = (thread_id IS NOT NULL)"
        " AND on_run_completed IN ('delete', 'keep')",
        name="on_run_completed",
    ),
    sa.Index("ix_crons_due", "next_run_date", postgresql_where=sa.text("enabled")),
    sa.Index("ix_crons_created_at", "created_at", "cron_id"),
    sa.Index("ix_crons_thread_id", "thread_id"),
    sa.Index("ix_crons_assistant_id", "assistant_id"),
)

# Requests that may come again. Not a foreign key: the run of a stateless one is soon gone, and must
# not be executed again all the same.
request_keys = sa.Table(
    "request_keys",
    metadata,
    sa.Column("key", sa.LargeBinary, primary_key=True),
    sa.Column("request", sa.LargeBinary, nullable=False),
    sa.Column("run_id", UUID, nullable=False),
    sa.Column("created_at", _Time, nullable=False, server_default=_NOW),
    sa.Index("ix_request_keys_created_at", "created_at"),
)

# What is still to be told, or could not be. Written with the end of the run, so that nothing ends
# untold; gone when it was told.
webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    # A run ends once. Not a foreign key: the run may be gone before its webhook is told.
    sa.Column("run_id", UUID, primary_key=True),
    # May be a credential.
    sa.Column("url", sa.Text, nullable=False),
    # What is sent, but for the moment of sending.
    sa.Column("body", JSON, nullable=False),
    # {"error","message"} of a run that failed.
    sa.Column("failure", JSONB),
    # How often it was begun to be sent.
    sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
    # When to send it (again); null when it was given up. Whoever sends it moves this on, so that
    # nobody else does meanwhile.
    sa.Column("due_at", _Time, server_default=_NOW),
    # Why the last attempt failed.
    sa.Column("error", sa.Text),
    sa.Column("created_at", _Time, nullable=False, server_default=_NOW),
    sa.Index("ix_webhook_deliveries_due_at", "due_at"),
)
