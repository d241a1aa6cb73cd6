"""The long-term store's tables are LangGraph's; what reading and writing them means is here, once.

``store``          one row an item: ``prefix`` is its namespace joined by dots; ``expires_at``,
                   ``ttl_minutes`` its time to live, if it has one
``store_vectors``  embeddings of an item's texts; there only when the project configures an index

Two programs use the store, the gateway and the graphs, and neither may import the other. So the
meaning is kept in functions of the database, which both call:

    store_get        an item that has not expired; may begin its time to live anew
    store_put        writes an item; one that is overwritten keeps its time of creation
    store_found      the items below a namespace that match a filter
    store_matches    whether a value is what a filter wants
    store_order      -1, 0 or 1; null for values that have no order
    store_number     the number that a text holds, or null
    store_refresh    begins the time to live of items anew
    store_namespaces the namespaces that match
"""

from typing import Any

import psycopg
from langgraph.store.postgres import PostgresStore
from psycopg import Connection
from psycopg.rows import DictRow

from persistence.errors import IndexRefused

_VERSION = "callboard 2"
"""Set last, as the comment of a function; grows with every change of ``_FUNCTIONS``."""

# LangGraph's whole minutes would let an item of half a minute live one, or none. Its own statements
# read either.
_FRACTIONS = "ALTER TABLE store ALTER COLUMN ttl_minutes TYPE double precision"

_FUNCTIONS = r"""
CREATE OR REPLACE FUNCTION store_get(at text, named text, refresh boolean) RETURNS SETOF store
LANGUAGE sql VOLATILE AS $$
    WITH refreshed AS (
        UPDATE store SET expires_at = now() + ttl_minutes * interval '1 minute'
        WHERE prefix = at AND key = named AND refresh
          AND ttl_minutes IS NOT NULL AND expires_at > now()
    )
    SELECT * FROM store
    WHERE prefix = at AND key = named AND (expires_at IS NULL OR expires_at > now())
$$;

CREATE OR REPLACE FUNCTION store_put(at text, named text, content jsonb, ttl double precision)
RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO store AS old
        (prefix, key, value, created_at, updated_at, expires_at, ttl_minutes)
    VALUES (at, named, content, clock_timestamp(), clock_timestamp(),
        now() + ttl * interval '1 minute', ttl)
    ON CONFLICT (prefix, key) DO UPDATE SET
        value = excluded.value,
        -- Who overwrites what has expired makes something new.
        created_at = CASE WHEN old.expires_at <= now() THEN excluded.created_at
            ELSE old.created_at END,
        updated_at = excluded.updated_at,
        expires_at = excluded.expires_at,
        ttl_minutes = excluded.ttl_minutes
$$;

CREATE OR REPLACE FUNCTION store_number(written jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT jsonb_path_query_first(written, 'strict $.double()', '{}', true)
$$;

-- Both are single expressions: Postgres puts them in the place of the call.
CREATE OR REPLACE FUNCTION store_order(one jsonb, other jsonb) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE jsonb_typeof(one) || jsonb_typeof(other)
        WHEN 'numbernumber' THEN (one > other)::int - (one < other)::int
        WHEN 'stringstring' THEN ((one #>> '{}') COLLATE "C" > (other #>> '{}'))::int
            - ((one #>> '{}') COLLATE "C" < (other #>> '{}'))::int
        WHEN 'stringnumber' THEN (store_number(one) > other)::int - (store_number(one) < other)::int
        WHEN 'numberstring' THEN (one > store_number(other))::int - (one < store_number(other))::int
    END
$$;

-- Made of expressions that PL/pgSQL evaluates without a query, where it matters: it is called for
-- every row of a search.
CREATE OR REPLACE FUNCTION store_matches(given jsonb, wanted jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    name text;
    test jsonb;
BEGIN
    given := coalesce(given, 'null');
    CASE jsonb_typeof(wanted)
        WHEN 'object' THEN
            -- An object that has an operator has nothing else: callers see to that.
            IF wanted ?| ARRAY['$eq', '$ne', '$gt', '$gte', '$lt', '$lte'] THEN
                RETURN ((NOT wanted ? '$eq' OR given = wanted -> '$eq')
                    AND (NOT wanted ? '$ne' OR given <> wanted -> '$ne')
                    AND (NOT wanted ? '$gt' OR store_order(given, wanted -> '$gt') > 0)
                    AND (NOT wanted ? '$gte' OR store_order(given, wanted -> '$gte') >= 0)
                    AND (NOT wanted ? '$lt' OR store_order(given, wanted -> '$lt') < 0)
                    AND (NOT wanted ? '$lte' OR store_order(given, wanted -> '$lte') <= 0))
                    IS TRUE;
            END IF;
            IF jsonb_typeof(given) <> 'object' THEN
                RETURN false;
            END IF;
            FOR name, test IN SELECT * FROM jsonb_each(wanted) LOOP
                IF NOT store_matches(given -> name, test) THEN
                    RETURN false;
                END IF;
            END LOOP;
            RETURN true;
        WHEN 'array' THEN
            IF jsonb_typeof(given) <> 'array' THEN
                RETURN false;
            END IF;
            IF jsonb_array_length(given) <> jsonb_array_length(wanted) THEN
                RETURN false;
            END IF;
            FOR at IN 0 .. jsonb_array_length(wanted) - 1 LOOP
                IF NOT store_matches(given -> at, wanted -> at) THEN
                    RETURN false;
                END IF;
            END LOOP;
            RETURN true;
        ELSE
            RETURN given = wanted;
    END CASE;
END
$$;

-- '/' is the character after '.': the range holds all below the namespace, nothing beside it.
CREATE OR REPLACE FUNCTION store_found(under text, wanted jsonb) RETURNS SETOF store
LANGUAGE sql STABLE AS $$
    SELECT * FROM store
    WHERE (under = '' OR prefix = under
            OR (prefix OPERATOR(pg_catalog.~>=~) (under || '.')
                AND prefix OPERATOR(pg_catalog.~<~) (under || '/')))
      AND (expires_at IS NULL OR expires_at > now())
      AND NOT EXISTS (
        SELECT FROM jsonb_each(wanted) AS field
        WHERE NOT store_matches(store.value -> field.key, field.value)
      )
$$;

CREATE OR REPLACE FUNCTION store_refresh(prefixes text[], keys text[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE store SET expires_at = now() + ttl_minutes * interval '1 minute'
    FROM unnest(prefixes, keys) AS read (at, named)
    WHERE prefix = at AND key = named AND ttl_minutes IS NOT NULL AND expires_at > now()
$$;

CREATE OR REPLACE FUNCTION store_namespaces(first text[], last text[], max_depth integer)
RETURNS SETOF text[]
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT labels[:coalesce(max_depth, cardinality(labels))]
    FROM (
        SELECT DISTINCT string_to_array(prefix, '.') AS labels FROM store
        WHERE expires_at IS NULL OR expires_at > now()
    ) AS namespaces
    WHERE cardinality(labels) >= greatest(cardinality(first), cardinality(last))
      AND NOT EXISTS (
        SELECT FROM unnest(first) WITH ORDINALITY AS wanted (label, at)
        WHERE label NOT IN ('*', labels[at])
      )
      AND NOT EXISTS (
        SELECT FROM unnest(last) WITH ORDINALITY AS wanted (label, at)
        WHERE label NOT IN ('*', labels[cardinality(labels) - cardinality(last) + at])
      )
$$;
"""


