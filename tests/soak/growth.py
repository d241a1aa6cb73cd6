"""What the topology holds when it rests, and whether that has grown."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import redis

from tests.faults.conftest import KINDS, Topology

ALLOWED = 0.05
"""How much more may be held than before, as a share."""
_FEW = 2
"""Or in pieces, for each process: a pool of a few connections may have opened one more."""


@dataclass(frozen=True)
class Holding:
    """What one process holds. ``memory``: bytes that would be free if it ended."""

    kind: str
    memory: int
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Rest:
    """What everything holds at one moment of rest."""

    processes: dict[tuple[int, float], Holding]
    """By number and moment of birth, so that a number that comes again is another process."""
    postgres_connections: int
    redis_connections: int
    redis_keys: int
    """Those that would stay for ever."""

    @classmethod
    def of(cls, topology: Topology) -> "Rest":
        processes = {}
        for kind in KINDS:
            for process in topology.processes(kind):
                held = Holding(
                    kind,
                    process.memory_full_info().uss,
                    process.num_fds(),
                    process.num_threads(),
                )
                processes[process.pid, process.create_time()] = held
        (backends,) = topology.query(
            "SELECT count(*) AS n FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND pid <> pg_backend_pid()"
        )
        with redis.Redis.from_url(topology.redis_url) as admin:
            return cls(
                processes,
                backends["n"],
                admin.info("clients")["connected_clients"] - 1,
                sum(admin.ttl(key) == -1 for key in admin.scan_iter(count=1000)),
            )


@dataclass(frozen=True)
class Line:
    """One line of the report."""

    what: str
    before: float
    after: float
    few: float = 0
    """How much more is too little to tell."""

    @property
    def wrong(self) -> bool:
        return self.after > max(self.before * (1 + ALLOWED), self.before + self.few)


def totals(before: Rest, after: Rest) -> Iterator[Line]:
    """Everything together, whoever died in between."""
    old, new = before.processes.values(), after.processes.values()
    yield from _by_kind("processes", lambda held: 1, old, new)
    yield from _by_kind("descriptors", lambda held: held.descriptors, old, new, _FEW)
    yield from _by_kind("threads", lambda held: held.threads, old, new, _FEW)
    yield Line("connections to Postgres", before.postgres_connections, after.postgres_connections)
    yield Line("connections to Redis", before.redis_connections, after.redis_connections, len(new))
    yield Line("keys in Redis without an end", before.redis_keys, after.redis_keys)


def survivors(before: Rest, after: Rest) -> Iterator[Line]:
    """The memory of those that lived at both moments."""
    both = before.processes.keys() & after.processes.keys()
    old = [before.processes[key] for key in both]
    new = [after.processes[key] for key in both]
    yield from _by_kind("MB", lambda held: held.memory / 2**20, old, new)


def _by_kind(
    what: str,
    figure: Callable[[Holding], float],
    before: Collection[Holding],
    after: Collection[Holding],
    few: float = 0,
) -> Iterator[Line]:
    for kind in KINDS:
        sums = [sum(figure(held) for held in some if held.kind == kind) for some in (before, after)]
        if any(sums):
            number = sum(held.kind == kind for held in after)
            yield Line(f"{what}, {kind}", *sums, few * number)
