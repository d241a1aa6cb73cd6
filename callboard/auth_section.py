"""The ``auth`` section of ``langgraph.json``: who says who calls and what they may do.

"auth": {"path": "./security.py:auth", "disable_studio_auth": true}
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Broken = Callable[[str, object, str], Exception]
"""Makes the error of a key: key, what came, what was expected."""

Studio = Literal["here", "anywhere", "nobody"]

KEYS = frozenset({"path", "disable_studio_auth", "openapi", "cache"})


@dataclass(frozen=True, slots=True)
class AuthSection:
    """Where the ``Auth`` object is, and who is let in as LangGraph Studio without asking it.

    studio: Studio sends no credential that could be checked here. So, unless the project says
    something, only a browser on the server's machine is believed; ``disable_studio_auth`` false
    believes everybody, true nobody.
    openapi: the security part of the OpenAPI document.
    """

    path: str
    studio: Studio
    openapi: Mapping[str, Any]


def read(
    section: Mapping[str, Any] | None, target: Callable[[str, object], str], broken: Broken
) -> AuthSection | None:
    """What the section means; None without one.

    target: checks what names a variable in a file or a module. Raises what ``broken`` makes.
    """
    if section is None:
        return None
    switch = section.get("disable_studio_auth")
    if switch is not None and not isinstance(switch, bool):
        raise broken("auth.disable_studio_auth", switch, "true or false")
    openapi = section.get("openapi", {})
    if not isinstance(openapi, dict):
        raise broken("auth.openapi", openapi, "an object")
    studio: Studio = "here" if switch is None else "nobody" if switch else "anywhere"
    return AuthSection(target("auth.path", section.get("path")), studio, openapi)
