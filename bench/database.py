"""A database to measure in."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg

from persistence import migrate


@contextmanager
def fresh_database(server_url: str) -> Iterator[str]:
    """A fresh, migrated database on the server, dropped at the end."""
    name = f"callboard_bench_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
        try:
            url = urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
            migrate.upgrade(url)
            yield url
        finally:
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
