"""How an attempt ends, what it leaves behind, and what its graph was given."""

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from actors.child import run_config, runner
from actors.child.user import User
from tests.actors.golden_runs import Executed, ours
from tests.graphs.runner import shapes


def parts(thread: Executed) -> dict[str, Any]:
    assert thread.result is not None
    return {name: json.loads(part) for name, part in thread.result.parts.items()}


class CountingSaver(InMemorySaver):
    """Counts reads."""

    reads = 0

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        self.reads += 1
        return await super().aget_tuple(config)


class SilentSaver(InMemorySaver):
    """Does not answer once it is told so."""

    is_silent = False

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        if self.is_silent:
            await asyncio.Event().wait()
        return await super().aget_tuple(config)


class TestSucceeded:
    """Values, what is left to do, questions, and the body that waiters get."""

    async def test_a_plain_end_is_read_off_the_stream(self) -> None:
        saver = CountingSaver()
        thread = Executed("steps", saver)
        await thread.run({"input": {"trail": ["in"]}, "stream_mode": ["custom"]})
        assert thread.result == runner.Result(
            "succeeded",
            parts={"values": b'{"trail":["in","a","b","c"]}', "interrupts": b"{}"},
        )
        assert saver.reads == 1  # LangGraph's own, at the start

    async def test_a_question(self) -> None:
        thread = Executed("ask")
        await thread.run({"input": {"trail": ["in"]}})
        assert thread.result is not None
        assert (thread.result.end, thread.result.next) == ("succeeded", ("ask",))
        values = {"trail": ["in", "prepare"]}
        (task, questions), *_ = parts(thread)["interrupts"].items()
        (question,) = questions
        assert parts(thread) == {
            "values": values,
            "interrupts": {task: [{"id": question["id"], "value": {"question": "go on?"}}]},
            "result": {**values, "__interrupt__": [{**question, "response_schema": None}]},
        }

    async def test_several_questions_are_all_there(self) -> None:
        thread = Executed("ask_both")
        await thread.run({"input": {"trail": ["in"]}})
        found = parts(thread)
        assert len(found["interrupts"]) == len(found["result"]["__interrupt__"]) == 2
        assert found["result"]["trail"] == ["in"]

    async def test_questions_in_subgraphs_belong_to_the_roots_task(self) -> None:
        for subgraphs in (False, True):
            thread = Executed("nested")
            await thread.run({"input": {"trail": ["in"]}, "stream_subgraphs": subgraphs})
            _, state = await thread.inspect("state")
            assert list(parts(thread)["interrupts"]) == [state["tasks"][0]["id"]]
            assert parts(thread)["values"] == {"trail": ["in", "root"]}

    @pytest.mark.parametrize(
        ("depth", "as_node", "added"),
        [(1, None, ["new", "leaf"]), (2, "leaf", ["leaf", "new"])],
        ids=["of the child", "of the grandchild"],
    )
    async def test_a_lone_answer_after_a_change_of_a_subgraphs_state(
        self, depth: int, as_node: str | None, added: list[str]
    ) -> None:
        thread = Executed("nested")
        await thread.run({"input": {"trail": ["in"]}})
        place: dict[str, Any] = {}
        for _ in range(depth):
            _, state = await thread.inspect("state", checkpoint=place)
            place = state["tasks"][0]["checkpoint"]
        values = {"trail": ["new"]}
        status, _ = await thread.inspect(
            "update_state", values=values, checkpoint=place, as_node=as_node
        )
        assert status == 200
        await thread.run({"command": {"resume": "yes"}})
        assert thread.result is not None
        assert thread.result.next == ()
        trail = parts(thread)["values"]["trail"]
        assert trail[-3:] == [*added, "answer:yes"]

    async def test_null_is_an_answer(self) -> None:
        thread = Executed("nested")
        await thread.run({"input": {"trail": ["in"]}})
        run_id = str(uuid.uuid4())
        await thread.run({"command": {"resume": None}}, run_id)
        assert thread.result is not None
        assert thread.result.next == ()
        assert parts(thread)["values"]["trail"][-1] == "answer:None"

    async def test_null_is_no_answer_to_several_questions(self) -> None:
        thread = Executed("ask_both")
        await thread.run({"input": {"trail": ["in"]}})
        before = await thread.inspect("state")
        frames = await thread.run({"command": {"resume": None}})
        assert frames[-1][1]["error"] == "AmbiguousAnswer"
        assert await thread.inspect("state") == before

    async def test_null_at_a_breakpoint_goes_on(self) -> None:
        thread = Executed("steps")
        await thread.run({"input": {"trail": ["in"]}, "interrupt_before": "*"})
        assert thread.result is not None
        assert thread.result.next
        await thread.run({"command": {"resume": None}})
        assert thread.result.next == ()

    async def test_a_lone_answer_at_a_subgraphs_checkpoint(self) -> None:
        thread = Executed("nested")
        await thread.run({"input": {"trail": ["in"]}})
        _, state = await thread.inspect("state", subgraphs=True)
        place = state["tasks"][0]["state"]["checkpoint"]
        assert place["checkpoint_ns"]
        body = {"command": {"resume": "yes"}, "config": {"configurable": place}}
        await thread.run(body)
        assert thread.result is not None
        assert thread.result.next == ()
        assert parts(thread)["values"]["trail"][-1] == "answer:yes"

    async def test_a_breakpoint_is_no_question(self) -> None:
        thread = Executed("breakpoint_inside")
        await thread.run({"input": {"trail": ["in"]}})
        assert thread.result is not None
        assert thread.result.next == ("b",)
        assert parts(thread) == {"values": {"trail": ["in", "a"]}, "interrupts": {}}

    async def test_an_output_schema_narrows_the_result_only(self) -> None:
        thread = Executed("narrow")
        await thread.run({"input": {"trail": ["in"]}})
        assert parts(thread) == {
            "values": {"trail": ["in", "noted"], "note": "done"},
            "interrupts": {},
            "result": {"note": "done"},
        }

    async def test_a_graph_that_streams_no_values(self) -> None:
        thread = Executed("silent")
        await thread.run({"input": {}})
        assert parts(thread) == {"values": {"trail": []}, "interrupts": {}}

    async def test_a_function(self) -> None:
        thread = Executed("function")
        await thread.run({"input": 4})
        assert parts(thread) == {"values": 8, "interrupts": {}}

    async def test_a_value_that_lives_for_one_step_is_gone(self) -> None:
        thread = Executed("passing")
        await thread.run({"input": {}})
        assert parts(thread)["values"] == {"kept": "k"}


