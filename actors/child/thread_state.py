"""Snapshots of LangGraph as clients see them: the wire's ThreadState."""

from collections.abc import Iterable, Mapping
from typing import Any

from langgraph.types import Interrupt, PregelTask, StateSnapshot

from actors.child.protocol import NO_STATE

_PLACE = ("checkpoint_id", "thread_id", "checkpoint_ns", "checkpoint_map")


def shown(snapshot: StateSnapshot) -> dict[str, Any]:
    """The snapshot as a ThreadState, ready to be serialized."""
    if snapshot.created_at is None:
        return NO_STATE
    checkpoint, parent = place(snapshot.config), place(snapshot.parent_config)
    thread_id = snapshot.config["configurable"]["thread_id"]
    return {
        "values": snapshot.values,
        "next": snapshot.next,
        "tasks": [_task(task) for task in snapshot.tasks],
        "metadata": {**(snapshot.metadata or {}), "thread_id": thread_id},
        "created_at": snapshot.created_at,
        "checkpoint": checkpoint,
        "parent_checkpoint": parent,
        "interrupts": _questions(snapshot.interrupts),
        "checkpoint_id": checkpoint and checkpoint["checkpoint_id"],
        "parent_checkpoint_id": parent and parent["checkpoint_id"],
    }


def interrupts_by_task(snapshot: StateSnapshot) -> dict[str, list[dict[str, Any]]]:
    """``{task_id: [{"id","value"}]}``, as threads show them."""
    return {task.id: _questions(task.interrupts) for task in snapshot.tasks if task.interrupts}


def place(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Where a checkpoint lies: what clients send back to name it. None for none."""
    configurable = (config or {}).get("configurable") or {}
    if not configurable.get("checkpoint_id"):
        return None
    return {key: configurable[key] for key in _PLACE if key in configurable}


def _task(task: PregelTask) -> dict[str, Any]:
    """A task; a subgraph's is either its state, or the place where that can be read."""
    state = task.state
    return {
        "id": task.id,
        "name": task.name,
        "path": task.path,
        "error": _error(task.error),
        "interrupts": _questions(task.interrupts),
        "checkpoint": state["configurable"] if isinstance(state, dict) else None,
        "state": shown(state) if isinstance(state, StateSnapshot) else None,
        "result": task.result,
    }


def _error(error: Any) -> str | None:
    """As text, which is what clients expect. Some serializers have stored one already."""
    if error is None or isinstance(error, str):
        return error
    return repr(error)


def _questions(interrupts: Iterable[Interrupt]) -> list[dict[str, Any]]:
    return [{"id": asked.id, "value": asked.value} for asked in interrupts]
