"""Which lane a run's message takes: a client that waits for a run is told so by how it was made."""

import asyncio

import pytest

from actors.dispatch import AWAITED, RUNS


@pytest.mark.parametrize("place", ["", "/threads/{}"])
@pytest.mark.parametrize(("form", "lane"), [("", RUNS), ("/wait", AWAITED), ("/stream", AWAITED)])
async def test_a_run_that_a_client_waits_for_takes_its_own_lane(
    client, stage, place, form, lane
) -> None:
    path = f"{place.format(await client.thread())}/runs{form}"
    asking = asyncio.create_task(client.post(path, {"assistant_id": "agent"}))
    run_id = await stage.next_message()
    assert stage.lane == lane
    await stage.perform(run_id, values={})
    assert (await asking).status == 200


async def test_a_batch_is_the_backgrounds(client, stage) -> None:
    await client.post("/runs/batch", [{"assistant_id": "agent"}])
    await stage.next_message()
    assert stage.lane == RUNS