class TestFailed:
    """The masked error, and the state as far as it was written."""

    async def test_the_state_stays(self) -> None:
        thread = Executed("fails")
        await thread.run({"input": {"note": "own"}})
        assert thread.result is not None
        assert thread.result.end == "failed"
        assert thread.result.error == "_Unmapped"
        assert thread.result.message == "An internal error occurred"
        assert parts(thread)["values"] == {"trail": ["a"], "note": "own"}

    async def test_never_written(self) -> None:
        thread = Executed("steps")
        await thread.run({"input": None})
        assert thread.result is not None
        assert (thread.result.end, parts(thread)) == ("failed", {"interrupts": {}})


class TestCancelled:
    """The graph stops, and what it wrote is told when it can be read in time."""

    @staticmethod
    async def started(thread: Executed, file: Path) -> "asyncio.Task[Any]":
        body = {"input": {"trail": ["in"], "note": str(file)}}
        task = asyncio.create_task(thread.run(body))
        while not file.exists() or "wait" not in file.read_text():
            await asyncio.sleep(0.005)
        return task

    async def test_values_so_far(self, tmp_path: Path) -> None:
        thread = Executed("waits")
        task = await self.started(thread, tmp_path / "marks")
        task.cancel()
        await task
        assert thread.result is not None
        assert (thread.result.end, thread.result.next) == ("cancelled", ("wait",))
        assert parts(thread)["values"]["trail"] == ["in", "a"]

    async def test_a_database_that_does_not_answer_is_not_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runner, "STOPPED_STATE_SECONDS", 0.05)
        saver = SilentSaver()
        thread = Executed("waits", saver)
        task = await self.started(thread, tmp_path / "marks")
        saver.is_silent = True
        task.cancel()
        await task
        assert thread.result is not None
        assert thread.result.end == "cancelled"
        assert parts(thread)["values"]["trail"] == ["in", "a"]  # as last streamed

    async def test_cancelled_twice(self, tmp_path: Path) -> None:
        saver = SilentSaver()
        thread = Executed("waits", saver)
        task = await self.started(thread, tmp_path / "marks")
        saver.is_silent = True
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()
        await task
        assert thread.result is not None
        assert thread.result.end == "cancelled"


class TestStream:
    """What golden transcripts do not show."""

    async def test_a_slow_reader_makes_the_graph_wait(self) -> None:
        gate, names = asyncio.Event(), []

        async def emit(name: str, data: bytes) -> None:
            names.append((name, data))
            if len(names) == 3:
                await gate.wait()

        start = runner.Start(
            *(str(uuid.uuid4()) for _ in range(3)), "steps", 1, ours({"input": {}})
        )
        graph = shapes.steps.copy({"checkpointer": None})
        task = asyncio.create_task(runner.run(start, graph, InMemorySaver(), None, emit))
        done, _ = await asyncio.wait({task}, timeout=0.2)
        assert (done, len(names)) == (set(), 3)
        gate.set()
        await task
        assert len(names) == 4  # metadata and the values after a, b and c

    async def test_tools(self) -> None:
        frames = await Executed("looks").run({"input": {}, "stream_mode": ["tools"]})
        tools = [data for name, data in frames if name == "tools"]
        assert [data["event"] for data in tools] == ["tool-started", "tool-finished"]

    async def test_what_a_tool_returned_has_the_id_of_the_state(self) -> None:
        call = {"name": "look", "args": {"at": "sky"}, "id": "call-1"}
        told = {"type": "ai", "content": "", "tool_calls": [call]}
        thread = Executed("uses_tools")
        frames = await thread.run({"input": {"messages": [told]}, "stream_mode": ["events"]})
        ends = [data["data"] for _, data in frames if data.get("event") == "on_tool_end"]
        stored = parts(thread)["values"]["messages"][-1]
        assert [end["output"] for end in ends] == [stored]

    async def test_a_mode_nobody_knows_is_ignored(self) -> None:
        frames = await Executed("steps").run({"input": {}, "stream_mode": ["lifecycle"]})
        assert [name for name, _ in frames] == ["metadata"]


