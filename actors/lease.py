"""The right to an attempt: taken, kept, lost, and given up with the outcome.

One heartbeat prolongs all leases of this worker. It never waits for anything a graph does, nor for
whoever holds the rows of one run. What the database does not confirm is lost and stopped; and if
the database is away for too long, runs are stopped before their leases run out, since by then
another worker may own them.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

import structlog

from actors import left_state
from actors.batch import Batch
from actors.ending import Ending, of_released, of_settled
from actors.executor import Executor
from actors.outcome import Crashed, HandedBack, LeaseLost, Outcome, settlement
from actors.settings import WorkerSettings
from persistence import runs
from persistence.engine import Database
from persistence.errors import Overtaken, Unavailable
from persistence.runs import ClaimedRun, Held, Released, Settled, Settlement

log = structlog.get_logger(__name__)

Answer = TypeVar("Answer")
Key = tuple[UUID, int]

_RETRY_SECONDS = 2.0
_GUARD_SECONDS = 0.5
_DEAF_INTERVAL_SECONDS = 2.0
"""Pause between heartbeats while the cancel channel is down: they carry the wishes then."""


@dataclass(slots=True)
class _Lease:
    """renewed_at: when the statement that prolonged it was sent, by this machine's clock.

    lost: another owner has it. overdue: nobody confirmed it in time, so it was stopped.
    settling: the attempt has ended; there is nothing to stop any more.
    """

    renewed_at: float
    lost: bool = False
    overdue: bool = False
    settling: bool = False


class Leases:
    """All leases of this worker. Belongs to one event loop."""

    def __init__(
        self, db: Database, executor: Executor, owner: str, settings: WorkerSettings
    ) -> None:
        """owner: ``host/worker slot/boot id``."""
        self._db = db
        self._executor = executor
        self._owner = owner
        self._settings = settings
        self._held: dict[Key, _Lease] = {}
        self._look = asyncio.Event()
        self._claims: Batch[UUID, ClaimedRun | None] = Batch(self._claim)
        self._settlements: Batch[Settlement, Settled] = Batch(self._settle)
        self._returns: Batch[Key, Released | None] = Batch(self._hand_back)
        self.deaf = False
        """Set while wishes to cancel can only be seen by looking."""

    async def claim(self, run_id: UUID) -> ClaimedRun | None:
        """Takes the run if it may start now; None when it may not. Raises Unavailable."""
        sent = time.monotonic()
        claimed = await self._claims.submit(run_id)
        if claimed is not None:
            self._held[claimed.run_id, claimed.attempt] = _Lease(sent)
        return claimed

    async def conclude(self, claimed: ClaimedRun, outcome: Outcome) -> Ending | None:
        """Writes how the attempt ended and gives up its lease.

        Waits for a database that is away: the outcome is not lost, and until it is written the
        lease is prolonged. None when the lease is lost: then nothing was written.
        """
        key = (claimed.run_id, claimed.attempt)
        lease = self._held[key]
        lease.settling = True
        try:
            if lease.lost:
                return None
            return await self._persist(lambda: self._write(claimed, outcome))
        finally:
            del self._held[key]

    def holds(self, run_id: UUID) -> bool:
        """Whether an attempt of the run is ours."""
        return any(held == run_id for held, _ in self._held)

    def look(self) -> None:
        """Sends a heartbeat now: it brings the wishes to cancel."""
        self._look.set()

    async def keep(self) -> None:
        """Prolongs the leases until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat_on(), name="heartbeat")
            group.create_task(self._guard(), name="lease guard")

    async def _beat_on(self) -> None:
        while True:
            self._look.clear()
            is_done = await self._beat()
            pause = self._settings.heartbeat_interval_seconds
            if not is_done or self.deaf:
                pause = min(pause, _DEAF_INTERVAL_SECONDS)
            try:
                async with asyncio.timeout(pause):
                    await self._look.wait()
            except TimeoutError:
                continue

    async def _beat(self) -> bool:
        """One heartbeat; False when it did not prolong all leases, and another shall come soon."""
        named = [key for key, lease in self._held.items() if not lease.lost]
        sent = time.monotonic()
        try:
            held = await runs.heartbeat(
                self._db,
                self._owner,
                self._executor.slots,
                self._executor.free,
                named,
                self._settings.lease_duration_seconds,
            )
        except Unavailable as error:
            log.warning("heartbeat failed", error=str(error), runs=len(named))
            return False
        self._heard(sent, named, {(one.run_id, one.attempt): one for one in held})
        return all(one.renewed for one in held)

    def _heard(self, sent: float, named: list[Key], held: dict[Key, Held]) -> None:
        for key in named:
            lease = self._held.get(key)
            if lease is None:
                continue
            if key in held:
                if held[key].renewed:
                    lease.renewed_at = sent
                action = held[key].cancel_action
                if action is not None:
                    self._executor.cancel(key[0], action)
            elif not lease.settling:
                log.warning("lease lost", run_id=str(key[0]), attempt=key[1])
                lease.lost = True
                self._executor.revoke(*key)

    async def _guard(self) -> None:
        """Stops runs whose lease nobody confirmed, while it still is a lease."""
        while True:
            await asyncio.sleep(_GUARD_SECONDS)
            now, trusted = time.monotonic(), self._settings.trusted_seconds
            for key, lease in list(self._held.items()):
                overdue = now - lease.renewed_at > trusted
                if overdue and not (lease.overdue or lease.lost or lease.settling):
                    log.error("lease could not be renewed", run_id=str(key[0]), attempt=key[1])
                    lease.overdue = True
                    self._executor.revoke(*key)

    async def _write(self, claimed: ClaimedRun, outcome: Outcome) -> Ending | None:
        key = (claimed.run_id, claimed.attempt)
        match outcome:
            case LeaseLost() | HandedBack():
                # Of a lease that was only overdue the row may still be ours to return.
                return await self._released(await self._returns.submit(key))
            case Crashed(reason, alone):
                # Whoever died in company may be innocent, and gets a last chance: alone.
                retries = self._settings.bg_job_max_retries + (not alone)
                return await self._released(await runs.crash(self._db, *key, reason, retries))
            case _:
                settled = await self._settlements.submit(settlement(outcome, claimed))
                return of_settled(settled, claimed.attempt, outcome.ended.events)

    async def _released(self, released: Released | None) -> Ending | None:
        if released is None:
            return None
        await left_state.show(self._db, self._executor.inspect, released)
        return of_released(released)

    async def _persist(self, write: Callable[[], Awaitable[Answer]]) -> Answer:
        while True:
            try:
                return await write()
            except Unavailable as error:
                if not isinstance(error, Overtaken):
                    log.warning("outcome cannot be written yet", error=str(error))
                await asyncio.sleep(_RETRY_SECONDS * random.uniform(0.2, 1))  # noqa: S311  # jitter

    async def _claim(self, run_ids: list[UUID]) -> list[ClaimedRun | Exception | None]:
        lease = self._settings.lease_duration_seconds
        wanted = list(dict.fromkeys(run_ids))
        claimed = await runs.claim(self._db, wanted, self._owner, lease)
        ours = {one.run_id: one for one in claimed}
        return [ours.pop(run_id, None) for run_id in run_ids]

    async def _settle(self, settlements: list[Settlement]) -> list[Settled | Exception]:
        settled = await runs.settle(self._db, settlements)
        return [
            Overtaken("others hold the rows of the run") if one.busy else one for one in settled
        ]

    async def _hand_back(self, keys: list[Key]) -> list[Released | Exception | None]:
        try:
            released = await runs.hand_back(self._db, self._owner, keys)
        except Overtaken as error:
            if len(keys) == 1:
                return [error]
            return [(await self._hand_back([key]))[0] for key in keys]
        found = {(one.run_id, one.attempt): one for one in released}
        return [found.get(key) for key in keys]
