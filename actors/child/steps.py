"""A run's code, step by step: says whose step it is, and takes none when the run is displaced."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from actors.child.board import LOOP, Board
from actors.child.stop import Work, current_work


def task_factory(
    loop: asyncio.AbstractEventLoop, code: Coroutine[Any, Any, Any], **options: Any
) -> "asyncio.Task[Any]":
    """Makes tasks that their run's ``Work`` knows of, and that show on its board."""
    context: Context | None = options.get("context")
    work = current_work.get() if context is None else context.get(current_work)
    if work is None:
        return asyncio.Task(code, loop=loop, **options)
    if work.board is not None:
        code = Steps(code, work, work.board)
    task = asyncio.Task(code, loop=loop, **options)
    work.tasks.add(task)
    return task


class Steps(Coroutine[Any, Any, Any]):
    """A task's coroutine. Behaves as the one inside; what it does not know, that one is asked."""

    def __init__(self, code: Coroutine[Any, Any, Any], work: Work, board: Board) -> None:
        self._code = code
        self._work = work
        self._is_root = work.task is None
        self._is_told = False
        self._cells = board.cells
        self._displaced = board.displaced

    def send(self, value: Any) -> Any:
        """One step. Of a displaced run, none: the task looks again with the loop's next turn."""
        cells, seat = self._cells, self._work.seat
        before, cells[LOOP] = cells[LOOP], seat
        try:
            # In this order: the worker writes the one and then reads the other.
            if cells[self._displaced + seat] and self._work.holds_back(is_root=self._is_root):
                return None
            return self._code.send(value)
        finally:
            cells[LOOP] = before

    def throw(self, *error: Any) -> Any:
        """One step, which begins with an exception. A displaced run gets the one that ends it."""
        cells, seat = self._cells, self._work.seat
        before, cells[LOOP] = cells[LOOP], seat
        try:
            if cells[self._displaced + seat] and self._tells():
                return None
            return self._code.throw(*error)
        finally:
            cells[LOOP] = before

    def _tells(self) -> bool:
        """Cancels the task, whose next step then begins with that instead.

        Else code would handle what happened while the loop was held up, and go on from there. Also
        if it is cancelled already: that may be a time limit, which takes its own back and no more.
        """
        if self._is_root or self._is_told:
            return False
        self._is_told = True
        self._work.cancel()
        task = asyncio.current_task()
        return task is not None and task.cancel()

    def close(self) -> None:
        """Ends the code where it waits."""
        self._code.close()

    def __await__(self) -> Any:
        """As the coroutine itself."""
        return self._code.__await__()

    def __getattr__(self, name: str) -> Any:
        """``cr_frame``, ``__qualname__`` and whatever else one asks a coroutine."""
        return getattr(self._code, name)
