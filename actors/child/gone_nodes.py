"""Whether a graph has the nodes that a thread waits before: the project may have changed since.

LangGraph itself passes over a node that it does not know. A thread that waited for somebody's
answer, or a run that a deployment interrupted, would then end as if all had been done.
"""

from collections.abc import Iterator
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.pregel import Pregel
from langgraph.types import Send

_BEFORE = "branch:to:"
"""How LangGraph names the channel that starts a node."""
_SENT = "__pregel_tasks"


class NodeGone(ValueError):
    """What is next on the thread is a node that the graph does not have."""


async def check(
    graph: "Pregel[Any, Any, Any, Any]",
    place: CheckpointTuple,
    saver: BaseCheckpointSaver[Any],
) -> None:
    """Raises NodeGone when the graph, or a subgraph that was begun, could not go on from there."""
    _check(graph, place)
    subgraphs = dict(graph.get_subgraphs(recurse=True))
    if not subgraphs:
        return
    snapshots = [await graph.aget_state(place.config, subgraphs=True)]
    while snapshots:
        for task in snapshots.pop().tasks:
            if task.state is None or isinstance(task.state, dict):
                continue
            snapshots.append(task.state)
            subgraph = subgraphs.get(_path(task.state.config["configurable"]["checkpoint_ns"]))
            stored = await saver.aget_tuple(task.state.config)
            if isinstance(subgraph, Pregel) and stored is not None:
                _check(subgraph, stored)


def _check(graph: "Pregel[Any, Any, Any, Any]", place: CheckpointTuple) -> None:
    gone = sorted(set(_next(place)) - graph.nodes.keys())
    if gone:
        raise NodeGone(
            f"The thread waits before node '{gone[0]}', and the graph has no such node any more."
            " Nothing was changed. Serve a graph that has it, or go on elsewhere: with a new input,"
            " or a change of the state as another node"
        )


def _next(place: CheckpointTuple) -> Iterator[str]:
    checkpoint = place.checkpoint
    # A channel that the graph does not know keeps its old value in all checkpoints that follow.
    fresh = checkpoint.get("updated_channels")
    for channel, value in checkpoint["channel_values"].items():
        if fresh is not None and channel not in fresh:
            continue
        if channel.startswith(_BEFORE):
            yield channel.removeprefix(_BEFORE)
        elif channel == _SENT:
            yield from (sent.node for sent in value if isinstance(sent, Send))


def _path(namespace: str) -> str:
    """The names of the nodes on the way to a subgraph, without the tasks' ids."""
    return "|".join(part.partition(":")[0] for part in namespace.split("|"))
