"""No decision depends on the wall clock of a process's own machine: they differ, and jump.

Leases, lines, delays, crons and lifetimes are the database's (``clock_timestamp()``); how long
something took here is the monotonic clock's.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("actors", "callboard", "gateway", "persistence")
WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}
HARMLESS = {
    "actors/dispatch.py",  # dramatiq finds dead workers by it: the worst is a message too many
    "actors/event_memory.py",  # ids of events in one process, which grow whatever the clock does
    "actors/webhooks.py",  # webhook_sent_at, for the receiver
    "gateway/routes/a2a.py",  # timestamps of what is said
    "persistence/ids.py",  # makes ids sort nicely; nothing is sorted by them alone
    "persistence/run_request.py",  # when the request came, for the graph to read
}


def wall_clocks(path: Path) -> set[str]:
    calls = (
        node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    )
    return {ast.unparse(called) for called in calls} & (WALL_CLOCKS | {"time"})


def test_nobody_decides_by_the_wall_clock() -> None:
    users = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if wall_clocks(path)
    }
    assert users == HARMLESS
