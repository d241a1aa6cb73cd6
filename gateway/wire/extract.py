"""Paths into a thread's JSON, as searches ask for them: ``values.messages[-1].content``."""

import re
from typing import Any

ROOTS = ("config", "interrupts", "metadata", "values")

_STEP = re.compile(r"\.([^.\[\]]+)|\[(-?\d{1,9}|\*)\]")

Path = tuple[str, tuple[str | int | None, ...]]
"""The root column, then a key or an index for each step; None for ``[*]``, which finds nothing."""


def parse(text: str) -> Path:
    """The path that the text means. Raises ValueError."""
    root = re.match(r"\w+", text)
    if root is None or root[0] not in ROOTS:
        raise ValueError(f"path '{text}' must begin with one of {', '.join(ROOTS)}")
    steps: list[str | int | None] = []
    at = root.end()
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise ValueError(f"path '{text}' is not understood from '{text[at:]}' on")
        key, index = step.groups()
        steps.append(key if key is not None else None if index == "*" else int(index))
        at = step.end()
    return root[0], tuple(steps)


def find(content: Any, steps: tuple[str | int | None, ...]) -> Any:
    """What lies at the end of the steps; None when there is nothing."""
    for step in steps:
        match content, step:
            case dict(), str():
                content = content.get(step)
            case list(), int() if -len(content) <= step < len(content):
                content = content[step]
            case _:
                return None
    return content
