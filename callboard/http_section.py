"""The ``http`` section of ``langgraph.json``: what is served where, to whom, and by whom else.

"http": {
    "app": "./webapp.py:app",
    "middleware_order": "middleware_first",
    "enable_custom_route_auth": true,
    "mount_prefix": "/api",
    "cors": {"allow_origins": ["https://example.com"], "expose_headers": ["x-mine"]},
    "configurable_headers": {"includes": ["x-tenant-*"], "excludes": ["*token*"]},
    "disable_store": true
}
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from gateway.http_options import CorsOptions, HeaderPatterns, HttpOptions

Broken = Callable[[str, object, str], Exception]
"""Makes the error of a key: key, what came, what was expected."""

_PARTS: Mapping[str, type[BaseModel]] = {
    "cors": CorsOptions,
    "configurable_headers": HeaderPatterns,
}
_OLDER = {"include": "includes", "exclude": "excludes"}
"""How the documentation once called the keys of header patterns."""


def read(
    section: Mapping[str, Any] | None,
    target: Callable[[str, object], str],
    broken: Broken,
    warn: Callable[[str, str], None],
) -> HttpOptions:
    """What the section means. ``target`` checks what names a variable in a file or a module.

    Raises what ``broken`` makes.
    """
    given = {key: value for key, value in (section or {}).items() if value is not None}
    if given.pop("logging_headers", None) is not None:
        warn("http.logging_headers", "no headers are logged here, ignored")
    if "app" in given:
        target("http.app", given["app"])
    patterns = given.get("configurable_headers")
    if isinstance(patterns, dict):
        given["configurable_headers"] = {
            _OLDER.get(key, key): value for key, value in patterns.items()
        }
    _warn_of_unknown("http", given, HttpOptions, warn)
    for name, model in _PARTS.items():
        if isinstance(part := given.get(name), dict):
            _warn_of_unknown(f"http.{name}", part, model, warn)
            given[name] = {key: value for key, value in part.items() if value is not None}
    try:
        options = HttpOptions.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in ("http", *problem["loc"]))
        raise broken(key, problem["input"], _expected(problem["msg"])) from None
    cors = options.cors
    if cors.allow_credentials and "*" in (cors.allow_origins or ["*"]):
        warn("http.cors.allow_credentials", "lets pages of every origin call with their cookies")
    return options


def _warn_of_unknown(
    key: str, part: Mapping[str, Any], model: type[BaseModel], warn: Callable[[str, str], None]
) -> None:
    for name in sorted(part.keys() - model.model_fields.keys()):
        warn(f"{key}.{name}", "unknown key, ignored")


def _expected(text: str) -> str:
    """Pydantic's sentence as the end of ours."""
    for start in ("Value error, expected ", "Input should be "):
        text = text.removeprefix(start)
    return text
