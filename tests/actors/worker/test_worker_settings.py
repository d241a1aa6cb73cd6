"""What the worker is told, and what it refuses to be told."""

import asyncio
import tempfile

import pytest
from pydantic import ValidationError

from actors.batch import Batch
from actors.errors import WorkerSlotTaken
from actors.pool.backoff import Backoff
from actors.settings import WorkerSettings
from actors.worker_slot import WorkerSlot


def test_settings_come_from_the_environment_under_their_names(monkeypatch):
    monkeypatch.setenv("WORKER_COUNT", "3")
    monkeypatch.setenv("N_JOBS_PER_WORKER", "4")
    monkeypatch.setenv("REDIS_URL", "")
    monkeypatch.setenv("EXECUTOR_MAX_RSS_MB", "")
    settings = WorkerSettings()
    assert settings.slots == 12
    assert settings.redis_url is None
    assert settings.executor_max_rss_mb is None


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("HEARTBEAT_INTERVAL_SECONDS", "15", "less than half of LEASE_DURATION_SECONDS (30)"),
        ("REDIS_URL", "localhost:6379", "REDIS_URL has no scheme"),
        ("WORKER_COUNT", "0", "greater than or equal to 1"),
        ("N_JOBS_PER_WORKER", "many", "valid integer"),
        ("EXECUTOR_MAX_RUNS", "0", "greater than or equal to 1"),
        ("CANCEL_GRACE_SECONDS", "-1", "greater than 0"),
    ],
)
def test_nonsense_is_refused(monkeypatch, name, value, told):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError) as refused:
        WorkerSettings()
    assert told in str(refused.value)


def test_two_workers_of_a_host_never_have_one_slot():
    url = "postgresql://a-database-of-this-test"
    first, second = WorkerSlot(url), WorkerSlot(url)
    assert first.key != second.key
    assert first.owner.startswith(f"{first.key}/")
    with pytest.raises(WorkerSlotTaken, match="WORKER_SLOT"):
        WorkerSlot(url, first.name)
    elsewhere = WorkerSlot(url + "-of-its-own", first.name)
    first.release()
    again = WorkerSlot(url)
    assert again.key == first.key
    assert again.boot_id != first.boot_id
    for slot in (again, second, elsewhere):
        slot.release()


def test_a_machine_of_the_same_name_is_another_one(monkeypatch, tmp_path):
    """As of two containers: neither takes for its own what the other executes."""
    url = "postgresql://a-database-of-this-test"
    slots = []
    for name in ("one", "other", "one"):
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
        slots.append(WorkerSlot(url, "0"))
        if name == "one":
            slots[-1].release()
    one, other, again = slots
    assert one.key != other.key
    assert one.key == again.key
    other.release()


async def test_what_arrives_during_a_flush_goes_with_the_next():
    flushes, gate = [], asyncio.Event()

    async def flush(items):
        flushes.append(items)
        await gate.wait()
        return [item * 2 for item in items]

    batch = Batch(flush)
    first = asyncio.create_task(batch.submit(1))
    await asyncio.sleep(0)
    rest = [asyncio.create_task(batch.submit(item)) for item in (2, 3)]
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(first, *rest) == [2, 4, 6]
    assert flushes == [[1], [2, 3]]


async def test_a_flush_that_fails_fails_its_own_items_only():
    async def flush(items):
        if 1 in items:
            raise RuntimeError("no")
        return items

    batch = Batch(flush, limit=1)
    failed, fine = await asyncio.gather(batch.submit(1), batch.submit(2), return_exceptions=True)
    assert isinstance(failed, RuntimeError)
    assert fine == 2


def test_pauses_grow_stay_bounded_and_end_with_success():
    backoff = Backoff(first=1.0, most=8.0)
    assert backoff.pause() == 0
    for longest in (1, 2, 4, 8, 8, 8):
        backoff.failed()
        assert longest / 2 <= backoff.pause() <= longest
    backoff.worked()
    assert backoff.pause() == 0
