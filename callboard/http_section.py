"""The ``http`` section of ``langgraph.json``: what is served where, to whom, and by whom else.

"http": {
    "app": "./webapp.py:app",
    "middleware_order": "middleware_first",
    "enable_custom_route_auth": true,
    "mount_prefix": "/api",
    "cors": {"allow_origins": ["https://example.com"], "expose_headers": ["x-mine"]},
    "configurable_headers": {"includes": ["x-tenant-*"], "excludes": ["*token*"]},
    "logging_headers": {"includes": ["x-request-id"]},
    "disable_store": true
}
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from callboard.section_models import Broken, Warn, validated, warn_of_unknown
from gateway.http_options import CorsOptions, HeaderPatterns, HttpOptions

_PARTS: Mapping[str, type[BaseModel]] = {
    "cors": CorsOptions,
    "configurable_headers": HeaderPatterns,
    "logging_headers": HeaderPatterns,
}
_OLDER = {"include": "includes", "exclude": "excludes"}
"""How the documentation once called the keys of header patterns."""


def read(
    section: Mapping[str, Any] | None,
    target: Callable[[str, object], str],
    broken: Broken,
    warn: Warn,
) -> HttpOptions:
    """What the section means. ``target`` checks what names a variable in a file or a module.

    Raises what ``broken`` makes.
    """
    given = {key: value for key, value in (section or {}).items() if value is not None}
    if "app" in given:
        target("http.app", given["app"])
    for name in ("configurable_headers", "logging_headers"):
        if isinstance(patterns := given.get(name), dict):
            given[name] = {_OLDER.get(key, key): value for key, value in patterns.items()}
    warn_of_unknown(HttpOptions, "http", given, warn)
    for name, model in _PARTS.items():
        if isinstance(part := given.get(name), dict):
            warn_of_unknown(model, f"http.{name}", part, warn)
            given[name] = {key: value for key, value in part.items() if value is not None}
    options = validated(HttpOptions, "http", given, broken)
    cors = options.cors
    if cors.allow_credentials and "*" in (cors.allow_origins or ["*"]):
        warn("http.cors.allow_credentials", "lets pages of every origin call with their cookies")
    return options
