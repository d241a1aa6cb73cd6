"""Answers what needs compiled graphs: state, history, changes of state, schemas and drawings.

An operation takes a JSON object of arguments and returns what its answer's body is made of. A
``Refusal`` is an answer too: its status and ``{"detail": text}``. So are ``PROJECT_FAILED``, when
the project's own code fails over the question, and 503, when the database does not answer.

    state         thread_id, graph_id?, checkpoint_id? | checkpoint?, subgraphs?
    history       thread_id, graph_id?, limit?, before?, metadata?, checkpoint?
    values        thread_id, graph_id                → {values, next, interrupts}
    update_state  thread_id, graph_id?, values, as_node?, checkpoint_id? | checkpoint?
                  or supersteps: [{updates: [{values, command, as_node}]}]
    schemas       graph_id
    graph         graph_id, xray?: bool or depth
    subgraphs     graph_id, namespace?, recurse?

Each also takes ``config``, which factories of graphs are given. Operations on the store are in
store_answers.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import InvalidUpdateError
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore
from langgraph.types import StateUpdate

from actors.child import schemas, store_answers
from actors.child.commands import command_of
from actors.child.loader import Graphs, GraphUnavailable
from actors.child.masking import masked
from actors.child.protocol import NO_STATE, PROJECT_FAILED
from actors.child.serialize import dumps
from actors.child.thread_state import interrupts_by_task, shown

_log = logging.getLogger(__name__)

Compiled = Pregel[Any, Any, Any, Any]
Saver = BaseCheckpointSaver[Any]
Args = Mapping[str, Any]
T = TypeVar("T")

_NO_GRAPH = (
    "Thread '{}' has no assigned graph ID. This usually occurs when no runs have been made on this"
    " particular thread. This operation requires a graph ID. Please ensure a run has been made for"
    " the thread or manually update the thread metadata (by setting the 'graph_id' field) before"
    " running this operation."
)


class Refusal(Exception):
    """The caller's mistake, or something that does not exist: a status and a text."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


async def inspect(
    op: str, args: Args, graphs: Graphs, saver: Saver, store: BaseStore | None
) -> tuple[int, bytes]:
    """The answer as an HTTP status and a JSON body, whatever the project's code does.

    saver: unfenced, for the changes belong to no run. store: what the graphs see as their store.
    """
    try:
        if store is not None and op in store_answers.OPERATIONS:
            return await store_answers.answer(op, args, store)
        operation = _OPERATIONS.get(op)
        if operation is None:
            raise Refusal(404, f"there is no operation '{op}'")
        access, answer, default = operation
        if not args.get("graph_id"):
            return 200, dumps(default(args))
        config = dict(args.get("config") or {})
        async with graphs.open(args["graph_id"], config, access=access) as graph:
            graph.name, graph.checkpointer = args["graph_id"], saver
            graph.store = store or graph.store
            return 200, dumps(await answer(graph, args, saver))
    except Refusal as refusal:
        return refusal.status, dumps({"detail": refusal.detail})
    except GraphUnavailable as unavailable:
        return 404, dumps({"detail": unavailable.reason})
    except (psycopg.OperationalError, psycopg.InterfaceError):
        _log.warning("the database does not answer", extra={"op": op}, exc_info=True)
        return 503, dumps({"detail": "The database is not available"})
    except BaseException as error:  # a factory may call sys.exit, and we answer
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        _log.error("inspection failed", extra={"op": op}, exc_info=True)
        told = masked(error)
        who = f"Graph '{args['graph_id']}'" if args.get("graph_id") else "The project's code"
        detail = f"{who} failed: {told['error']}: {told['message']}"
        return PROJECT_FAILED, dumps({"detail": detail})


# State


@contextmanager
def _judging() -> Iterator[None]:
    """What a state is, the graph says: its model, reducers and edges may not take what is there.

    What tells of something that is away is no judgement, and passes through.
    """
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError, OSError):
        raise
    except (InvalidUpdateError, ValueError) as error:
        raise Refusal(400, str(error)) from error
    except Exception as error:
        _log.info("state refused", exc_info=True)
        raise Refusal(400, masked(error)["message"]) from error


async def _state(graph: Compiled, args: Args, saver: Saver) -> Any:
    config = _place_of(args)
    if "checkpoint_id" in config["configurable"]:
        await _must_exist(config, saver)
    with _judging():
        return shown(await graph.aget_state(config, subgraphs=bool(args.get("subgraphs"))))


