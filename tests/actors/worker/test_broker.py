"""The broker against a real Redis: taken only when there is room, at once, and never lost."""

import threading
import time

import dramatiq
import pytest
import redis

from actors.broker import WakingBroker
from actors.dispatch import NAMESPACE


class Slots:
    """``free`` slots; what was taken is given back by ``release``."""

    def __init__(self, free):
        self.lock = threading.Lock()
        self.free = free

    def reserve(self):
        with self.lock:
            if self.free == 0:
                return False
            self.free -= 1
            return True

    def release(self):
        with self.lock:
            self.free += 1


class Receiver:
    """A worker whose one actor notes what it gets, and returns when it is told to."""

    def __init__(self, redis_url, free=2, limit=8):
        self.broker = WakingBroker(redis_url)
        self.room = Slots(free)
        self.got = []
        self.arrived = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.may_end.set()
        self.broker.open_queues("runs", limit=limit, room=self.room)
        dramatiq.Actor(
            self.act,
            broker=self.broker,
            actor_name="runs",
            queue_name="runs",
            priority=0,
            options={},
        )
        self.worker = dramatiq.Worker(self.broker, worker_threads=limit)
        self.worker.start()

    def act(self, text):
        self.got.append(text)
        self.arrived.release()
        self.may_end.wait(30)
        self.room.release()
        self.broker.wake()

    def wait_for(self, count):
        for _ in range(count):
            assert self.arrived.acquire(timeout=60), f"got {self.got}"

    def stop(self):
        self.may_end.set()
        self.broker.drain()
        self.worker.stop(timeout=200)


@pytest.fixture
def receivers(redis_url):
    started = []

    def start(**more):
        started.append(Receiver(redis_url, **more))
        return started[-1]

    yield start
    for receiver in started:
        receiver.stop()


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url) as connection:
        yield connection


@pytest.fixture
def send(redis_url):
    broker = WakingBroker(redis_url)

    def enqueue(*texts):
        for text in texts:
            broker.enqueue(dramatiq.Message("runs", "runs", (text,), {}, {}))

    yield enqueue
    broker.client.close()


def waiting(client):
    return client.llen(f"{NAMESPACE}:runs")


def eventually(check, what):
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_messages_arrive_in_order_and_leave_nothing(receivers, send, client):
    receiver = receivers(free=1)
    send(*"abcdefgh")
    receiver.wait_for(8)
    assert receiver.got == list("abcdefgh")
    eventually(lambda: not client.hlen(f"{NAMESPACE}:runs.msgs"), "all are acknowledged")
    assert not client.keys(f"{NAMESPACE}:__acks__*")


def test_no_more_is_taken_than_there_is_room_for(receivers, send, client):
    receiver = receivers(free=2)
    receiver.may_end.clear()
    send(*"abcde")
    receiver.wait_for(2)
    time.sleep(0.3)
    assert receiver.got == ["a", "b"]
    assert waiting(client) == 3  # free for another worker
    other = receivers(free=3)
    other.wait_for(3)
    assert other.got == ["c", "d", "e"]


def test_a_freed_slot_takes_the_next_message_at_once(receivers, send):
    receiver = receivers(free=0)
    send("a")
    time.sleep(0.2)
    assert receiver.got == []
    receiver.room.release()
    receiver.broker.wake()
    receiver.wait_for(1)


def test_a_draining_worker_takes_nothing_but_says_that_it_lives(receivers, send, client):
    receiver = receivers()
    eventually(lambda: client.zcard(f"{NAMESPACE}:__heartbeats__"), "it has said that it lives")
    receiver.broker.drain()
    send("a")
    time.sleep(0.3)
    assert waiting(client) == 1
    client.delete(f"{NAMESPACE}:__heartbeats__")
    receiver.broker._beat_at = 0.0
    receiver.broker.wake()
    eventually(lambda: client.zcard(f"{NAMESPACE}:__heartbeats__"), "a drain is no death")


def test_consumers_outlive_every_connection(receivers, send, client):
    receiver = receivers(free=1)
    send("a")
    receiver.wait_for(1)
    for text in "bcd":
        client.client_kill_filter(_type="normal", skipme=True)
        send(text)
        receiver.wait_for(1)
    assert receiver.got == list("abcd")
    eventually(lambda: not client.hlen(f"{NAMESPACE}:runs.msgs"), "all are acknowledged")


def test_a_frozen_redis_is_only_a_pause(receivers, send, client):
    receiver = receivers()
    send("a")
    receiver.wait_for(1)
    client.execute_command("CLIENT", "PAUSE", "1500", "ALL")
    send("b")
    receiver.wait_for(1)


def test_a_message_that_makes_no_sense_costs_no_slot(receivers, send, client):
    receiver = receivers(free=1)
    for number, data in enumerate([b"{", b"null"]):
        client.hset(f"{NAMESPACE}:runs.msgs", str(number), data)
        client.rpush(f"{NAMESPACE}:runs", str(number))
    client.rpush(f"{NAMESPACE}:runs", "an id whose message is gone")
    send("a", "b")
    receiver.wait_for(2)
    assert receiver.got == ["a", "b"]


def test_what_a_dead_worker_had_taken_is_put_back_by_maintenance(redis_url, send, client):
    dead, living = WakingBroker(redis_url), WakingBroker(redis_url)
    living.open_queues("runs", limit=1)
    send("a")
    assert len(dead.do_fetch("runs", 1)) == 1
    long_ago = int(time.time() * 1000) - 10 * living.heartbeat_timeout
    client.zadd(f"{NAMESPACE}:__heartbeats__", {dead.broker_id: long_ago})
    living.maintain()
    assert waiting(client) == 1
    for broker in (dead, living):
        broker.client.close()


def test_an_idle_worker_asks_redis_for_little(receivers, client):
    receivers()
    eventually(lambda: "blmove" in {one["cmd"] for one in client.client_list()}, "it sleeps")
    before = client.info("stats")["total_commands_processed"]
    time.sleep(6)
    commands = client.info("stats")["total_commands_processed"] - before
    assert commands <= 12
