"""The store's tables and functions: set up once, refused with a sentence, kept by upgrades."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from callboard import schema
from callboard.config import load_project
from callboard.errors import StartError
from persistence import migrate, store_tables
from persistence.errors import IndexRefused
from persistence.settings import DatabaseSettings


@pytest.fixture
def powerless(postgres_server: str) -> Iterator[str]:
    """A user that may not create extensions."""
    name = f"powerless_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f'CREATE ROLE "{name}"')
        yield name
        admin.execute(f'DROP ROLE "{name}"')


def test_vectors_are_there_when_an_index_is_configured(database_url: str) -> None:
    assert migrate.is_current(database_url)
    assert not migrate.is_current(database_url, 8)
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT to_regclass('store_vectors')").fetchone() == (None,)
        extensions = "SELECT FROM pg_extension WHERE extname = 'vector'"
        assert connection.execute(extensions).fetchone() is None
    with ThreadPoolExecutor() as executor:  # as processes start: all at once
        list(
            executor.map(
                lambda _: migrate.upgrade(database_url, vector_dims=8),
                range(4),
            )
        )
    assert migrate.is_current(database_url, 8)
    assert migrate.is_current(database_url)


def test_other_dimensions_are_refused(database_url: str) -> None:
    migrate.upgrade(database_url, vector_dims=8)
    with pytest.raises(IndexRefused, match=r"dims is 9, .* embeddings of 8"):
        migrate.upgrade(database_url, vector_dims=9)
    assert migrate.is_current(database_url, 8)
    # A person is told so in one sentence.
    project = load_project(Path(__file__).parents[1] / "graphs" / "store")
    with pytest.raises(StartError, match=r"dims is 256, .* embeddings of 8"):
        schema.upgrade_when_reachable(DatabaseSettings(url=database_url), project.store)


def test_who_may_not_create_the_extension_is_told_what_to_do(
    database_url: str, powerless: str
) -> None:
    with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as connection:
        connection.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA public TO "{powerless}"')
        connection.execute(f'SET ROLE "{powerless}"')
        with pytest.raises(IndexRefused, match="CREATE EXTENSION vector"):
            store_tables._set_up_vectors(connection, 8)
        connection.execute("RESET ROLE")
        connection.execute(f'DROP OWNED BY "{powerless}"')


def test_an_older_version_is_upgraded_with_its_items(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("DROP FUNCTION store_get(text, text, boolean)")
        connection.execute("ALTER TABLE store ALTER COLUMN ttl_minutes TYPE integer")
        connection.execute("INSERT INTO store (prefix, key, value) VALUES ('a.b', 'k', '{}')")
        assert not migrate.is_current(database_url)
        migrate.upgrade(database_url)
        assert migrate.is_current(database_url)
        found = connection.execute("SELECT key FROM store_get('a.b', 'k', true)").fetchall()
        assert found == [("k",)]


def test_a_namespace_is_found_by_its_index(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO store (prefix, key, value)"
            " SELECT 'users.' || n % 1000 || '.notes', n::text, '{}'"
            " FROM generate_series(1, 20000) AS n"
        )
        connection.execute("ANALYZE store")
        plan = connection.execute(
            "EXPLAIN SELECT key FROM store_found('users.77', '{}') ORDER BY updated_at DESC LIMIT 9"
        ).fetchall()
        assert "Seq Scan" not in str(plan)
        assert "store_prefix_idx" in str(plan)
