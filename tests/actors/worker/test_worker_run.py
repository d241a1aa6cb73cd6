"""The first whole run: row → message → lease → graph process → events → settled row → end event."""

import redis.asyncio

from actors.child.event_names import END_EVENT, FIELD_ATTEMPT, FIELD_DATA, FIELD_NAME, events_key
from actors.dispatch import RedisDispatcher
from persistence import runs
from persistence.lifecycle import CancelAction
from tests.actors.worker.conftest import eventually


async def test_a_run_goes_from_its_row_to_its_end(rows, workers, redis_url):
    workers.start()
    run_id = await rows.submit(["sleep", 0.01], ["spin", 0.01])
    dispatcher = RedisDispatcher(redis_url)
    await dispatcher.run(run_id)

    row = await rows.ended(run_id)

    assert (row["status"], row["attempt"], row["claimed_by"]) == ("success", 1, None)
    assert row["output"]["done"] == ["0:sleep", "1:spin"]
    thread = await rows.thread(run_id)
    assert (thread["status"], thread["values"]["done"]) == ("idle", ["0:sleep", "1:spin"])
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        while True:
            entries = await client.xrange(events_key(str(run_id)))
            if entries and entries[-1][1][FIELD_NAME] == END_EVENT.encode():
                break
        names = [entry[FIELD_NAME] for _, entry in entries]
        assert names[0] == b"metadata"
        assert b"values" in names
        assert entries[-1][1][FIELD_DATA] == b'{"status":"success"}'
        assert {entry[FIELD_ATTEMPT] for _, entry in entries} == {b"1"}
        # The message is acknowledged: nothing is left of it.
        while await client.hlen("callboard:runs.msgs"):
            pass
    await dispatcher.close()


async def test_what_a_stopped_step_has_finished_is_there_for_the_next_input(
    rows, workers, redis_url, tmp_path
):
    """Of two nodes side by side one was done when the run was cancelled."""
    workers.start()
    dispatcher = RedisDispatcher(redis_url)

    async def submit(*script, **more):
        run_id = await rows.submit(*script, graph_id="beside", **more)
        await dispatcher.run(run_id)
        return run_id

    stopped = await submit(["await", str(tmp_path / "never")])
    thread_id = await rows.thread_of(stopped)
    finished = "SELECT 1 FROM checkpoint_writes WHERE thread_id = %s AND channel = 'done'"
    await eventually(lambda: rows.db.fetch_one(finished, [str(thread_id)]), "one is done")
    await runs.request_cancel(rows.db, thread_id, stopped, CancelAction.INTERRUPT)
    await rows.ended(stopped)
    thread = await rows.thread(stopped)
    assert (thread["status"], thread["values"]["done"]) == ("interrupted", ["quick"])

    following = await rows.ended(await submit(["sleep", 0], thread_id=thread_id))
    assert following["output"]["done"] == ["quick", "quick", "slow"]
    await dispatcher.close()
