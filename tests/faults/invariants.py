"""What holds after every fault, whatever it was.

A trigger notes every change of a run's status from the start of the topology, so that what was
wrong only for a moment, or has been deleted since, is seen too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import redis

from actors.child.event_names import END_EVENT, FIELD_DATA, FIELD_NAME, events_key
from persistence.lifecycle import CLAIM, MOVES

if TYPE_CHECKING:
    from tests.faults.conftest import Topology

LEGAL = {(move.source.value, move.target.value) for move in MOVES}
RETRIES = 3

_WATCH = """
CREATE TABLE moves (
    place bigint GENERATED ALWAYS AS IDENTITY, run_id uuid, thread_id uuid,
    source text, target text, attempt_before int, attempt int, crashes int
);
CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO moves (run_id, thread_id, source, target, attempt_before, attempt, crashes)
    VALUES (NEW.run_id, NEW.thread_id, OLD.status, NEW.status, OLD.attempt, NEW.attempt,
        NEW.crashes);
    RETURN NULL;
END $$;
CREATE TRIGGER note_move AFTER UPDATE ON runs FOR EACH ROW
WHEN (OLD.status IS DISTINCT FROM NEW.status OR OLD.attempt <> NEW.attempt
      OR OLD.finished_at IS DISTINCT FROM NEW.finished_at)
EXECUTE FUNCTION note_move();
"""


def watch(database_url: str) -> None:
    """Begins to note every move of every run."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(_WATCH)


def check(
    topology: Topology, effects: list[dict[str, Any]], eventually: Callable[..., Any]
) -> None:
    """Waits until everything is at rest, and looks at what is left.

    effects: what the nodes of scripts noted (see graphs/faults/script.py).
    """
    topology.await_ready()
    eventually(lambda: not _active(topology), "every run is over", 90)
    eventually(lambda: topology.free_slots() == topology.slots, "every slot is free", 90)
    _check_moves(topology)
    _check_threads(topology)
    _check_effects(topology, effects)
    _check_streams(topology)
    _check_idle(topology, eventually)
    complaints = topology.complaints()
    assert not complaints, complaints


def _active(topology: Topology) -> list[dict[str, Any]]:
    return topology.query("SELECT run_id FROM runs WHERE finished_at IS NULL")


def _check_moves(topology: Topology) -> None:
    """Legal ones only: so a first end is the last, and tokens grow with claims and nothing else."""
    for move in topology.query("SELECT * FROM moves ORDER BY place"):
        assert (move["source"], move["target"]) in LEGAL, move
        claimed = (move["source"], move["target"]) == (CLAIM.source, CLAIM.target)
        assert move["attempt"] == move["attempt_before"] + claimed, move
        # One more than retries allow for those that died in company.
        assert move["crashes"] <= RETRIES + 2, move


def _check_threads(topology: Topology) -> None:
    wrong = topology.query("""
        SELECT thread_id, status FROM threads t WHERE (status = 'busy') <> EXISTS (
            SELECT FROM runs r WHERE r.thread_id = t.thread_id AND r.finished_at IS NULL)""")
    assert not wrong


def _check_effects(topology: Topology, effects: list[dict[str, Any]]) -> None:
    """A step once an attempt at most, and no attempt that was never claimed."""
    times = Counter((effect["run"], effect["node"], effect["attempt"]) for effect in effects)
    assert {key: n for key, n in times.items() if n > 1} == {}
    claims = {
        str(row["run_id"]): row["attempts"]
        for row in topology.query("SELECT run_id, max(attempt) AS attempts FROM moves GROUP BY 1")
    }
    for run_id, node, attempt in times:
        assert 1 <= attempt <= claims[run_id], node


def _check_streams(topology: Topology) -> None:
    """One end a run at most, and it says what the row says."""
    rows = topology.query("SELECT run_id::text, status FROM runs")
    with redis.Redis.from_url(topology.redis_url) as events:
        for row in rows:
            entries: Any = events.xrange(events_key(row["run_id"]))
            ends = [
                json.loads(fields[FIELD_DATA])["status"]
                for _id, fields in entries
                if fields[FIELD_NAME] == END_EVENT.encode()
            ]
            assert ends in ([], [row["status"]]), row


def _check_idle(topology: Topology, eventually: Callable[..., Any]) -> None:
    """Nothing is left of the work: no process, no transaction, no more connections than allowed."""
    environment = topology.environment
    # Of each worker: its graph processes, a spare, the inspector.
    processes = topology.workers * (int(environment["WORKER_COUNT"]) + 2)
    eventually(
        lambda: len(topology.processes("child")) <= processes, "retired graph processes are gone"
    )
    assert not topology.orphans()
    idle = """SELECT count(*) AS n FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND state <> 'idle' AND xact_start < now() - interval '5 seconds'"""
    eventually(lambda: topology.query(idle)[0]["n"] == 0, "no transaction is left open")