class TestGiven:
    """Stamps, users and contexts."""

    async def test_stamps(self) -> None:
        thread, run_id = Executed("given_plain"), str(uuid.uuid4())
        for attempt in (1, 2):
            frames = await thread.run(
                {
                    "input": {},
                    "metadata": {"colour": "red"},
                    "config": {"configurable": {"mine": 1, "run_id": "forged"}},
                },
                run_id,
                attempt,
            )
            if attempt == 2:  # it was over: nothing runs twice
                assert [name for name, _ in frames] == ["metadata", "values"]
                continue
            seen = frames[-1][1]["seen"]
            stamps = {
                "run_id": run_id,
                "thread_id": thread.thread_id,
                "graph_id": "given_plain",
                "assistant_id": thread.assistant_id,
            }
            mine = {"mine": 1, "run_attempt": 1, "idempotency_key": run_id}
            assert seen["configurable"].items() >= {**stamps, **mine}.items()
            assert seen["metadata"].items() >= {**stamps, "colour": "red", "run_attempt": 1}.items()

    async def test_the_idempotency_key_is_the_same_in_every_attempt(self) -> None:
        run_id, keys = str(uuid.uuid4()), []
        for attempt in (1, 2):
            frames = await Executed("given_plain").run({"input": {}}, run_id, attempt)
            seen = frames[-1][1]["seen"]["configurable"]
            assert seen["run_attempt"] == attempt
            keys.append(seen["idempotency_key"])
        assert keys[0] == keys[1]

    def test_the_user_by_attribute_and_by_key(self) -> None:
        user = {"identity": "me", "role": "admin"}
        start = runner.Start(
            *(str(uuid.uuid4()) for _ in range(3)),
            "g",
            1,
            {"config": {"configurable": {"langgraph_auth_user": user}}},
        )
        found = run_config.compose(start)["configurable"]["langgraph_auth_user"]
        assert isinstance(found, User)
        assert (found.identity, found["role"]) == ("me", "admin")

    @pytest.mark.parametrize("graph", ["given_model", "given_strict", "given_keyed"])
    @pytest.mark.parametrize(
        ("body", "unknown"),
        [
            ({"context": {"model": "m", "unknown": 1}}, None),
            ({"config": {"configurable": {"model": "m", "unknown": 1}}}, 1),
        ],
        ids=["context", "configurable"],
    )
    async def test_a_context_has_what_its_schema_names(
        self, graph: str, body: dict[str, Any], unknown: Any
    ) -> None:
        frames = await Executed(graph).run({"input": {}, **body})
        assert frames[-1][1] == {"seen": {"context": {"model": "m"}, "unknown": unknown}}

    @pytest.mark.parametrize(
        ("graph", "sent", "seen"),
        [
            ("given_open", {"model": "m", "unknown": 1}, {"model": "m", "unknown": 1}),
            ("given_aliased", {"Model": "m", "deep": 2}, {"model": "m", "depth": 2}),
            ("given_aliased", {"Model": "m", "sizes": [3]}, {"model": "m", "depth": 3}),
        ],
    )
    async def test_a_schema_may_take_other_names_than_its_own(
        self, graph: str, sent: dict[str, Any], seen: dict[str, Any]
    ) -> None:
        frames = await Executed(graph).run({"input": {}, "context": sent})
        assert frames[-1][1]["seen"]["context"] == seen

    async def test_a_context_the_model_refuses_fails_the_run(self) -> None:
        frames = await Executed("given_model").run({"input": {}, "context": {"model": [1]}})
        assert frames[-1][1]["error"] == "ValidationError"

    @pytest.mark.parametrize(
        ("kwargs", "durability"),
        [
            ({}, "async"),
            ({"checkpoint_during": False}, "exit"),
            ({"checkpoint_during": True}, "async"),
            ({"checkpoint_during": False, "durability": "sync"}, "sync"),
        ],
    )
    def test_durability(self, kwargs: dict[str, Any], durability: str) -> None:
        assert run_config.durability(kwargs) == durability

    async def test_exit_keeps_the_last_checkpoint_only(self) -> None:
        thread = Executed("steps")
        await thread.run({"input": {"trail": ["in"]}, "durability": "exit"})
        _, history = await thread.inspect("history", limit=100)
        assert [state["values"]["trail"] for state in history] == [["in", "a", "b", "c"]]
