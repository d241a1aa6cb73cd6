"""The inspector's answers, in the wire's words."""

import asyncio
import json
import uuid
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from actors.child import introspect
from actors.child.loader import Graphs
from actors.child.protocol import PROJECT_FAILED
from tests.actors.golden_runs import Executed


@pytest.fixture
def thread() -> Any:
    return Executed


class TestState:
    """Reading."""

    async def test_a_thread_that_never_ran(self, thread: Any) -> None:
        empty = {
            "values": {},
            "next": [],
            "tasks": [],
            "metadata": None,
            "created_at": None,
            "checkpoint": None,
            "parent_checkpoint": None,
            "interrupts": [],
            "checkpoint_id": None,
            "parent_checkpoint_id": None,
        }
        assert await thread("steps").inspect("state") == (200, empty)
        assert await thread("steps").inspect("state", graph_id=None) == (200, empty)
        assert await thread("steps").inspect("history", graph_id=None) == (200, [])

    async def test_at_a_checkpoint_by_id_and_by_place(self, thread: Any) -> None:
        steps = thread("steps")
        await steps.run({"input": {"trail": ["in"]}})
        _, history = await steps.inspect("history", limit=100)
        for state in history:
            at_id = await steps.inspect("state", checkpoint_id=state["checkpoint_id"])
            at_place = await steps.inspect("state", checkpoint=state["checkpoint"])
            assert at_id == at_place == (200, state)

    async def test_an_empty_place_is_the_latest(self, thread: Any) -> None:
        steps = thread("steps")
        await steps.run({"input": {"trail": ["in"]}})
        assert await steps.inspect("state", checkpoint={}) == await steps.inspect("state")

    async def test_an_unknown_checkpoint_is_not_an_empty_state(self, thread: Any) -> None:
        steps = thread("steps")
        await steps.run({"input": {"trail": ["in"]}})
        unknown = str(uuid.uuid4())
        detail = {"detail": f"Checkpoint {unknown} not found"}
        assert await steps.inspect("state", checkpoint_id=unknown) == (404, detail)

    async def test_a_subgraphs_state_and_history_by_its_place(self, thread: Any) -> None:
        nested = thread("nested")
        await nested.run({"input": {"trail": ["in"]}})
        _, state = await nested.inspect("state")
        place = state["tasks"][0]["checkpoint"]
        assert state["tasks"][0]["state"] is None
        _, inside = await nested.inspect("state", checkpoint=place)
        assert (inside["values"]["trail"], inside["next"]) == (
            ["in", "root", "twig"],
            ["grandchild"],
        )
        assert set(inside["checkpoint"]["checkpoint_map"]) == {"", place["checkpoint_ns"]}
        _, again = await nested.inspect("state", checkpoint=inside["checkpoint"])
        assert again["values"] == inside["values"]
        _, history = await nested.inspect("history", checkpoint=place, limit=100)
        assert [state["metadata"]["step"] for state in history] == [1, 0, -1]

    async def test_history_limits(self, thread: Any) -> None:
        steps = thread("steps")
        await steps.run({"input": {"trail": ["in"]}})
        _, history = await steps.inspect("history", limit=100)
        ids = [state["checkpoint_id"] for state in history]
        assert len(ids) == 5
        for arguments, expected in (
            ({}, ids[:1]),
            ({"limit": 0}, []),
            ({"limit": 2}, ids[:2]),
            ({"limit": 100, "before": ids[2]}, ids[3:]),
            ({"limit": 100, "metadata": {"source": "input"}}, ids[4:]),
            ({"limit": 100, "metadata": {"step": 1}}, [ids[2]]),
        ):
            _, found = await steps.inspect("history", **arguments)
            assert [state["checkpoint_id"] for state in found] == expected

    async def test_errors_of_tasks_are_text_and_not_masked(self, thread: Any) -> None:
        failed = thread("fails")
        await failed.run({"input": {"note": "own"}})
        _, state = await failed.inspect("state")
        assert state["tasks"][0]["error"] == "_Unmapped('secret text')"

    async def test_values(self, thread: Any) -> None:
        ask = thread("ask")
        nothing = {"values": None, "next": [], "interrupts": {}}
        assert await ask.inspect("values") == (200, nothing)
        await ask.run({"input": {"trail": ["in"]}})
        _, state = await ask.inspect("state")
        (task,) = state["tasks"]
        interrupts = {
            task["id"]: [{"id": task["interrupts"][0]["id"], "value": {"question": "go on?"}}]
        }
        expected = {"values": state["values"], "next": ["ask"], "interrupts": interrupts}
        assert await ask.inspect("values") == (200, expected)