def set_up(connection: Connection[DictRow], vector_dims: int | None) -> None:
    """Creates or upgrades the store's tables and functions. The caller holds the lock.

    vector_dims: length of the embeddings; None: no index. Raises IndexRefused when the database
    cannot have this index.
    """
    PostgresStore(connection).setup()
    if vector_dims is not None:
        _set_up_vectors(connection, vector_dims)
    with connection.transaction():
        connection.execute(_FRACTIONS)
        connection.execute(_FUNCTIONS)
        comment = "COMMENT ON FUNCTION store_get(text, text, boolean) IS"
        connection.execute(f"{comment} '{_VERSION}'")


def is_current(connection: Connection[DictRow], vector_dims: int | None) -> bool:
    """Whether all is as ``set_up`` would leave it."""
    found = connection.execute(
        """SELECT obj_description(to_regprocedure('store_get(text,text,boolean)'), 'pg_proc')
            AS version, (SELECT max(v) FROM store_migrations) AS tables"""
    ).fetchone()
    if found != {"version": _VERSION, "tables": len(PostgresStore.MIGRATIONS) - 1}:
        return False
    return vector_dims is None or _dims(connection) == vector_dims


def _set_up_vectors(connection: Connection[DictRow], dims: int) -> None:
    if (present := _dims(connection)) is not None and present != dims:
        raise IndexRefused(
            f"store.index.dims is {dims}, but the database holds embeddings of {present}; to embed"
            " anew: drop the tables store_vectors and vector_migrations, then put the items again"
        )
    available = "SELECT FROM pg_available_extensions WHERE name = 'vector'"
    if connection.execute(available).fetchone() is None:
        raise IndexRefused(
            "store.index needs the extension pgvector, which this Postgres does not have"
        )
    index: Any = {
        "dims": dims,
        "embed": _embed_nothing,
        # Without an approximate index: with a filter or a namespace beside it Postgres could not
        # use one, and it ends at 2000 dimensions.
        "ann_index_config": {"kind": "flat"},
    }
    try:
        PostgresStore(connection, index=index).setup()
    except psycopg.errors.InsufficientPrivilege as error:
        raise IndexRefused(
            "store.index needs the extension pgvector, and this user may not create it: have an"
            f' administrator run "CREATE EXTENSION vector" ({str(error).strip()})'
        ) from error


def _dims(connection: Connection[DictRow]) -> int | None:
    """How long the embeddings are that the database holds; None when it holds none."""
    row = connection.execute(
        """SELECT atttypmod AS dims FROM pg_attribute
        WHERE attrelid = to_regclass('store_vectors') AND attname = 'embedding'"""
    ).fetchone()
    return None if row is None else int(row["dims"])


def _embed_nothing(texts: Any) -> list[list[float]]:
    """What LangGraph wants to be given; setting up embeds nothing."""
    return []
