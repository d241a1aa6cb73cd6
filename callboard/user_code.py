"""What of the project's code the gateway runs: its ``Auth`` object and its own application.

Imported once, when the gateway starts; what is broken keeps it from starting. Graphs are never
imported for it.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.child import modules
from callboard.auth_section import Studio
from callboard.config import Project
from callboard.errors import StartError
from gateway.asgi import Asgi
from gateway.auth.access import (
    Access,
    InvalidAuth,
    StudioPolicy,
    studio_from_anywhere,
    studio_from_here,
)

_OUR_NAMES = ("gateway", "persistence", "callboard")
_OURS = Path(__file__).resolve().parents[1]
_STUDIO: dict[Studio, StudioPolicy | None] = {
    "here": studio_from_here,
    "anywhere": studio_from_anywhere,
    "nobody": None,
}


@dataclass(frozen=True, slots=True)
class UserCode:
    """access: who may call and do what. custom: the application beside our routes."""

    access: Access | None = None
    custom: Asgi | None = None


def load(project: Project) -> UserCode:
    """Imports what ``auth`` and ``http`` name, with the project's environment and folders.

    Raises StartError.
    """
    auth, http = project.auth, project.http
    if auth is None and http.app is None:
        return UserCode()
    refuse_our_names(project, "the gateway imports the project for its auth or http.app")
    os.environ.update(project.env)
    folders = [project.root, *project.dependencies]
    modules.prepend(folders)
    access, custom = None, None
    if auth is not None:
        found = _variable(project, "auth.path", auth.path, folders)
        try:
            access = Access(
                found, studio=_STUDIO[auth.studio], openapi=auth.openapi, cache=auth.cache
            )
        except InvalidAuth as error:
            raise _broken(project, "auth.path", auth.path, str(error)) from None
    if http.app is not None:
        custom = _variable(project, "http.app", http.app, folders)
        if not callable(custom):
            reason = f"expected an ASGI application, got {type(custom).__name__}"
            raise _broken(project, "http.app", http.app, reason)
    return UserCode(access, custom)


def refuse_our_names(project: Project, why: str) -> None:
    """In a graph process only ``actors`` is reserved; here more of our packages are loaded.

    why: what makes the project's modules and ours meet. Raises StartError.
    """
    folders = [project.root, *project.dependencies]
    if refusal := modules.reserved_name(folders):
        raise StartError(refusal)
    for folder in folders:
        for name in _OUR_NAMES:
            package, module = folder.resolve() / name, folder / f"{name}.py"
            if module.is_file() or (
                (package / "__init__.py").is_file() and package != _OURS / name
            ):
                raise StartError(
                    f"{folder}: the module '{name}' has the name of one of ours, and {why}:"
                    " please rename it or move it into a package"
                )


def _variable(project: Project, key: str, target: str, folders: list[Path]) -> Any:
    place, _, name = target.rpartition(":")
    try:
        if "/" in place or "\\" in place or place.endswith(".py"):
            module = modules.import_file(project.root / place, project.root, folders)
        else:
            module = modules.import_name(place)
    except BaseException as error:  # user code, which may call sys.exit too
        if isinstance(error, KeyboardInterrupt):
            raise
        reason = modules.reason(error, project.root, folders)
        raise _broken(project, key, target, reason) from None
    if not hasattr(module, name):
        raise _broken(project, key, target, f"{place} has no variable '{name}'")
    return getattr(module, name)


def _broken(project: Project, key: str, target: str, reason: str) -> StartError:
    return StartError(f"{project.path}: {key}: '{target}' cannot be used: {reason}")