class TestUpdate:
    """Writing."""

    async def test_as_the_last_writer(self, thread: Any) -> None:
        steps = thread("steps")
        await steps.run({"input": {"trail": ["in"]}, "interrupt_before": ["b"]})
        status, answer = await steps.inspect("update_state", values={"trail": ["new"]})
        _, state = await steps.inspect("state")
        place = {
            key: state["checkpoint"][key] for key in ("thread_id", "checkpoint_ns", "checkpoint_id")
        }
        assert (status, answer) == (
            200,
            {"checkpoint": place, "configurable": place, "checkpoint_id": place["checkpoint_id"]},
        )
        assert (state["values"]["trail"], state["next"]) == (["in", "a", "new"], ["b"])
        assert state["metadata"] == {
            "graph_id": "steps",
            "thread_id": steps.thread_id,
            "source": "update",
            "step": 2,
            "parents": {},
        }

    async def test_as_a_node_and_before_the_first_run(self, thread: Any) -> None:
        steps = thread("steps")
        status, _ = await steps.inspect("update_state", values={"trail": ["x"]}, as_node="a")
        _, state = await steps.inspect("state")
        assert (status, state["values"]["trail"], state["next"]) == (200, ["x"], ["b"])

    async def test_at_a_checkpoint_forks(self, thread: Any) -> None:
        steps = thread("steps")
        await steps.run({"input": {"trail": ["in"]}})
        _, history = await steps.inspect("history", limit=100)
        place = history[2]["checkpoint_id"]
        status, _ = await steps.inspect(
            "update_state", values={"trail": ["fork"]}, checkpoint_id=place
        )
        _, state = await steps.inspect("state")
        assert (status, state["parent_checkpoint_id"]) == (200, place)
        assert state["values"]["trail"] == ["in", "a", "fork"]

    async def test_null_and_copies(self, thread: Any) -> None:
        steps = thread("steps")
        await steps.run({"input": {"trail": ["in"]}, "interrupt_before": ["b"]})
        for as_node, left in (("__copy__", ["b"]), (None, ["b"]), ("__end__", [])):
            status, _ = await steps.inspect("update_state", values=None, as_node=as_node)
            _, state = await steps.inspect("state")
            assert (status, state["next"]) == (200, left)

    async def test_a_subgraphs_place(self, thread: Any) -> None:
        nested = thread("nested")
        await nested.run({"input": {"trail": ["in"]}})
        _, state = await nested.inspect("state")
        place = state["tasks"][0]["checkpoint"]
        status, answer = await nested.inspect(
            "update_state", values={"trail": ["inside"]}, checkpoint=place
        )
        assert status == 200
        assert list(answer["checkpoint"]) == [
            "thread_id",
            "checkpoint_ns",
            "checkpoint_id",
            "checkpoint_map",
        ]
        _, inside = await nested.inspect("state", checkpoint=place)
        assert inside["values"]["trail"][-1] == "inside"

    async def test_supersteps(self, thread: Any) -> None:
        steps = thread("steps")
        supersteps = [
            {"updates": [{"values": {"trail": ["x"]}, "as_node": "a"}]},
            {"updates": [{"command": {"update": {"trail": ["y"]}}, "as_node": "b"}]},
        ]
        status, _ = await steps.inspect("update_state", supersteps=supersteps)
        _, state = await steps.inspect("state")
        assert (status, state["values"]["trail"], state["next"]) == (200, ["x", "y"], ["c"])

    @pytest.mark.parametrize(
        ("arguments", "detail"),
        [
            ({"values": {}, "as_node": "nope"}, "Node nope does not exist"),
            ({"values": [{"trail": ["x"]}]}, "Expected dict, got [{'trail': ['x']}]"),
            ({"values": {}, "checkpoint": {"checkpoint_ns": "zzz:1"}}, "Subgraph zzz not found"),
            ({"values": {"trail": 5}}, 'can only concatenate list (not "int") to list'),
            ({"values": {}, "as_node": "__end__"}, "Node __end__ does not exist"),
        ],
    )
    async def test_mistakes_are_the_callers(
        self, thread: Any, arguments: dict[str, Any], detail: str
    ) -> None:
        steps = thread("steps")
        await steps.run({"input": {"trail": ["in"]}})
        status, answer = await steps.inspect("update_state", **arguments)
        assert status == 400
        assert answer["detail"].startswith(detail) or detail in answer["detail"]

    async def test_a_state_that_its_own_model_refuses(self, thread: Any) -> None:
        counts = thread("counts")
        await counts.run({"input": {"number": 1}})
        status, _ = await counts.inspect("update_state", values={"number": "x"}, as_node="count")
        assert status == 200  # LangGraph asks the model only when it reads
        for question in ("state", "values", "history"):
            status, answer = await counts.inspect(question)
            assert status == 400
            assert "1 validation error for Counted" in answer["detail"]

    async def test_ambiguous(self, thread: Any) -> None:
        both = thread("ask_both")
        await both.run({"input": {}})
        _, state = await both.inspect("state")
        for question in state["interrupts"]:
            await both.run({"command": {"resume": {question["id"]: "x"}}})
        status, answer = await both.inspect("update_state", values={"trail": ["x"]})
        assert (status, answer["detail"]) == (400, "Ambiguous update, specify as_node")

    async def test_unknown_places_and_graphs(self, thread: Any) -> None:
        steps = thread("steps")
        await steps.run({"input": {"trail": ["in"]}})
        unknown = str(uuid.uuid4())
        status, _ = await steps.inspect("update_state", values={}, checkpoint_id=unknown)
        assert status == 404
        status, answer = await steps.inspect("update_state", values={}, graph_id=None)
        assert status == 400
        assert answer["detail"].startswith(f"Thread '{steps.thread_id}' has no assigned graph ID.")
        status, answer = await steps.inspect("state", graph_id="nope")
        assert status == 404
        assert "nope" in answer["detail"]