async def _history(graph: Compiled, args: Args, _saver: Saver) -> Any:
    limit = args.get("limit", 1)
    if limit == 0:
        return []
    before = args.get("before")
    history = graph.aget_state_history(
        _place_of(args),
        filter=args.get("metadata") or None,
        before={"configurable": {"checkpoint_id": before}} if before else None,
        limit=limit,
    )
    with _judging():
        return [shown(snapshot) async for snapshot in history]


async def _values(graph: Compiled, args: Args, _saver: Saver) -> Any:
    with _judging():
        snapshot = await graph.aget_state(_config(args, {}))
    return {
        "values": snapshot.values if snapshot.created_at else None,
        "next": snapshot.next,
        "interrupts": interrupts_by_task(snapshot),
    }


async def _update_state(graph: Compiled, args: Args, saver: Saver) -> Any:
    config = _place_of(args)
    if "checkpoint_id" in config["configurable"]:
        await _must_exist(config, saver)
    config["metadata"] = {"graph_id": args["graph_id"]}
    steps = args.get("supersteps")
    if steps is None:
        steps = [{"updates": [{"values": args.get("values"), "as_node": args.get("as_node")}]}]
    supersteps = [[_update(update) for update in step["updates"]] for step in steps]
    with _judging():
        updated = await graph.abulk_update_state(config, supersteps)
    keys = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")
    configurable = updated["configurable"]
    where = {key: configurable[key] for key in keys if key in configurable}
    return {
        "checkpoint": where,
        "configurable": where,
        "checkpoint_id": where.get("checkpoint_id"),
    }


def _update(update: Args) -> StateUpdate:
    command = update.get("command") or {}
    parts = (command.get(part) for part in ("resume", "update", "goto"))
    values: Any = command_of(*parts) or update.get("values")
    return StateUpdate(values, update.get("as_node"))


def _place_of(args: Args) -> RunnableConfig:
    """Where to look: a checkpoint, a subgraph's latest, or the thread's latest."""
    given = {**(args.get("checkpoint") or {})}
    if args.get("checkpoint_id"):
        given["checkpoint_id"] = args["checkpoint_id"]
    return _config(args, given)


def _config(args: Args, given: Args) -> RunnableConfig:
    keys = ("checkpoint_id", "checkpoint_map")
    named = {key: given[key] for key in keys if given.get(key)}
    return {
        "configurable": {
            "thread_id": str(args["thread_id"]),
            "checkpoint_ns": given.get("checkpoint_ns") or "",
            **named,
        }
    }


async def _must_exist(config: RunnableConfig, saver: Saver) -> None:
    """LangGraph takes an unknown checkpoint for an empty one, and would begin a line of its own."""
    if await saver.aget_tuple(config) is None:
        checkpoint_id = config["configurable"]["checkpoint_id"]
        raise Refusal(404, f"Checkpoint {checkpoint_id} not found")


# Graphs


async def _schemas(graph: Compiled, args: Args, _saver: Saver) -> Any:
    return {"graph_id": args["graph_id"], **schemas.of(graph)}


async def _graph(graph: Compiled, args: Args, _saver: Saver) -> Any:
    xray = args.get("xray", False)
    if not isinstance(xray, bool) and (not isinstance(xray, int) or xray < 1):
        raise Refusal(422, "Invalid xray value")
    drawn = (await graph.aget_graph(xray=xray)).to_json()
    for node in drawn["nodes"]:
        if isinstance(data := node.get("data"), dict):
            data.pop("id", None)  # the path of LangGraph's own class
    return drawn


async def _subgraphs(graph: Compiled, args: Args, _saver: Saver) -> Any:
    return {
        namespace: schemas.of(subgraph)
        async for namespace, subgraph in graph.aget_subgraphs(
            namespace=args.get("namespace"), recurse=bool(args.get("recurse"))
        )
        if isinstance(subgraph, Pregel)
    }


def _refused(args: Args) -> Any:
    raise Refusal(400, _NO_GRAPH.format(args.get("thread_id")))


def _empty(_args: Args) -> Any:
    return NO_STATE


Answer = Callable[[Compiled, Args, Saver], Awaitable[Any]]
_OPERATIONS: dict[str, tuple[str, Answer, Callable[[Args], Any]]] = {
    "state": ("threads.read", _state, _empty),
    "history": ("threads.read", _history, lambda _: []),
    "values": ("threads.read", _values, lambda _: {"values": None, "next": [], "interrupts": {}}),
    "update_state": ("threads.update", _update_state, _refused),
    "schemas": ("assistants.read", _schemas, _refused),
    "graph": ("assistants.read", _graph, _refused),
    "subgraphs": ("assistants.read", _subgraphs, _refused),
}
"""Operation → why the graph is opened; how it answers; its answer for a thread without a graph."""
