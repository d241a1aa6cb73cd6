"""How a worker stops taking messages: nothing in work is left, and nobody asleep is waited for."""

import asyncio
import uuid

import pytest
import redis.asyncio as redis

from actors.dispatch import RedisDispatcher
from actors.lanes import Unlimited
from actors.messages import Messages, Work

_LONG = 30.0


async def _nothing(*_):
    pass


@pytest.fixture
async def dispatcher(redis_url):
    dispatcher = RedisDispatcher(redis_url)
    yield dispatcher
    await dispatcher.close()


@pytest.fixture
async def client(redis_url):
    async with redis.Redis.from_url(redis_url) as client:
        yield client


def _messages(redis_url, perform=_nothing):
    messages = Messages(redis_url, Work(perform, _nothing, _nothing), Unlimited(), 2)
    messages.start()
    return messages


async def _asleep(client, redis_url):
    """Returns when the consumers of all four queues sleep in Redis."""
    database = redis_url.rpartition("/")[2]
    async with asyncio.timeout(_LONG):
        while True:
            clients = await client.client_list()
            if sum((one["cmd"], one["db"]) == ("blmove", database) for one in clients) == 4:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("awaited", [False, True])
async def test_who_sleeps_in_redis_is_not_waited_for(
    redis_url, client, dispatcher, awaited
) -> None:
    messages = _messages(redis_url)
    await _asleep(client, redis_url)
    await messages.stop(_LONG)
    assert messages.alive
    await dispatcher.run(uuid.uuid4(), awaited=awaited)  # wakes one, which takes nothing any more
    await asyncio.sleep(0.1)
    assert await dispatcher.backlog() == 1


@pytest.mark.parametrize("awaited", [False, True])
async def test_what_is_in_work_is_finished_and_acknowledged(
    redis_url, client, dispatcher, awaited
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def perform(run_id: uuid.UUID) -> None:
        begun.set()
        await may_end.wait()

    messages = _messages(redis_url, perform)
    await dispatcher.run(uuid.uuid4(), awaited=awaited)
    async with asyncio.timeout(_LONG):
        await begun.wait()
    stopping = asyncio.create_task(messages.stop(_LONG))
    await asyncio.sleep(0.1)
    assert not stopping.done()
    may_end.set()
    await stopping
    assert not await client.keys("callboard:*.msgs")