class TestGraphs:
    """Schemas and drawings."""

    async def test_schemas(self, thread: Any) -> None:
        status, found = await thread("given").inspect("schemas")
        context = {
            "description": "A context schema that takes only what it knows.",
            "properties": {
                "model": {"default": "default", "title": "Model", "type": "string"},
                "depth": {"default": 1, "title": "Depth", "type": "integer"},
            },
            "title": "Settings",
            "type": "object",
        }
        assert (status, found["graph_id"]) == (200, "given")
        assert found["config_schema"] == found["context_schema"] == context
        assert found["state_schema"] == {
            "properties": {
                "seen": {
                    "additionalProperties": True,
                    "default": None,
                    "title": "Seen",
                    "type": "object",
                }
            },
            "title": "given_state",
            "type": "object",
        }

    async def test_schemas_of_a_function(self, thread: Any) -> None:
        _, found = await thread("function").inspect("schemas")
        assert found == {
            "graph_id": "function",
            "input_schema": {"title": "function_input", "type": "integer"},
            "output_schema": {"title": "function_output", "type": "integer"},
            "state_schema": {
                "properties": {"__end__": {"default": None, "title": "End  ", "type": "integer"}},
                "title": "function_state",
                "type": "object",
            },
            "config_schema": {},
            "context_schema": None,
        }

    async def test_a_part_without_a_schema_costs_no_other(self, thread: Any) -> None:
        status, found = await thread("unspeakable").inspect("schemas")
        assert status == 200
        assert found["state_schema"]["properties"]["fine"]["type"] == "string"
        assert "opaque" in found["state_schema"]["properties"]

    async def test_drawings(self, thread: Any) -> None:
        _, drawn = await thread("breakpoint_inside").inspect("graph")
        assert drawn == {
            "nodes": [
                {"id": "__start__", "type": "runnable", "data": {"name": "__start__"}},
                {"id": "a", "type": "runnable", "data": {"name": "a"}},
                {
                    "id": "b",
                    "type": "runnable",
                    "data": {"name": "b"},
                    "metadata": {"__interrupt": "before"},
                },
                {"id": "c", "type": "runnable", "data": {"name": "c"}},
                {"id": "__end__"},
            ],
            "edges": [
                {"source": "__start__", "target": "a"},
                {"source": "a", "target": "b"},
                {"source": "b", "target": "c"},
                {"source": "c", "target": "__end__"},
            ],
        }
        _, drawn = await thread("sends").inspect("graph")
        assert {"source": "a", "target": "each", "conditional": True} in drawn["edges"]

    @pytest.mark.parametrize(
        ("xray", "inside"),
        [
            (False, {"child"}),
            (1, {"child:twig", "child:grandchild"}),
            (2, {"child:twig", "child:grandchild:leaf", "child:grandchild:leaf_ask"}),
            (True, {"child:twig", "child:grandchild:leaf", "child:grandchild:leaf_ask"}),
        ],
    )
    async def test_xray(self, thread: Any, xray: Any, inside: set[str]) -> None:
        _, drawn = await thread("nested").inspect("graph", xray=xray)
        assert {node["id"] for node in drawn["nodes"]} == inside | {"__start__", "root", "__end__"}

    async def test_xray_of_no_depth(self, thread: Any) -> None:
        answer = await thread("nested").inspect("graph", xray=0)
        assert answer == (422, {"detail": "Invalid xray value"})

    @pytest.mark.parametrize(
        ("arguments", "namespaces"),
        [
            ({}, ["child"]),
            ({"recurse": True}, ["child", "child|grandchild"]),
            ({"namespace": "child"}, ["child"]),
            ({"namespace": "child", "recurse": True}, ["child"]),
            ({"namespace": "nope"}, []),
            ({"namespace": "child|grandchild"}, []),
            ({"namespace": "child|grandchild", "recurse": True}, ["child|grandchild"]),
        ],
    )
    async def test_subgraphs(
        self, thread: Any, arguments: dict[str, Any], namespaces: list[str]
    ) -> None:
        status, found = await thread("nested").inspect("subgraphs", **arguments)
        assert (status, list(found)) == (200, namespaces)
        for schemas in found.values():
            assert "graph_id" not in schemas
            assert schemas["state_schema"]["title"] == "LangGraphState"


