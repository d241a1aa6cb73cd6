"""Brings the database's schema up to date before anything uses it."""

import time

import structlog

from callboard.errors import StartError
from persistence import migrate
from persistence.errors import IndexRefused, Unavailable
from persistence.settings import DatabaseSettings
from persistence.store import StoreConfig

log = structlog.get_logger()

_SILENT_SECONDS = 3.0
"""An embedded database is expected to take so long: no reason for a warning."""


def upgrade(settings: DatabaseSettings, store: StoreConfig) -> None:
    """Makes the schema what this version and the store need. Raises StartError, Unavailable."""
    try:
        migrate.upgrade(settings.migration_url or settings.url, vector_dims=store.vector_dims)
    except IndexRefused as error:
        raise StartError(str(error)) from None


def upgrade_when_reachable(
    settings: DatabaseSettings, store: StoreConfig, patience: float = float("inf")
) -> None:
    """Upgrades as soon as the database can be reached; gives up after ``patience`` seconds."""
    begun, pause = time.monotonic(), 0.1
    while True:
        try:
            return upgrade(settings, store)
        except Unavailable as error:
            waited = time.monotonic() - begun
            if waited > patience:
                return
            if waited > _SILENT_SECONDS:
                log.warning("the database is not available, trying again", reason=str(error))
            time.sleep(pause)
            pause = min(pause * 2, 2.0)
