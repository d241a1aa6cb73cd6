"""How Postgres is reached: one frozen value, read once at start and passed in."""

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


def _plain_scheme(url: object) -> object:
    """Takes SQLAlchemy's ``postgresql+driver://`` for what its writer meant; leaves the rest alone.

    Nothing else of the URL is parsed or rebuilt: libpq reads it, so sslmode, Unix sockets, several
    hosts and percent-encoded passwords work as its manual says.
    """
    if isinstance(url, str) and url.startswith("postgresql+"):
        return "postgresql://" + url.partition("://")[2]
    return url


def _none_word(value: object) -> object:
    return None if isinstance(value, str) and value.strip().lower() in {"", "none"} else value


class DatabaseSettings(BaseSettings):
    """Environment: the field's name in capitals behind ``DATABASE_``."""

    model_config = SettingsConfigDict(env_prefix="DATABASE_", frozen=True, extra="ignore")

    url: Annotated[str, BeforeValidator(_plain_scheme)] = Field(min_length=1, repr=False)
    """What libpq accepts: ``postgres://…``, ``postgresql://…`` or ``host=… dbname=…``."""
    migration_url: Annotated[str | None, BeforeValidator(_plain_scheme)] = Field(None, repr=False)
    """A direct way around a transaction pooler, for migrations; default: ``url``."""
    pool_min: int = Field(1, ge=0, le=1000)
    """Connections that each process keeps open."""
    pool_max: int = Field(8, ge=1, le=1000)
    """Connections that each process opens at most."""
    prepare_threshold: Annotated[int | None, BeforeValidator(_none_word)] = Field(0, ge=0)
    """Prepare a statement after so many uses; ``none`` behind a pooler in transaction mode."""
    connect_timeout_seconds: int = Field(5, ge=1, le=300)
    """How long connecting may take."""
    pool_timeout_seconds: float = Field(5.0, gt=0, le=300)
    """How long a caller waits for a free connection before it is told ``Unavailable``."""
    statement_timeout_seconds: float = Field(30.0, ge=0, le=3600)
    """How long one statement may take, and a transaction rest; 0 for no limit. The server is not
    told when ``prepare_threshold`` is ``none``: behind a pooler it would reach somebody else's
    session. There the connection is given up."""
    unacknowledged_timeout_seconds: float = Field(10.0, gt=0, le=300)
    """After so long without an acknowledgement from the network the connection counts as dead."""

    @model_validator(mode="after")
    def _pool_bounds(self) -> "DatabaseSettings":
        if self.pool_min > self.pool_max:
            raise ValueError(
                f"DATABASE_POOL_MIN is {self.pool_min}, DATABASE_POOL_MAX is {self.pool_max}:"
                " expected the minimum to be at most the maximum"
            )
        return self
