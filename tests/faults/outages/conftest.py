"""Topologies on servers of their own, which tests may stop."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from persistence import migrate
from tests.faults.outages.services import Service, own_postgres, own_valkey


@pytest.fixture(scope="module")
def services_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cb-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def postgres(services_folder: Path) -> Iterator[Service]:
    service = own_postgres(services_folder)
    yield service
    service.thaw()
    service.stop()


@pytest.fixture(scope="module")
def valkey(services_folder: Path) -> Iterator[Service]:
    service = own_valkey(services_folder)
    yield service
    service.thaw()
    service.stop()


@pytest.fixture(scope="module")
def module_database_url(postgres: Service) -> str:
    migrate.upgrade(postgres.url)
    return postgres.url


@pytest.fixture(scope="module")
def module_redis_url(valkey: Service) -> str:
    return f"{valkey.url}/0"


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Quick to notice, with leases that outlive the outages."""
    return {
        "WORKER_COUNT": "2",
        "N_JOBS_PER_WORKER": "4",
        "CANCEL_GRACE_SECONDS": "1",
        "POSTGRES_POLL_INTERVAL_SECONDS": "1",
        "REAPER_INTERVAL_SECONDS": "2",
        "HEARTBEAT_INTERVAL_SECONDS": "2",
    }
