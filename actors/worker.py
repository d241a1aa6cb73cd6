"""The worker: threads that take messages, one loop that owns everything else, and no user code.

    main thread        signals, and a watch over the loop
    loop thread        graph processes, leases, claims and settlements, cancels, polls
    dramatiq threads   a consumer per queue, and an actor thread per slot plus one each for
                       inspections and maintenance, which so never wait behind runs

Exit code 0 after an orderly drain; anything else means that it crashed and shall be started again.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from actors.instance import Instance
from actors.settings import WorkerSettings
from actors.signals import Signals
from actors.webhook_policy import WebhookPolicy
from actors.worker_slot import WorkerSlot
from persistence.settings import DatabaseSettings

log = structlog.get_logger(__name__)

_CRASHED = 1
_HUNG = 70
_LOOK_SECONDS = 1.0
_PULSE_SECONDS = 0.5


class Worker:
    """One worker process. ``run`` is its whole life."""

    def __init__(
        self,
        settings: WorkerSettings,
        database_settings: DatabaseSettings,
        project: Mapping[str, Any],
        webhooks: WebhookPolicy = WebhookPolicy(),  # noqa: B008  # frozen
    ) -> None:
        """project: ``root``, ``graphs``, ``dependencies`` and ``env``, as ``Project.to_child``."""
        self._webhooks = webhooks
        self._settings = settings
        self._database_settings = database_settings
        self._project = project
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._over = threading.Event()
        self._signals = 0
        self._code = _CRASHED
        self._felt_at = time.monotonic()

    def run(self) -> int:
        """Works until SIGTERM or SIGINT, drains, and returns the exit code. For the main thread.

        A second signal hands back at once what is still running. Raises WorkerSlotTaken.
        """
        worker_slot = WorkerSlot(self._database_settings.url, self._settings.worker_slot)
        # The thread that starts graph processes must live as long as they: the kernel ends a child
        # whose parent thread ends. So it is this one, and not one of a pool.
        try:
            with Signals(signal.SIGTERM, signal.SIGINT) as signals:
                thread = threading.Thread(
                    target=self._run_loop,
                    args=(worker_slot, signals.wake),
                    name="loop",
                    daemon=True,
                )
                thread.start()
                while not self._over.is_set():
                    for _ in range(signals.wait(_LOOK_SECONDS)):
                        self._asked_to_stop()
                    self._check_pulse()
                thread.join()
        finally:
            worker_slot.release()
        return self._code

    def _run_loop(self, worker_slot: WorkerSlot, tell: Callable[[], None]) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._live(worker_slot))
            self._code = 0
        except Exception:
            log.exception("worker crashed")
        finally:
            self._over.set()
            tell()

    async def _live(self, worker_slot: WorkerSlot) -> None:
        instance = Instance(
            self._settings, self._database_settings, self._project, worker_slot, self._webhooks
        )
        # From the first breath to the last: opening and closing may take long too.
        pulse = asyncio.create_task(self._feel_pulse(), name="pulse")
        try:
            await instance.live(self._stop, self._hurry)
        finally:
            pulse.cancel()

    def _asked_to_stop(self) -> None:
        self._signals += 1
        event = self._stop if self._signals == 1 else self._hurry
        self._loop.call_soon_threadsafe(event.set)

    async def _feel_pulse(self) -> None:
        while True:
            self._felt_at = time.monotonic()
            await asyncio.sleep(_PULSE_SECONDS)

    def _check_pulse(self) -> None:
        """Ends the process, and with it its children, when the loop has hung for a whole lease.

        It looks twice, with a pause: a process that was stopped and continued has an old pulse too.
        """
        limit = self._settings.lease_duration_seconds
        if time.monotonic() - self._felt_at > limit:
            time.sleep(_LOOK_SECONDS * 3)
            if time.monotonic() - self._felt_at > limit:
                log.critical("the loop hangs", seconds=limit)
                os._exit(_HUNG)
