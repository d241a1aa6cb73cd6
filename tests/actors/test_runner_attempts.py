"""Second attempts: what was done is kept, what was not is done, and no command is applied twice."""

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from actors.child.saver import BatchingSaver
from tests.actors.golden_runs import Executed, ours

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def saver(database_url: str) -> AsyncIterator[BatchingSaver]:
    async with AsyncConnectionPool(
        database_url,
        min_size=1,
        open=False,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
    ) as pool:
        saver = BatchingSaver(pool)
        yield saver
        await saver.aclose()


class Killable(Executed):
    """A thread whose runs can be executed in another process, and be killed there."""

    def __init__(self, graph_id: str, saver: BatchingSaver, database_url: str, marks: Path) -> None:
        super().__init__(graph_id, saver)
        self.database_url = database_url
        self.file = marks / "marks"

    @property
    def marks(self) -> list[str]:
        """Which nodes were executed, once for each time."""
        return self.file.read_text().split() if self.file.exists() else []

    async def run_and_kill(
        self, body: dict[str, Any], mark: str, *, stored: str | None = None
    ) -> str:
        """Executes the first attempt until its graph has left the mark; returns the run's id.

        stored: a channel that its command writes. LangGraph lets nodes begin before such a write is
        committed; the attempt is killed only after that.
        """
        run_id = str(uuid.uuid4())
        before = self.marks.count(mark)
        order = {
            "database_url": self.database_url,
            "graph": self.graph_id,
            "start": {
                "run_id": run_id,
                "thread_id": self.thread_id,
                "assistant_id": self.assistant_id,
                "graph_id": self.graph_id,
                "attempt": 1,
                "kwargs": ours(body),
            },
        }
        program = [sys.executable, str(Path(__file__).with_name("attempt_program.py"))]
        process = await asyncio.create_subprocess_exec(
            *program, json.dumps(order), env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        while self.marks.count(mark) == before:
            assert process.returncode is None, "the attempt ended before it could be killed"
            await asyncio.sleep(0.01)
        while stored is not None and stored not in await self.pending():
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        return run_id

    def let_go(self) -> None:
        """From now on nodes that wait for ever do not."""
        self.file.with_name("marks.go").touch()

    async def pending(self) -> list[str]:
        """The channels of the pending writes beside the thread's latest checkpoint."""
        place = {"configurable": {"thread_id": self.thread_id, "checkpoint_ns": ""}}
        head = await self.saver.aget_tuple(place)
        return [channel for _, channel, _ in (head and head.pending_writes) or ()]

    async def state(self) -> dict[str, Any]:
        """The thread's state."""
        _, state = await self.inspect("state", subgraphs=True)
        return state


@pytest.fixture
def killable(saver: BatchingSaver, database_url: str, tmp_path: Path) -> Any:
    def make(graph_id: str) -> Killable:
        return Killable(graph_id, saver, database_url, tmp_path)

    return make


@contextmanager
def refused(database_url: str, channel: str) -> Iterator[None]:
    """Meanwhile writes to a channel are refused in a way that the saver keeps trying."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(_REFUSE.replace("CHANNEL", channel))
        yield
        connection.execute("DROP FUNCTION refuse CASCADE")


_REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'not now' USING ERRCODE = 'serialization_failure';
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON checkpoint_writes FOR EACH ROW
WHEN (NEW.channel = 'CHANNEL') EXECUTE FUNCTION refuse();
"""


def asked(state: dict[str, Any]) -> list[Any]:
    return [interrupt["value"] for interrupt in state["interrupts"]]


class TestKilled:
    """A real second attempt, after SIGKILL in the middle of a node."""

    async def test_a_run_goes_on_from_its_last_checkpoint(self, killable: Any) -> None:
        thread = killable("waits")
        body = {"input": {"trail": ["in"], "note": str(thread.file)}, "durability": "sync"}
        run_id = await thread.run_and_kill(body, "wait")
        thread.let_go()
        frames = await thread.run(body, run_id, attempt=2)
        assert frames[0] == ["metadata", {"run_id": run_id, "attempt": 2}]
        assert thread.marks == ["a", "wait", "wait", "b"]
        assert (await thread.state())["values"]["trail"] == ["in", "a", "wait", "b"]

    async def test_a_later_run_of_the_thread_takes_its_input_once(self, killable: Any) -> None:
        thread = killable("waits")
        thread.let_go()
        await thread.run({"input": {"trail": ["first"], "note": str(thread.file)}})
        thread.file.with_name("marks.go").unlink()
        body = {"input": {"trail": ["second"]}}
        run_id = await thread.run_and_kill(body, "wait")
        thread.let_go()
        await thread.run(body, run_id, attempt=2)
        trail = ["first", "a", "wait", "b", "second", "a", "wait", "b"]
        assert (await thread.state())["values"]["trail"] == trail

    async def test_nothing_stored_means_the_original_input(self, killable: Any) -> None:
        thread = killable("steps")
        await thread.run({"input": {"trail": ["first"]}})
        await thread.run({"input": {"trail": ["second"]}}, attempt=2)
        trail = ["first", "a", "b", "c", "second", "a", "b", "c"]
        assert (await thread.state())["values"]["trail"] == trail

    async def test_exit_durability_begins_anew(self, killable: Any) -> None:
        thread = killable("waits")
        body = {"input": {"trail": ["in"], "note": str(thread.file)}, "durability": "exit"}
        run_id = await thread.run_and_kill(body, "wait")
        thread.let_go()
        await thread.run(body, run_id, attempt=2)
        assert thread.marks == ["a", "wait", "a", "wait", "b"]
        assert (await thread.state())["values"]["trail"] == ["in", "a", "wait", "b"]

    async def test_an_update_and_a_goto_are_applied_once(self, killable: Any) -> None:
        thread = killable("waits")
        thread.let_go()
        await thread.run({"input": {"trail": ["in"], "note": str(thread.file)}})
        thread.file.with_name("marks.go").unlink()
        body = {"command": {"update": {"trail": ["updated"]}, "goto": "wait"}}
        run_id = await thread.run_and_kill(body, "wait", stored="trail")
        thread.let_go()
        await thread.run(body, run_id, attempt=2)
        trail = ["in", "a", "wait", "b", "updated", "wait", "b"]
        assert (await thread.state())["values"]["trail"] == trail

    async def test_an_update_that_was_not_stored_is_not_lost(
        self, killable: Any, database_url: str
    ) -> None:
        thread = killable("waits")
        thread.let_go()
        await thread.run({"input": {"trail": ["in"], "note": str(thread.file)}})
        thread.file.with_name("marks.go").unlink()
        body = {"command": {"update": {"trail": ["updated"]}, "goto": "wait"}}
        with refused(database_url, "trail"):
            run_id = await thread.run_and_kill(body, "wait")
            assert "trail" not in await thread.pending()
        thread.let_go()
        await thread.run(body, run_id, attempt=2)
        trail = ["in", "a", "wait", "b", "updated", "wait", "b"]
        assert (await thread.state())["values"]["trail"] == trail

    async def test_an_update_left_by_a_cancelled_run_is_not_taken_for_ours(
        self, killable: Any
    ) -> None:
        thread = killable("waits")
        thread.let_go()
        await thread.run({"input": {"trail": ["in"], "note": str(thread.file)}})
        thread.file.with_name("marks.go").unlink()
        body = {"command": {"update": {"trail": ["updated"]}, "goto": "wait"}}
        await thread.run_and_kill(body, "wait", stored="trail")  # this run is given up
        thread.let_go()
        await thread.run(body, attempt=2)  # another one, of which nothing is stored
        assert (await thread.state())["values"]["trail"].count("updated") == 2

    @pytest.mark.parametrize("graph", ["asks_in_turn", "asks_inside"])
    async def test_an_answer_does_not_wander_to_a_later_question(
        self, killable: Any, graph: str
    ) -> None:
        thread = killable(graph)
        await thread.run({"input": {"note": str(thread.file)}})
        assert asked(await thread.state()) == ["one?"]
        body = {"command": {"resume": "yes"}}
        run_id = await thread.run_and_kill(body, "wait")
        thread.let_go()
        await thread.run(body, run_id, attempt=2)
        state = await thread.state()
        assert asked(state) == ["two?"]
        await thread.run({"command": {"resume": "sure"}})
        assert (await thread.state())["values"]["trail"] == ["one:yes", "wait", "two:sure"]

    async def test_an_answer_is_given_again_when_nobody_kept_it(self, killable: Any) -> None:
        thread = killable("asks_then_waits")
        await thread.run({"input": {"note": str(thread.file)}})
        body = {"command": {"resume": "yes", "update": {"trail": ["updated"]}}}
        run_id = await thread.run_and_kill(body, "hang")
        thread.let_go()
        await thread.run(body, run_id, attempt=2)
        state = await thread.state()
        assert (state["values"]["trail"], state["next"]) == (["updated", "yes"], [])

    async def test_a_fork_is_made_once(self, killable: Any) -> None:
        thread = killable("waits")
        thread.let_go()
        await thread.run({"input": {"trail": ["in"], "note": str(thread.file)}})
        thread.file.with_name("marks.go").unlink()
        _, history = await thread.inspect("history", limit=100)
        before_a = next(state for state in history if state["next"] == ["a"])
        place = {"configurable": {"checkpoint_id": before_a["checkpoint_id"]}}
        body = {"input": None, "config": place, "durability": "sync"}
        run_id = await thread.run_and_kill(body, "wait")
        thread.let_go()
        await thread.run(body, run_id, attempt=2)
        _, history = await thread.inspect("history", limit=100)
        assert [state["metadata"]["source"] for state in history].count("fork") == 1
        assert history[0]["values"]["trail"] == ["in", "a", "wait", "b"]
        assert thread.marks.count("a") == 2


class TestCutOff:
    """A second attempt after the first was told to end."""

    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    async def test_a_node_whose_edge_was_not_chosen_yet_is_not_done(
        self, killable: Any, durability: str
    ) -> None:
        """LangGraph hands over what the node returned, and takes it for all of a finished task."""
        thread, run_id = killable("chooses_slowly"), str(uuid.uuid4())
        body = {
            "input": {"trail": ["in"], "note": str(thread.file)},
            "durability": durability,
            "stream_mode": ["custom"],
        }
        first = asyncio.create_task(thread.run(body, run_id))
        while "wait" not in thread.marks:
            await asyncio.sleep(0.01)
        first.cancel()
        await first
        assert thread.result.end == "cancelled"
        thread.let_go()
        await thread.run(body, run_id, attempt=2)
        assert (await thread.state())["values"]["trail"] == ["in", "a", "b"]


class TestDiedAfterTheEnd:
    """The graph had come to its end, and nobody was told. The next attempt must not go further."""

    async def test_a_finished_run_is_finished(self, killable: Any) -> None:
        thread = killable("steps")
        run_id = str(uuid.uuid4())
        for attempt in (1, 2):
            await thread.run({"input": {"trail": ["in"]}}, run_id, attempt)
            assert json.loads(thread.result.parts["values"])["trail"] == ["in", "a", "b", "c"]

    async def test_a_question_is_asked_again_with_the_same_id(self, killable: Any) -> None:
        thread = killable("ask")
        run_id, answers = str(uuid.uuid4()), []
        for attempt in (1, 2):
            await thread.run({"input": {}}, run_id, attempt)
            answers.append(thread.result.parts["interrupts"])
        assert answers[0] == answers[1] != b"{}"

    @pytest.mark.parametrize("by_id", [False, True])
    async def test_an_answer_is_not_given_to_the_same_nodes_next_question(
        self, killable: Any, by_id: bool
    ) -> None:
        thread = killable("ask_twice")
        await thread.run({"input": {}})
        question = (await thread.state())["interrupts"][0]["id"]
        body = {"command": {"resume": {question: "A"} if by_id else "A"}}
        run_id = str(uuid.uuid4())
        for attempt in (1, 2, 3):
            await thread.run(body, run_id, attempt)
            assert asked(await thread.state()) == ["second?"]
        await thread.run({"command": {"resume": "B"}})
        assert (await thread.state())["values"]["trail"] == ["A+B"]

    async def test_of_several_answers_only_the_open_ones_are_given(self, killable: Any) -> None:
        thread = killable("ask_both")
        await thread.run({"input": {}})
        left, right = [question["id"] for question in (await thread.state())["interrupts"]]
        await thread.run({"command": {"resume": {left: "L"}}})
        run_id = str(uuid.uuid4())
        body = {"command": {"resume": {right: "R"}}}
        for attempt in (1, 2):
            await thread.run(body, run_id, attempt)
        assert sorted((await thread.state())["values"]["trail"]) == ["answer:L", "answer:R"]

    async def test_an_answer_that_came_before_its_question_is_used_once(
        self, killable: Any
    ) -> None:
        thread = killable("ask_twice")
        await thread.run({"input": {}, "interrupt_before": ["ask"]})
        run_id = str(uuid.uuid4())
        for attempt in (1, 2, 3):
            await thread.run({"command": {"resume": "A"}}, run_id, attempt)
            assert asked(await thread.state()) == ["second?"]

    @pytest.mark.parametrize(
        ("stops", "left", "trail"),
        [
            ({"interrupt_before": ["b"]}, ["b"], ["in", "a"]),
            ({"interrupt_after": ["a"]}, ["b"], ["in", "a"]),
            ({"interrupt_before": "*"}, ["a"], ["in"]),
            ({"interrupt_after": ["c"]}, [], ["in", "a", "b", "c"]),
        ],
    )
    async def test_a_breakpoint_holds(
        self, killable: Any, stops: dict[str, Any], left: list[str], trail: list[str]
    ) -> None:
        thread = killable("steps")
        run_id = str(uuid.uuid4())
        for attempt in (1, 2, 3):
            await thread.run({"input": {"trail": ["in"]}, **stops}, run_id, attempt)
            state = await thread.state()
            assert (state["next"], state["values"]["trail"]) == (left, trail)
            assert thread.result.next == tuple(left)

    async def test_the_breakpoint_that_a_fork_starts_at_does_not_hold_it(
        self, killable: Any
    ) -> None:
        thread = killable("waits")
        body = {"input": {"note": str(thread.file)}, "interrupt_before": ["wait"]}
        await thread.run(body)
        place = {"configurable": {"checkpoint_id": (await thread.state())["checkpoint_id"]}}
        fork = {"input": None, "interrupt_before": ["wait"], "config": place}
        run_id = await thread.run_and_kill(fork, "wait")
        thread.let_go()
        await thread.run(fork, run_id, attempt=2)
        assert (await thread.state())["next"] == []

    async def test_pending_tasks_are_dropped_once(self, killable: Any) -> None:
        thread = killable("ask")
        await thread.run({"input": {}})
        run_id = str(uuid.uuid4())
        for attempt in (1, 2):
            await thread.run({"command": {"goto": "__end__", "update": None}}, run_id, attempt)
            state = await thread.state()
            assert (state["next"], state["interrupts"]) == ([], [])
        _, history = await thread.inspect("history", limit=100)
        assert [state["metadata"]["source"] for state in history].count("update") == 1


class TestRefused:
    """Runs that cannot mean anything fail with a clear text."""

    async def test_an_unknown_checkpoint(self, killable: Any) -> None:
        thread = killable("steps")
        unknown = str(uuid.uuid4())
        place = {"configurable": {"checkpoint_id": unknown}}
        frames = await thread.run({"input": {"trail": ["in"]}, "config": place})
        message = f"Checkpoint {unknown} not found"
        assert frames[-1] == ["error", {"error": "UnknownCheckpoint", "message": message}]

    async def test_an_answer_on_a_thread_that_never_ran(self, killable: Any) -> None:
        frames = await killable("ask").run({"command": {"resume": "yes"}})
        message = "There is nothing to resume: the thread has no state"
        assert frames[-1] == ["error", {"error": "NothingToResume", "message": message}]

    async def test_a_command_that_says_nothing(self, killable: Any) -> None:
        frames = await killable("ask").run({"command": {"goto": []}})
        message = "Received empty Command input"
        assert frames[-1] == ["error", {"error": "EmptyInputError", "message": message}]
