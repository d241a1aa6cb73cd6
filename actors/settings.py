"""How workers and schedulers work: one frozen value, read once at start and passed in."""

import os
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _none_if_empty(value: object) -> object:
    return None if isinstance(value, str) and not value.strip() else value


class WorkerSettings(BaseSettings):
    """Environment: the field's name in capitals. Times are in seconds."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    redis_url: Annotated[str | None, BeforeValidator(_none_if_empty)] = Field(None, repr=False)
    """Where messages and events go; without it workers poll Postgres only."""
    callboard_url: Annotated[str | None, BeforeValidator(_none_if_empty)] = Field(
        None, pattern="^https?://"
    )
    """Where graphs reach the API with a client that is given no URL; default: on this machine, at
    HOST and PORT."""
    worker_count: int = Field(default_factory=_cores, ge=1, le=256)
    """Graph processes of one worker."""
    n_jobs_per_worker: int = Field(10, ge=1, le=1000)
    """Runs that one graph process executes at once."""
    worker_slot: Annotated[str | None, BeforeValidator(_none_if_empty)] = None
    """Names this worker among those of its host; default: the lowest number that is free."""

    bg_job_timeout_secs: float = Field(3600.0, gt=0)
    """A run that takes longer is stopped and ends as ``timeout``."""
    bg_job_max_retries: int = Field(3, ge=0, le=100)
    """How often a run is started again after its graph process died."""
    cancel_grace_seconds: float = Field(5.0, gt=0, le=300)
    """How long a run that is told to stop may take before its row is settled without it."""
    retire_timeout_seconds: float = Field(30.0, ge=0)
    """How long the neighbours of a run that would not stop may go on in the same process."""
    worker_drain_timeout: float = Field(30.0, ge=0)
    """After SIGTERM: how long runs may go on before they are handed back."""

    lease_duration_seconds: float = Field(30.0, ge=1)
    """How long a run stays with a worker that gives no sign of life."""
    heartbeat_interval_seconds: float = Field(10.0, gt=0)
    """Pause between two renewals of all leases of a worker."""
    reaper_interval_seconds: float = Field(15.0, gt=0)
    """Pause between two sweeps."""
    stuck_pending_threshold_seconds: float = Field(120.0, gt=0)
    """A run that waits longer although it could start gets a new message."""
    postgres_poll_interval_seconds: float = Field(5.0, gt=0)
    """Pause between two looks into Postgres for runs whose message never came."""

    executor_max_runs: Annotated[int | None, BeforeValidator(_none_if_empty)] = Field(None, ge=1)
    """A graph process that started so many runs is replaced when they have ended."""
    executor_max_rss_mb: Annotated[int | None, BeforeValidator(_none_if_empty)] = Field(None, ge=64)
    """A graph process above this is replaced; one at half as much again is killed."""
    executor_pool_max: int = Field(4, ge=2, le=100)
    """Postgres connections that each graph process opens at most."""
    executor_spares: int = Field(1, ge=0, le=16)
    """Graph processes kept loaded and idle, to take the place of one that dies."""

    run_ttl_seconds: Annotated[float | None, BeforeValidator(_none_if_empty)] = Field(None, gt=0)
    """How long a run's row is kept after its end. The thread keeps its state and history."""
    stream_maxlen: int = Field(10_000, ge=10)
    """Events that are kept of one run; for 10 s, and up to 32 MB, more of them."""
    stream_max_bytes: int = Field(64 * 2**20, ge=2**20)
    """Bytes of events that are kept of an attempt: the oldest go first, however few they are."""
    stream_ttl_seconds: int = Field(3600, ge=1)
    """How long the events of a run are kept after its end."""
    event_buffer_bytes: int = Field(32 * 2**20, ge=64 * 1024)
    """Events that a graph process holds while Redis is slow or away, in bytes."""

    @model_validator(mode="after")
    def _combinations(self) -> "WorkerSettings":
        beat, lease = self.heartbeat_interval_seconds, self.lease_duration_seconds
        if beat * 2 >= lease:
            raise ValueError(
                f"HEARTBEAT_INTERVAL_SECONDS is {beat:g}, expected less than half of"
                f" LEASE_DURATION_SECONDS ({lease:g}): one lost heartbeat must not cost the lease"
            )
        if self.redis_url is not None and "://" not in self.redis_url:
            raise ValueError("REDIS_URL has no scheme, expected redis://, rediss:// or unix://")
        return self

    @property
    def slots(self) -> int:
        """Runs that one worker executes at once."""
        return self.worker_count * self.n_jobs_per_worker

    @property
    def trusted_seconds(self) -> float:
        """How long a lease is relied on after its renewal: a little shorter than it lasts."""
        return self.lease_duration_seconds * 0.9

    @property
    def silence_seconds(self) -> float:
        """How long a worker may say nothing before its graph processes end themselves.

        The last renewal may be a heartbeat older than the last word. So nothing of a worker that
        froze runs any more when its leases run out and another takes over.
        """
        return self.trusted_seconds - self.heartbeat_interval_seconds
