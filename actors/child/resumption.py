"""What an attempt still has to do: everything, the rest, or nothing. A command is applied once.

The first attempt of a run with an input reads nothing here, unless the run before it was stopped in
the middle of a step (stopped_step.py). A later one looks at the thread's
latest checkpoint: if this run wrote it, the graph goes on from there with no input; if not, nothing
of the run is stored, and it begins anew. Nothing goes on where a node is gone (gone_nodes.py).

A command is harder, because LangGraph does not store it with a checkpoint of its own:

    update, goto   written beside the checkpoint that the thread had, among its pending writes; a
                   second time they would be added again
    resume         written there too, and taken by whichever ``interrupt()`` comes next: after a
                   crash it would answer a later question than the one it was given to
    resume by id   kept in memory; given again, it would answer the same task's next question

So before a command is first applied, a mark is put among the same pending writes: what was asked
then, and how much was written. And a lone answer is addressed to the question that it is for. With
that, a later attempt knows what is stored, gives only answers whose questions are still open, and
when in doubt lets the graph ask again: no answer is ever given to a question nobody saw.

Breakpoints are passed by resuming, so an attempt that only died after it had stopped at one must
not resume: it is over.
"""

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, PendingWrite
from langgraph.errors import EmptyInputError
from langgraph.pregel import Pregel
from langgraph.types import Command, StateSnapshot

from actors.child import gone_nodes, run_config, stopped_step
from actors.child.commands import END, command_of

if TYPE_CHECKING:  # the runner imports this module
    from actors.child.runner import Start

START = "__start__"

_MARK = "__callboard_command__"
"""Name of the pending write that says how things stood before a command; no channel of a graph."""
_NO_TASK = "00000000-0000-0000-0000-000000000000"
"""LangGraph's task id for writes of a command."""
_INTERRUPT, _RESUME, _ERROR, _ERROR_SOURCE = (
    "__interrupt__",
    "__resume__",
    "__error__",
    "__error_source_node__",
)
_CONTROL = frozenset({_INTERRUPT, _RESUME, _ERROR, _ERROR_SOURCE})
"""Pending writes that say what happened to a task; any other means that it has finished."""


class UnknownCheckpoint(ValueError):
    """The run names a checkpoint that the thread does not have."""


class NothingToResume(ValueError):
    """The run answers a question, but the thread has never run."""


class AmbiguousAnswer(ValueError):
    """The run answers with null, and nobody can say which of several questions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to stream: ``is_over`` when an earlier attempt had come to the run's end."""

    input: Any
    config: RunnableConfig
    is_over: bool = False


async def plan(
    start: "Start", graph: "Pregel[Any, Any, Any, Any]", saver: BaseCheckpointSaver[Any]
) -> Plan:
    """Decides, and for a command puts down how things stand. ``graph`` has its checkpointer.

    Raises UnknownCheckpoint, NodeGone, NothingToResume, AmbiguousAnswer, and EmptyInputError for a
    command that says nothing.
    """
    config = run_config.compose(start, graph.context_schema)
    command: Mapping[str, Any] = start.kwargs.get("command") or {}
    if start.attempt > 1:
        latest = run_config.without_place(config)
        head = await saver.aget_tuple(latest)
        if head is not None and head.metadata.get("run_id") == start.run_id:
            await gone_nodes.check(graph, head, saver)
            return Plan(None, latest, await _has_stopped(start.kwargs, graph, head))
    place = _place(config)
    content = start.kwargs.get("input")
    if not command and content is not None and place is None:
        if start.unfinished:
            await stopped_step.settle(graph, saver, config)
        return Plan(content, config)
    target = await saver.aget_tuple(config if place is None else _at(config, place))
    if target is None and place is not None:
        raise UnknownCheckpoint(f"Checkpoint {place} not found")
    if not command:
        if content is None and target is not None:
            await gone_nodes.check(graph, target, saver)
        return Plan(content, config)
    if target is not None and _only_ends(command):
        # LangGraph itself would go on with what was left to do.
        await graph.aupdate_state(config, None, as_node=END)
        return Plan(None, run_config.without_place(config))
    return Plan(await _commanded(start, config, command, target, graph, saver), config)


def _place(config: RunnableConfig) -> str | None:
    """The root's checkpoint that the run is sent to."""
    configurable = config["configurable"]
    if configurable.get("checkpoint_ns"):
        place = (configurable.get("checkpoint_map") or {}).get("")
    else:
        place = configurable.get("checkpoint_id")
    return place if isinstance(place, str) and place else None


def _at(config: RunnableConfig, checkpoint_id: str) -> RunnableConfig:
    thread_id = config["configurable"]["thread_id"]
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": "",
            "checkpoint_id": checkpoint_id,
        }
    }


# Commands


