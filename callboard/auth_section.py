"""The ``auth`` section of ``langgraph.json``: who says who calls and what they may do.

"auth": {
    "path": "./security.py:auth",
    "disable_studio_auth": true,
    "cache": {"cache_keys": ["x-tenant"], "ttl_seconds": 60, "max_size": 1000}
}
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from callboard.section_models import Broken, Warn, validated, warn_of_unknown
from gateway.auth.cache import CacheOptions

Studio = Literal["here", "anywhere", "nobody"]

_KEYS = frozenset({"path", "disable_studio_auth", "openapi", "cache"})


@dataclass(frozen=True, slots=True)
class AuthSection:
    """Where the ``Auth`` object is, and who is let in as LangGraph Studio without asking it.

    studio: Studio sends no credential that could be checked here. So, unless the project says
    something, only a browser on the server's machine is believed; ``disable_studio_auth`` false
    believes everybody, true nobody.
    openapi: the security part of the OpenAPI document.
    cache: how long whoever was authenticated is known without asking; None: not at all.
    """

    path: str
    studio: Studio
    openapi: Mapping[str, Any]
    cache: CacheOptions | None = None


def read(
    section: Mapping[str, Any] | None,
    target: Callable[[str, object], str],
    broken: Broken,
    warn: Warn,
) -> AuthSection | None:
    """What the section means; None without one.

    target: checks what names a variable in a file or a module. Raises what ``broken`` makes.
    """
    if section is None:
        return None
    for name in sorted(section.keys() - _KEYS):
        warn(f"auth.{name}", "unknown key, ignored")
    switch = section.get("disable_studio_auth")
    if switch is not None and not isinstance(switch, bool):
        raise broken("auth.disable_studio_auth", switch, "true or false")
    openapi = section.get("openapi", {})
    if not isinstance(openapi, dict):
        raise broken("auth.openapi", openapi, "an object")
    studio: Studio = "here" if switch is None else "nobody" if switch else "anywhere"
    path, cache = target("auth.path", section.get("path")), section.get("cache")
    if cache is None:
        return AuthSection(path, studio, openapi)
    if isinstance(cache, dict):
        cache = {key: value for key, value in cache.items() if value is not None}
        warn_of_unknown(CacheOptions, "auth.cache", cache, warn)
    options = validated(CacheOptions, "auth.cache", cache, broken)
    if not options.cache_keys:
        # Nothing says which headers the handler looks at: two callers could be taken for one.
        warn("auth.cache", "names no cache_keys, ignored")
        return AuthSection(path, studio, openapi)
    return AuthSection(path, studio, openapi, options)
