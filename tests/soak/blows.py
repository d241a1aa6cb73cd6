"""What is done to the parts: each blow hurts one of them, and heals what it has to."""

import contextlib
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import psycopg
import redis

from tests.faults.conftest import Topology
from tests.faults.outages.services import Service


class Blows:
    """Strikes at random, by one seed."""

    def __init__(
        self,
        topology: Topology,
        postgres: Service,
        valkey: Service,
        draw: random.Random,
    ) -> None:
        self._topology, self._postgres, self._valkey = topology, postgres, valkey
        self._draw = draw
        self._blows: dict[Callable[[], Any], int] = {
            self.kill_graph_process: 4,
            self.freeze_graph_process: 2,
            self.kill_worker: 3,
            self.stop_worker: 2,
            self.freeze_worker: 2,
            self.kill_gateway: 3,
            self.stop_gateway: 2,
            self.freeze_gateway: 1,
            self.kill_scheduler: 1,
            self.restart_redis: 1,
            self.kill_redis: 1,
            self.freeze_redis: 1,
            self.drop_redis_connections: 2,
            self.restart_postgres: 1,
            self.kill_postgres: 1,
            self.freeze_postgres: 1,
            self.terminate_backends: 2,
        }

    def strike(self) -> str:
        """One blow; returns its name."""
        (blow,) = self._draw.choices(list(self._blows), list(self._blows.values()))
        down = (psutil.NoSuchProcess, psycopg.OperationalError, redis.ConnectionError)
        with contextlib.suppress(*down):  # still, from the blow before
            blow()
        return str(blow.__name__)

    def kill_graph_process(self) -> None:
        self._send("child", signal.SIGKILL)

    def freeze_graph_process(self) -> None:
        self._freeze("child", self._draw.uniform(0.1, 4))

    def kill_worker(self) -> None:
        self._send("worker", signal.SIGKILL)

    def stop_worker(self) -> None:
        self._send("worker", signal.SIGTERM)

    def freeze_worker(self) -> None:
        """For a moment, or for longer than its leases last."""
        lease = float(self._topology.environment["LEASE_DURATION_SECONDS"])
        self._freeze("worker", self._draw.uniform(0.1, lease * 1.8))

    def kill_gateway(self) -> None:
        self._send("gateway", signal.SIGKILL)

    def stop_gateway(self) -> None:
        self._send("gateway", signal.SIGTERM)

    def freeze_gateway(self) -> None:
        self._freeze("gateway", self._draw.uniform(0.1, 6))

    def kill_scheduler(self) -> None:
        self._send("scheduler", signal.SIGKILL)

    def restart_redis(self) -> None:
        self._valkey.restart()

    def kill_redis(self) -> None:
        """It forgets what it has not written in its last second."""
        self._valkey.kill()
        time.sleep(self._draw.uniform(0, 3))
        self._valkey.start()

    def freeze_redis(self) -> None:
        self._valkey.freeze()
        time.sleep(self._draw.uniform(0.1, 4))
        self._valkey.thaw()

    def drop_redis_connections(self) -> None:
        with redis.Redis.from_url(self._topology.redis_url) as admin:
            for kind in self._draw.choice([("normal",), ("pubsub",), ("normal", "pubsub")]):
                admin.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

    def restart_postgres(self) -> None:
        self._postgres.restart()

    def kill_postgres(self) -> None:
        self._postgres.kill()
        self._postgres.start()

    def freeze_postgres(self) -> None:
        family = self._postgres.family()
        for process in family:
            process.suspend()
        try:
            time.sleep(self._draw.uniform(0.1, 3))
        finally:
            for process in family:
                process.resume()

    def terminate_backends(self) -> None:
        self._topology.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )

    def _victim(self, kind: str) -> psutil.Process:
        found = self._topology.processes(kind)
        if not found:
            raise psutil.NoSuchProcess(0)
        return self._draw.choice(found)

    def _send(self, kind: str, number: signal.Signals) -> None:
        self._victim(kind).send_signal(number)

    def _freeze(self, kind: str, seconds: float) -> None:
        victim = self._victim(kind)
        victim.suspend()
        try:
            time.sleep(seconds)
        finally:
            victim.resume()
