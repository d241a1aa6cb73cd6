"""The board shows whose code is executed, and a run that is displaced takes no further step."""

import asyncio
import inspect
import os
import threading
from typing import Any

import pytest

from actors.child.board import LOOP, Board
from actors.child.steps import task_factory
from actors.child.stop import GraphThreads, Stopped, Work


@pytest.fixture
def board() -> Board:
    fd = Board.file(3)
    try:
        return Board(fd, 3)
    finally:
        os.close(fd)


@pytest.fixture
async def threads() -> Any:
    loop = asyncio.get_running_loop()
    threads = GraphThreads(loop, 2)
    loop.set_default_executor(threads)
    loop.set_task_factory(task_factory)  # type: ignore[arg-type]
    yield threads
    loop.set_task_factory(None)


def test_two_maps_of_a_file_are_one_board() -> None:
    fd = Board.file(3)
    ours, theirs = Board(fd, 3), Board(fd, 3)
    os.close(fd)
    theirs.begin(3)
    ours.displace(2)
    assert [ours.has_begun(seat) for seat in (1, 2, 3)] == [False, False, True]
    assert [theirs.is_displaced(seat) for seat in (1, 2, 3)] == [False, True, False]
    theirs.clear(3)
    assert not ours.has_begun(3)


async def test_the_loop_executes_one_run_at_a_time(board: Board, threads: GraphThreads) -> None:
    seen: dict[int, list[int]] = {1: [], 2: []}

    async def code(seat: int) -> None:
        for _ in range(3):
            seen[seat].append(board.cells[LOOP])
            await asyncio.create_task(inner(seat))

    async def inner(seat: int) -> None:
        seen[seat].append(board.cells[LOOP])
        await asyncio.sleep(0)

    await asyncio.gather(*(Work(board, seat).start(code(seat)) for seat in (1, 2)))
    assert seen == {1: [1] * 6, 2: [2] * 6}
    assert board.cells[LOOP] == 0


async def test_a_thread_shows_as_long_as_it_serves(board: Board, threads: GraphThreads) -> None:
    begun, go = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go.wait()

    async def code() -> None:
        await asyncio.to_thread(work)

    run = Work(board, 2).start(code())
    while not begun.is_set():
        await asyncio.sleep(0)
    assert board.executes(2)
    assert not board.executes(1)
    go.set()
    await run
    assert not board.executes(2)


async def test_what_an_ended_run_left_behind_does_not_show(
    board: Board, threads: GraphThreads
) -> None:
    """Its seat is another run's by then."""
    begun, go, shown = threading.Event(), threading.Event(), list[bool]()

    def work() -> None:
        begun.set()
        go.wait()

    async def left() -> None:
        await asyncio.to_thread(work)
        shown.append(board.executes(2))

    async def code() -> None:
        tasks.append(asyncio.create_task(left()))

    tasks: list[asyncio.Task[None]] = []
    work_of_run = Work(board, 2)
    await work_of_run.start(code())
    while not begun.is_set():
        await asyncio.sleep(0)
    work_of_run.end()
    board.clear(2)
    assert not board.executes(2)
    board.displace(2)
    go.set()
    await tasks[0]
    assert shown == [False]


async def test_a_displaced_run_takes_no_step_but_to_end(
    board: Board, threads: GraphThreads
) -> None:
    """Not even one that was due before: neither in its own task nor in one that it started."""
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting: list[str] = []
    done: list[str] = []

    async def waits(name: str) -> None:
        try:
            waiting.append(name)
            await asyncio.shield(gate)
            done.append(f"{name} went on")
        except asyncio.CancelledError:
            done.append(f"{name} ends")
            await asyncio.sleep(0)
            done.append(f"{name} has ended well")
            raise

    async def code() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(waits("inner"))
            await waits("outer")

    run = Work(board, 1).start(code())
    other = Work(board, 2).start(waits("other"))
    while len(waiting) < 3:
        await asyncio.sleep(0)
    gate.set_result(None)  # from here on a step of each is due
    board.displace(1)
    with pytest.raises(asyncio.CancelledError):
        await run
    await other
    assert sorted(done) == [
        "inner ends",
        "inner has ended well",
        "other went on",
        "outer ends",
        "outer has ended well",
    ]


async def test_a_displaced_run_does_not_handle_what_happened_meanwhile(
    board: Board, threads: GraphThreads
) -> None:
    """Neither a time limit that ran out nor a failure: it ends."""
    loop = asyncio.get_running_loop()
    gate: asyncio.Future[None] = loop.create_future()
    waiting: list[asyncio.Timeout | None] = []
    done: list[str] = []

    async def limited() -> None:
        try:
            async with asyncio.timeout(3600) as limit:
                waiting.append(limit)
                await loop.create_future()
        except TimeoutError:
            done.append("handled the limit")
        finally:
            await asyncio.sleep(0)
            done.append("ended well")

    async def failing() -> None:
        waiting.append(None)
        try:
            await gate
        except ValueError:
            done.append("handled the failure")

    async def code() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(limited())
            group.create_task(failing())

    run = Work(board, 1).start(code())
    while len(waiting) < 2:
        await asyncio.sleep(0)
    board.displace(1)
    gate.set_exception(ValueError())
    for limit in filter(None, waiting):
        limit.reschedule(loop.time())
    with pytest.raises(asyncio.CancelledError):
        await run
    assert done == ["ended well"]


async def test_a_displaced_run_gets_no_thread(board: Board, threads: GraphThreads) -> None:
    called: list[int] = []
    work = Work(board, 1)
    board.displace(1)
    with pytest.raises(Stopped):
        work.context.run(threads.submit, called.append, 1).result()
    assert called == []


async def test_a_task_looks_like_that_of_its_coroutine(board: Board, threads: GraphThreads) -> None:
    async def code() -> str:
        assert inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_RUNNING  # type: ignore[arg-type]
        await asyncio.sleep(0)
        return "done"

    task = Work(board, 1).start(code())
    assert "code" in repr(task)
    assert await task == "done"
