"""Keeps what parallel nodes have finished of a step that was stopped, when a new input comes.

Somebody cancels a run while two tools work, or writes on before a question was answered: the tool
that was done is in the thread's state, for whoever looks. LangGraph has it among the pending writes
of the step, and drops these with the rest of the step when it gets a new input. So they are applied
first, in a checkpoint of their own.

Not when the run is stopped: one that is sent on without an input does the rest of the step, and
nothing twice.
"""

import logging
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, PendingWrite
from langgraph.graph import END
from langgraph.pregel import Pregel

_log = logging.getLogger(__name__)

_OF_COMMANDS = "00000000-0000-0000-0000-000000000000"
"""LangGraph's task id for writes of a command."""
_ROOT = "__root__"
"""The one channel of a state that is no dictionary."""
_OF_THE_RUN = frozenset({"run_id", "run_attempt"})


async def settle(
    graph: "Pregel[Any, Any, Any, Any]", saver: BaseCheckpointSaver[Any], config: RunnableConfig
) -> None:
    """Ends a step of the root graph that is done in part; leaves any other as it is.

    The checkpoint is not the run's: its first own one tells a later attempt that its input is in.
    But it goes with the run when that is rolled back (``persistence/checkpoints.py``).
    What cannot be applied, as when two nodes wrote what only one may, is left to LangGraph, or no
    input would ever be taken again.
    """
    configurable = config["configurable"]
    if configurable.get("checkpoint_ns"):
        return
    head: RunnableConfig = {
        "configurable": {"thread_id": configurable["thread_id"], "checkpoint_ns": ""},
        "metadata": {
            **{k: v for k, v in config["metadata"].items() if k not in _OF_THE_RUN},
            "before_run_id": config["metadata"]["run_id"],
        },
    }
    found = await saver.aget_tuple(head)
    if found is None or not any(map(_is_finished, found.pending_writes or ())):
        return
    try:
        await graph.aupdate_state(head, None, as_node=END)
    except Exception:  # noqa: BLE001  # reducers are the graph's, and may raise anything
        _log.warning("what a stopped step had finished cannot be kept", exc_info=True)


def _is_finished(write: PendingWrite) -> bool:
    """Whether a node wrote this when it was done: what says how a task fares begins with ``__``."""
    task_id, channel, _ = write
    is_state = channel == _ROOT or not channel.startswith("__")
    return task_id != _OF_COMMANDS and is_state
