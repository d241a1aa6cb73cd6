"""dramatiq inside a worker: its actors, their queues, and the threads that wait for the loop."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import dramatiq
import structlog

from actors.broker import WakingBroker
from actors.dispatch import AWAITED, INSPECT, MAINTENANCE, RUNS
from actors.lanes import Room

log = structlog.get_logger(__name__)

Answer = TypeVar("Answer")

_EXTRA_THREADS = 2
"""One each for inspections and maintenance: as many as may be in work of each, so that neither
waits for the other nor for runs."""
_IDLE_MS = 1000
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Work:
    """What messages lead to; coroutine functions of the loop.

    perform: executes a run for which a slot is reserved. answer: begins to answer a question,
    given its id and the list for the answer. sweep: one round of the reaper.
    """

    perform: Callable[[UUID], Coroutine[Any, Any, None]]
    answer: Callable[[str, str], Coroutine[Any, Any, None]]
    sweep: Callable[[], Coroutine[Any, Any, None]]


class Messages:
    """Takes messages while there is room, and hands them to the loop that made this."""

    def __init__(self, redis_url: str, work: Work, room: Room, slots: int) -> None:
        """room: what a run needs before its message may be taken. slots: runs at once."""
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._room = room
        self._broker = WakingBroker(redis_url)
        self._broker.open_queues(AWAITED, RUNS, limit=slots, room=room)
        self._broker.open_queues(INSPECT, limit=1)
        self._broker.open_queues(MAINTENANCE, limit=1)
        bodies: dict[str, Callable[..., None]] = {
            AWAITED: self._run,
            RUNS: self._run,
            INSPECT: self._answer,
            MAINTENANCE: self._sweep,
        }
        for name, body in bodies.items():
            dramatiq.Actor(
                body, broker=self._broker, actor_name=name, queue_name=name, priority=0, options={}
            )
        self._worker = dramatiq.Worker(
            self._broker, worker_timeout=_IDLE_MS, worker_threads=slots + _EXTRA_THREADS
        )

    def start(self) -> None:
        """Begins to take messages."""
        self._worker.start()

    def wake(self) -> None:
        """A slot became free. May be called from any thread."""
        self._broker.wake()

    @property
    def flow(self) -> bool:
        """Whether messages can arrive now."""
        return self._broker.connected

    @property
    def alive(self) -> bool:
        """Whether all threads live; one that ended would be missed by nobody else."""
        threads = [*self._worker.workers, *self._worker.consumers.values()]
        return all(thread.is_alive() for thread in threads)

    def drain(self) -> None:
        """Takes no more messages; acknowledgements and signs of life go on."""
        self._broker.drain()

    async def stop(self, seconds: float) -> None:
        """Returns when nothing is in work any more, after so many seconds at the latest.

        The threads are told to end and not waited for: asleep, in Redis too, they hold nothing,
        and dramatiq's own way would wait for each to wake up.
        """
        self._broker.drain()
        given_up_at = self._loop.time() + seconds
        while not self._broker.quiet and self._loop.time() < given_up_at:  # noqa: ASYNC110  # threads tell it, not the loop
            await asyncio.sleep(_LOOK_SECONDS)
        for thread in self._worker.workers:
            thread.stop()
        for consumer in self._worker.consumers.values():
            consumer.stop()

    # The actors. Each is a thread that waits; the loop does the work.

    def _run(self, run_id: str) -> None:
        try:
            wanted = UUID(run_id)
        except ValueError:
            self._room.release()
            log.warning("message without a run id", text=run_id[:60])
            return
        self._await(self._work.perform(wanted))

    def _answer(self, ask_id: str, reply_to: str) -> None:
        self._await(self._work.answer(ask_id, reply_to))

    def _sweep(self) -> None:
        self._await(self._work.sweep())
        self._broker.maintain()

    def _await(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
