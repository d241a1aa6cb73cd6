"""What a client of Redis opens, and how it waits."""

import asyncio

import pytest

from actors import redis_connections
from actors.redis_connections import MAX_CONNECTIONS


@pytest.mark.parametrize(("option", "most"), [("", MAX_CONNECTIONS), ("?max_connections=3", 3)])
async def test_a_burst_waits_for_a_few_connections(redis_url: str, option: str, most: int) -> None:
    """And leaves no more of them behind."""
    async with redis_connections.client(redis_url + option, 30.0) as client:
        await client.client_setname("burst")
        numbers = await asyncio.gather(*(client.incr("n") for _ in range(500)))
        assert sorted(numbers) == list(range(1, 501))
        database = redis_url.rsplit("/", 1)[1]
        mine = [one for one in await client.client_list() if one["db"] == database]
        assert len(mine) <= most
