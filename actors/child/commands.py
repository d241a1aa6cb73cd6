"""Commands as the wire has them → as LangGraph has them."""

from collections.abc import Mapping
from typing import Any

from langgraph.types import Command, Send

END = "__end__"


def command_of(resume: Any, update: Any, goto: Any) -> Command[Any] | None:
    """The command; None when it would say nothing.

    update: an object, or a list of ``[key, value]`` pairs. goto: a node's name, ``{node, input}``,
    or a list of these.
    """
    if resume is None and not update and not goto:
        return None
    if isinstance(update, list):
        update = [tuple(pair) for pair in update]
    targets = goto if isinstance(goto, list) else [goto] if goto else []
    return Command(resume=resume, update=update or None, goto=[_target(to) for to in targets])


def _target(to: Any) -> Any:
    return Send(to["node"], to.get("input")) if isinstance(to, Mapping) else to
