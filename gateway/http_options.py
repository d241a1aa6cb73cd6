"""``http`` of langgraph.json: what is served where, to whom, and what of headers is told on."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

RUN_HEADER = "X-Callboard-Run"
"""By which the code of a run shows whose it is; see ``gateway.auth.credential``."""

_OPTIONS = ConfigDict(frozen=True, strict=True, extra="ignore")


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"expected a regular expression ({error})") from None
    return text


class CorsOptions(BaseModel):
    """Which pages of other origins may call. What is left out stays as it is without the section.

    expose_headers: added to those that clients need.
    """

    model_config = _OPTIONS

    allow_origins: list[str] | None = None
    allow_origin_regex: Annotated[str, AfterValidator(_pattern)] | None = None
    allow_methods: list[str] | None = None
    allow_headers: list[str] | None = None
    allow_credentials: bool = False
    expose_headers: list[str] = []
    max_age: Annotated[int, Field(ge=0)] = 600


class HeaderPatterns(BaseModel):
    """Which headers runs, or the log, are told of: names, with ``*`` for any letters.

    None without a section. Never the credential that stands for another run.
    """

    model_config = _OPTIONS

    includes: list[str] = []
    excludes: list[str] = []

    def of(self, headers: list[tuple[str, str]]) -> dict[str, str]:
        """Those of the headers that are told on, by name in small letters."""
        return {
            name.lower(): value
            for name, value in headers
            if _matches(name, self.includes) and not _matches(name, [*self.excludes, RUN_HEADER])
        }


def _matches(name: str, patterns: list[str]) -> bool:
    return any(
        re.fullmatch(".*".join(map(re.escape, pattern.lower().split("*"))), name.lower())
        for pattern in patterns
    )


class HttpOptions(BaseModel):
    """The section's keys, in the LangGraph CLI's words."""

    model_config = _OPTIONS

    app: str | None = None
    middleware_order: Literal["auth_first", "middleware_first"] | None = None
    enable_custom_route_auth: bool = False
    mount_prefix: str = ""
    cors: CorsOptions = CorsOptions()
    configurable_headers: HeaderPatterns = HeaderPatterns()
    logging_headers: HeaderPatterns = HeaderPatterns()
    disable_assistants: bool = False
    disable_threads: bool = False
    disable_runs: bool = False
    disable_store: bool = False
    disable_meta: bool = False
    disable_mcp: bool = False
    disable_a2a: bool = False
    disable_ui: bool = False
    disable_webhooks: bool = False

    @field_validator("mount_prefix", mode="after")
    @classmethod
    def _prefix(cls, prefix: str) -> str:
        if prefix.strip("/") and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+/?", prefix):
            raise ValueError('expected a path like "/api"')
        return prefix.rstrip("/")

    @field_validator("cors", "configurable_headers", "logging_headers", mode="before")
    @classmethod
    def _left_out(cls, section: Any) -> Any:
        return {} if section is None else section

    def serves(self, path: str) -> bool:
        """Whether the route with this path (without the prefix) is not switched off."""
        return not any(getattr(self, f"disable_{name}") for name in _groups(path))


_META = frozenset({"openapi.json", "info", "metrics", "docs"})
_RESOURCES = frozenset({"assistants", "threads", "runs", "store", "mcp", "a2a", "ui"})


def _groups(path: str) -> list[str]:
    """The switches that a route has."""
    first, *rest = path.strip("/").split("/")
    if first in _META:
        return ["meta"]
    if path.startswith("/.well-known/agent"):
        return ["a2a"]
    if first == "threads" and ("runs" in rest or "commands" in rest):  # run.start is one
        return ["threads", "runs"]
    return [first] if first in _RESOURCES else []
