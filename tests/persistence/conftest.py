"""A pool on a fresh database."""

from collections.abc import AsyncIterator

import pytest

from persistence.engine import Database
from persistence.settings import DatabaseSettings


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    async with Database(DatabaseSettings(url=database_url, pool_max=10)) as database:
        yield database
