"""Runs that a client waits for have a lane: they wait behind no backlog, and starve none."""

import asyncio
import threading
import uuid

import pytest

from actors.dispatch import AWAITED, INSPECT, RUNS, RedisDispatcher
from actors.lanes import IN_A_ROW, Turns, Unlimited
from actors.messages import Messages, Work
from tests.actors.worker.conftest import eventually

_LONG = 60.0


class Slots:
    """``free`` slots; who gets one back is told, as by the pool."""

    def __init__(self, free, on_room):
        self.lock = threading.Lock()
        self.free = free
        self.on_room = on_room

    def reserve(self):
        with self.lock:
            if self.free == 0:
                return False
            self.free -= 1
            return True

    def release(self):
        with self.lock:
            self.free += 1
        self.on_room()


class Stage:
    """A worker's messages, whose runs last until the test ends them."""

    def __init__(self, redis_url, slots, room=None):
        self.dispatcher = RedisDispatcher(redis_url)
        self.room = room or Slots(slots, lambda: self.messages.wake())
        work = Work(self.perform, self.answer, self.answer)
        self.messages = Messages(redis_url, work, self.room, slots)
        self.messages.start()
        self.lanes = {}
        self.started = asyncio.Queue()
        self.answered = asyncio.Event()
        self.ends = {}

    async def perform(self, run_id):
        self.ends[run_id] = asyncio.Event()
        self.started.put_nowait(run_id)
        await self.ends[run_id].wait()
        self.room.release()

    async def answer(self, *_):
        self.answered.set()

    async def send(self, lane, count=1):
        for _ in range(count):
            self.lanes[run_id := uuid.uuid4()] = lane
            await self.dispatcher.run(run_id, awaited=lane == AWAITED)

    async def next(self):
        """The next run that starts, and its lane."""
        async with asyncio.timeout(_LONG):
            run_id = await self.started.get()
        return run_id, self.lanes[run_id]

    async def asked(self, lane):
        """Returns when the lane's consumer knows of its messages and wants a slot."""

        async def waits():
            return lane in self.messages._broker._lanes[lane]._turns._waiting

        await eventually(waits, f"{lane} asks for a slot")

    async def stop(self):
        for end in self.ends.values():
            end.set()
        await self.messages.stop(_LONG)
        await self.dispatcher.close()


@pytest.fixture
async def stage(redis_url):
    made = []

    def make(**more):
        made.append(Stage(redis_url, **more))
        return made[-1]

    yield make
    for one in made:
        await one.stop()


def test_each_fourth_turn_is_the_others_as_long_as_both_wait() -> None:
    turns = Turns("first")
    taken = []
    for _ in range(3 * (IN_A_ROW + 1)):
        [lane] = [lane for lane in ("first", "other") if turns.asks(lane)]
        turns.took(lane)
        taken.append(lane)
    assert taken == (["first"] * IN_A_ROW + ["other"]) * 3


def test_who_waits_alone_is_always_next() -> None:
    for lane in ("first", "other"):
        turns = Turns("first")
        for _ in range(3 * IN_A_ROW):
            assert turns.asks(lane)
            turns.took(lane)


def test_nobody_waits_for_a_lane_that_is_empty() -> None:
    turns = Turns("first")
    assert turns.asks("first")
    assert not turns.asks("other")
    turns.leaves("first")
    assert turns.asks("other")
    for _ in range(IN_A_ROW):
        assert turns.asks("first")
        turns.took("first")
    assert not turns.asks("first")
    turns.leaves("other")
    assert turns.asks("first")


async def test_the_next_free_slot_is_that_of_the_run_that_a_client_waits_for(stage) -> None:
    here = stage(slots=2)
    await here.send(RUNS, 40)
    running = [await here.next() for _ in range(2)]
    await here.asked(RUNS)
    await here.send(AWAITED)
    await here.asked(AWAITED)
    here.ends[running[0][0]].set()
    awaited, lane = await here.next()
    assert lane == AWAITED
    here.ends[awaited].set()
    assert (await here.next())[1] == RUNS
    assert await here.dispatcher.backlog() == 37


async def test_the_background_goes_on_while_clients_keep_coming(stage) -> None:
    here = stage(slots=1)
    await here.send(RUNS, 10)
    running, _ = await here.next()
    await here.asked(RUNS)
    await here.send(AWAITED, 2)
    await here.asked(AWAITED)
    lanes = []
    for _ in range(16):
        await here.send(AWAITED)
        here.ends[running].set()
        running, lane = await here.next()
        lanes.append(lane)
    assert lanes == ([AWAITED] * IN_A_ROW + [RUNS]) * 4


async def test_both_lanes_together_leave_the_threads_of_inspections_alone(stage) -> None:
    here = stage(slots=2, room=Unlimited())
    await here.send(RUNS, 4)
    await here.send(AWAITED, 4)
    for _ in range(2):
        await here.next()
    await here.dispatcher.send(INSPECT, "ask", "reply")
    async with asyncio.timeout(_LONG):
        await here.answered.wait()
    assert here.started.empty()
    assert await here.dispatcher.backlog() == 6


async def test_an_echo_does_not_wait_for_a_backlog_of_held_runs(
    rows, workers, dispatcher, tmp_path
) -> None:
    """From rows to ends, with graph processes: gates are opened one by one."""
    workers.start(N_JOBS_PER_WORKER="2")
    gates = {}
    for number in range(30):
        gate = tmp_path / str(number)
        gates[await rows.submit(["await", str(gate)])] = gate
        await dispatcher.run(list(gates)[-1])
    first, second = list(gates)[:2]
    for run_id in (first, second):
        await rows.running(run_id)
    echo = await rows.submit(graph_id="echo")
    await dispatcher.run(echo, awaited=True)
    gates[first].touch()
    await rows.ended(first)
    # By now its message may have come a moment after the slot was taken: the next one is its own.
    gates[second].touch()
    assert (await rows.ended(echo))["status"] == "success"
    statuses = [await rows.status(run_id) for run_id in gates]
    assert statuses.count("pending") >= 26
    for gate in gates.values():
        gate.touch()
    for run_id in gates:
        assert (await rows.ended(run_id))["status"] == "success"