async def _commanded(
    start: "Start",
    config: RunnableConfig,
    command: Mapping[str, Any],
    target: CheckpointTuple | None,
    graph: "Pregel[Any, Any, Any, Any]",
    saver: BaseCheckpointSaver[Any],
) -> Command[Any] | None:
    """The part of the command that is still to be applied; None when that is nothing."""
    resume, update, goto = command.get("resume"), command.get("update"), command.get("goto")
    is_answer = "resume" in command  # null is an answer too, and for LangGraph only with an address
    if not is_answer and not update and not goto:
        raise EmptyInputError("Received empty Command input")
    if target is None:
        if is_answer:
            raise NothingToResume("There is nothing to resume: the thread has no state")
        return command_of(None, update, goto)
    if is_answer:
        await gone_nodes.check(graph, target, saver)
    writes = target.pending_writes or []
    mark = _mark(writes, start.run_id)
    if mark is None:
        asked = await _questions(config, target, graph) if is_answer else []
        if is_answer and resume is None and len(asked) > 1:
            raise AmbiguousAnswer(
                "Several questions wait: an answer of null must name the interrupt it is for"
            )
        mark = {"run_id": start.run_id, "asked": asked, "written": _written(writes)}
        mark_id = str(uuid.uuid5(uuid.UUID(start.run_id), _MARK))
        await saver.aput_writes(target.config, [(_MARK, mark)], mark_id)
        return command_of(_addressed(resume, asked), update, goto)
    if _written(writes) > mark["written"]:
        update = goto = None
    if is_answer:
        snapshot = await graph.aget_state(target.config, subgraphs=True)
        resume = _addressed(resume, mark["asked"])
        if _is_addressed(resume):
            still_open = set(_open_in(snapshot))
            resume = {key: value for key, value in resume.items() if key in still_open} or None
        elif _has_moved(snapshot, start.run_id):
            # The answer was for whoever would ask first, and somebody may have had it.
            await saver.aput_writes(target.config, [(_RESUME, None)], _NO_TASK)
            resume = None
    return command_of(resume, update, goto)


async def _questions(
    config: RunnableConfig, target: CheckpointTuple, graph: "Pregel[Any, Any, Any, Any]"
) -> list[str]:
    """Ids of the questions that the graph will wait with.

    The root does not hear of a change to a subgraph's state, after which that subgraph asks anew,
    under another id: what the root knows then is nobody's question any more. From a subgraph's
    checkpoint, too, the graph comes to ask anew.
    """
    if config["configurable"].get("checkpoint_ns"):
        return []
    asked = _open_questions(target.pending_writes or [])
    if not asked or next(graph.get_subgraphs(), None) is None:
        return asked
    still_open = set(_open_in(await graph.aget_state(target.config, subgraphs=True)))
    return [question for question in asked if question in still_open]


def _only_ends(command: Mapping[str, Any]) -> bool:
    """Whether the command does nothing but drop what was left to do."""
    is_bare = command.get("resume") is None and not command.get("update")
    return is_bare and command.get("goto") in (END, [END])


def _addressed(resume: Any, asked: Sequence[str]) -> Any:
    """A lone answer becomes the answer to the one open question, if there is exactly one."""
    if _is_addressed(resume) or len(asked) != 1:
        return resume
    return {asked[0]: resume}


def _is_addressed(resume: Any) -> bool:
    """Whether the answers say what they answer: by ids of interrupts, 32 hex digits."""
    return isinstance(resume, dict) and all(
        isinstance(key, str) and len(key) == 32 and set(key) <= set("0123456789abcdef")
        for key in resume
    )


# Pending writes and snapshots


def _mark(writes: Iterable[PendingWrite], run_id: str) -> dict[str, Any] | None:
    """How things stood before an earlier attempt of this run applied its command."""
    for _, channel, value in writes:
        if channel == _MARK and value["run_id"] == run_id:
            found: dict[str, Any] = value
            return found
    return None


def _written(writes: Iterable[PendingWrite]) -> int:
    """How many updates and targets of commands are stored."""
    return sum(task == _NO_TASK and channel not in _CONTROL for task, channel, _ in writes)


def _open_questions(writes: Iterable[PendingWrite]) -> list[str]:
    """Ids of the interrupts that wait for an answer."""
    writes = list(writes)
    finished = {task for task, channel, _ in writes if channel not in _CONTROL}
    return [
        interrupt.id
        for task, channel, value in writes
        if channel == _INTERRUPT and task not in finished
        for interrupt in (value if isinstance(value, Sequence) else [value])
    ]


def _open_in(snapshot: StateSnapshot) -> Iterable[str]:
    """Ids of the interrupts that still wait, where they were raised.

    A subgraph knows better than its parent, which learns of it only when the subgraph stops. A task
    that failed has had its answer, and so has one that finished.
    """
    for task in snapshot.tasks:
        if isinstance(task.state, StateSnapshot) and task.state.created_at is not None:
            yield from _open_in(task.state)
        elif task.error is None and task.result is None:
            yield from (interrupt.id for interrupt in task.interrupts)


def _has_moved(snapshot: StateSnapshot, run_id: str) -> bool:
    """Whether code of the run has come as far as to ask, fail, or finish a step in a subgraph."""
    return any(
        (task.interrupts and task.result is None)
        or task.error is not None
        or (
            isinstance(task.state, StateSnapshot)
            and (
                (task.state.metadata or {}).get("run_id") == run_id
                or _has_moved(task.state, run_id)
            )
        )
        for task in snapshot.tasks
    )


# Breakpoints


async def _has_stopped(
    kwargs: Mapping[str, Any], graph: "Pregel[Any, Any, Any, Any]", head: CheckpointTuple
) -> bool:
    """Whether the run had come to a breakpoint when it wrote its latest checkpoint.

    A fork or an update is where a run begins, past the breakpoint that it was sent on from; and a
    step that was begun had passed.
    """
    before = kwargs.get("interrupt_before") or graph.interrupt_before_nodes
    after = kwargs.get("interrupt_after") or graph.interrupt_after_nodes
    begun = any(channel != _MARK for _, channel, _ in head.pending_writes or ())
    if not (before or after) or begun or head.metadata.get("source") != "loop":
        return False
    if before and _meets((await graph.aget_state(head.config)).next, before):
        return True
    if not after or head.parent_config is None:
        return False
    parent = await graph.aget_state(head.parent_config)
    return _meets((task.name for task in parent.tasks), after)


def _meets(nodes: Iterable[str], breakpoints: Collection[str]) -> bool:
    if breakpoints == "*":
        return any(node != START for node in nodes)
    return any(node in breakpoints for node in nodes)