class TestFailures:
    """What the project's code raises is told, and never ours to be ashamed of."""

    @pytest.mark.parametrize(
        ("raised", "told"),
        [
            (ConnectionError("secret"), "ConnectionError: An internal error occurred"),
            (RuntimeError("no tenant"), "RuntimeError: no tenant"),
            (SystemExit(3), "SystemExit: An internal error occurred"),
            (asyncio.CancelledError(), "CancelledError: An internal error occurred"),
        ],
    )
    @pytest.mark.parametrize("op", ["state", "history", "values", "update_state", "schemas"])
    async def test_of_a_factory(self, op: str, raised: BaseException, told: str) -> None:
        async def factory() -> Any:
            raise raised

        graphs = Graphs(_exports={"made": factory})
        asked = {"thread_id": str(uuid.uuid4()), "graph_id": "made", "values": {}}
        status, body = await introspect.inspect(op, asked, graphs, InMemorySaver(), None)
        assert status == PROJECT_FAILED
        assert json.loads(body) == {"detail": f"Graph 'made' failed: {told}"}

    async def test_whoever_stops_the_question_stops_it(self) -> None:
        entered = asyncio.Event()

        async def factory() -> Any:
            entered.set()
            await asyncio.Event().wait()

        graphs = Graphs(_exports={"made": factory})
        args = {"graph_id": "made"}
        asking = asyncio.create_task(
            introspect.inspect("schemas", args, graphs, InMemorySaver(), None)
        )
        await entered.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    async def test_of_a_reducer_by_a_class_of_its_own(self, thread: Any) -> None:
        picky = thread("picky")
        status, answer = await picky.inspect("update_state", values={"trail": ["x"]}, as_node="a")
        assert (status, answer) == (400, {"detail": "An internal error occurred"})

    @pytest.mark.parametrize("kind", [psycopg.OperationalError, psycopg.InterfaceError])
    async def test_of_the_database(self, kind: type[Exception]) -> None:
        class Away(InMemorySaver):
            async def aget_tuple(self, config: Any) -> Any:
                raise kind("host=secret")

        away = Executed("steps", Away())
        told = {"detail": "The database is not available"}
        assert await away.inspect("state") == (503, told)


async def test_an_unknown_operation() -> None:
    status, _ = await introspect.inspect("dance", {"graph_id": "g"}, Graphs(), None, None)  # type: ignore[arg-type]  # not reached
    assert status == 404
