"""``langgraph.json``, read as the LangGraph CLI has it.

What is broken refuses to start, and the text names the file, the key, what came and what was
expected. A key that nobody knows is a warning: the format grows. No user code is imported here.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dotenv import dotenv_values

from actors.webhook_policy import WebhookPolicy
from callboard import (
    auth_section,
    checkpointer_section,
    http_section,
    store_section,
    webhooks_section,
)
from callboard.auth_section import AuthSection
from callboard.errors import StartError
from gateway.http_options import HttpOptions
from persistence.store import StoreConfig
from persistence.ttl import Ttl

FILE_NAME = "langgraph.json"

SECTIONS = ("auth", "checkpointer", "encryption", "http", "priority", "store", "webhooks")
"""Objects whose content belongs to other parts; they are handed on as they are."""

_BUILD_KEYS = frozenset(
    {
        *("_INTERNAL_docker_tag", "api_version", "base_image", "dockerfile_lines", "image_distro"),
        *("keep_pkg_tools", "node_version", "pip_config_file", "pip_installer", "source"),
        "$schema",
    }
)
"""Known keys that say how to build an image: nothing to do with them here."""

_NOT_SERVED = ("ui", "ui_config")
"""Known keys of what the reference serves and we do not."""

_UNPROTECTED = ("encryption",)
"""Sections that protect something. Serving without them would be worse than not serving."""

_UNPROTECTED_ENV = ("LANGGRAPH_AES_KEY",)
"""Variables that do: by this one the reference server encrypts checkpoints."""

_READ = frozenset({"auth", "checkpointer", "http", "store", "webhooks"})
"""Sections that mean something here."""

_KNOWN_KEYS = (
    frozenset({"graphs", "dependencies", "env", "python_version", *SECTIONS, *_NOT_SERVED})
    | _BUILD_KEYS
)


class ConfigError(StartError):
    """The project's configuration is broken; the text is for the person who wrote it."""

    def __init__(self, file: Path, key: str, got: str, expected: str) -> None:
        place = f"{file}: {key}" if key else str(file)
        super().__init__(f"{place}: expected {expected}, got {got}")


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """Where a graph is defined: ``./file.py:variable`` or ``package.module:variable``."""

    target: str
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """A user's project: what to serve and what its code needs.

    root: folder of the configuration file; relative paths start there.
    dependencies: folders that join ``sys.path`` of the graph processes.
    env: what the project adds to the environment of its code.
    auth, http, store, webhooks: what the sections of these names mean.
    thread_ttl: of threads for which clients name none.
    sections: the raw objects of ``SECTIONS`` that the file has.
    files: what was read for all this.
    warnings: what was not understood or is not used, for people.
    """

    root: Path
    path: Path
    graphs: Mapping[str, GraphSpec]
    dependencies: tuple[Path, ...]
    env: Mapping[str, str]
    auth: AuthSection | None
    http: HttpOptions
    store: StoreConfig
    thread_ttl: Ttl | None
    webhooks: WebhookPolicy
    sections: Mapping[str, dict[str, Any]]
    files: tuple[Path, ...]
    warnings: tuple[str, ...]

    def to_child(self) -> dict[str, Any]:
        """What a graph process must know, as JSON values."""
        return {
            "root": str(self.root),
            "graphs": {name: graph.target for name, graph in self.graphs.items()},
            "dependencies": [str(folder) for folder in self.dependencies],
            "env": dict(self.env),
            "store": self.sections.get("store", {}),
        }


def load_project(path: Path) -> Project:
    """Reads the file, or the ``langgraph.json`` in the folder, at ``path``.

    Raises ConfigError for anything that could not be served as written.
    """
    path = path.expanduser()
    if path.is_dir():
        path = path / FILE_NAME
    path = Path(os.path.abspath(path))  # a link's own folder is the root, as with the LangGraph CLI
    return _Reader(path).project()


class _Reader:
    """One reading of one file: its path for the errors, and the warnings so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._root = path.parent
        self._files = [path]
        self._warnings: list[str] = []

    def project(self) -> Project:
        raw = self._json()
        for key in sorted(raw.keys() - _KNOWN_KEYS):
            self._warn(key, "unknown key, ignored")
        for key in _NOT_SERVED:
            if raw.get(key):
                self._warn(key, "not supported by this version, ignored")
        self._python_version(raw.get("python_version"))
        sections, env = self._sections(raw), self._env(raw.get("env"))
        for name in _UNPROTECTED_ENV:
            if env.get(name) or os.environ.get(name):
                raise self._error(
                    name, "a variable that this version cannot enforce", "no such variable"
                )
        auth = auth_section.read(sections.get("auth"), self._target, self._broken, self._warn)
        if auth is not None and auth.studio == "anywhere":
            self._warn("auth.disable_studio_auth", "false lets in whoever claims to be Studio")
        return Project(
            root=self._root,
            path=self._path,
            graphs=self._graphs(raw.get("graphs")),
            dependencies=self._dependencies(raw.get("dependencies")),
            env=env,
            auth=auth,
            http=http_section.read(sections.get("http"), self._target, self._broken, self._warn),
            store=store_section.read(sections.get("store", {}), self._root, self._broken),
            thread_ttl=checkpointer_section.read(sections.get("checkpointer", {}), self._broken),
            webhooks=webhooks_section.read(
                sections.get("webhooks"), {**os.environ, **env}, self._broken
            ),
            sections=sections,
            files=tuple(self._files),
            warnings=tuple(self._warnings),
        )

    def _json(self) -> dict[str, Any]:
        try:
            text = self._path.read_bytes().decode("utf-8-sig")
            raw = json.loads(text, object_pairs_hook=self._object)
        except FileNotFoundError:
            raise self._error("", "no such file", "a configuration file") from None
        except OSError as error:
            raise self._error("", error.strerror or "no access", "a readable file") from error
        except UnicodeDecodeError as error:
            raise self._error("", f"byte {error.start} is not UTF-8", "UTF-8 text") from error
        except json.JSONDecodeError as error:
            place = f"{error.msg} at line {error.lineno} column {error.colno}"
            raise self._error("", place, "valid JSON") from error
        except RecursionError:
            raise self._error("", "too many nested levels", "valid JSON") from None
        if not isinstance(raw, dict):
            raise self._error("", _named(raw), "an object")
        return raw

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """A JSON object; of two equal keys the parser would silently drop the first."""
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise self._error(twice, "the key twice in one object", "each key once")
        return result

    def _graphs(self, raw: object) -> dict[str, GraphSpec]:
        expected = 'an object {"name": "./file.py:variable"} with at least one graph'
        if not isinstance(raw, dict) or not raw:
            raise self._error("graphs", "nothing" if raw is None else _named(raw), expected)
        return {name: self._graph(name, value) for name, value in raw.items()}

    def _graph(self, name: str, raw: object) -> GraphSpec:
        key = f"graphs.{name}"
        if not name.strip():
            raise self._error("graphs", "an empty name", "a name for each graph")
        description = None
        if isinstance(raw, dict):
            for unknown in sorted(raw.keys() - {"path", "description"}):
                self._warn(f"{key}.{unknown}", "unknown key, ignored")
            description = raw.get("description")
            if description is not None and not isinstance(description, str):
                raise self._error(f"{key}.description", _named(description), "text")
            key, raw = f"{key}.path", raw.get("path")
        return GraphSpec(self._target(key, raw), description)

    def _target(self, key: str, raw: object) -> str:
        """Checks ``./file.py:variable`` or ``package.module:variable`` without importing it."""
        expected = '"./file.py:variable" or "package.module:variable"'
        if not isinstance(raw, str):
            raise self._error(key, "nothing" if raw is None else _named(raw), expected)
        place, colon, variable = raw.rpartition(":")
        if not colon or not place or not variable.isidentifier():
            raise self._error(key, json.dumps(raw), expected)
        if re.search(r"\.[cm]?[jt]sx?$", place):
            raise self._error(key, f"{json.dumps(raw)} (JavaScript is not run here)", expected)
        if "/" in place or "\\" in place or place.endswith(".py"):
            if not (self._root / place).is_file():
                raise self._error(key, f"{json.dumps(raw)}, but there is no such file", expected)
        elif not all(part.isidentifier() for part in place.split(".")):
            raise self._error(key, json.dumps(raw), expected)
        return raw

    def _dependencies(self, raw: object) -> tuple[Path, ...]:
        if raw is None:
            return ()
        if not isinstance(raw, list):
            raise self._error("dependencies", _named(raw), "a list of folders and package names")
        folders: dict[Path, None] = {}
        packages = []
        for at, entry in enumerate(raw):
            key = f"dependencies[{at}]"
            if not isinstance(entry, str) or not entry.strip():
                raise self._error(key, _named(entry), 'a folder (".", "./package") or package name')
            if not entry.startswith(".") and not Path(entry).is_absolute():
                packages.append(entry)
                continue
            folder = Path(os.path.normpath(self._root / entry))
            if not folder.is_dir():
                raise self._error(
                    key, f"{json.dumps(entry)}, but there is no such folder", "a folder"
                )
            folders[folder] = None
            if (
                folder / "src"
            ).is_dir():  # what an installation of the folder would make importable
                folders[folder / "src"] = None
        if packages:
            names = ", ".join(packages)
            self._warn("dependencies", f"{names}: not installed by the server; install it yourself")
        return tuple(folders)

    def _env(self, raw: object) -> dict[str, str]:
        if raw is None:
            return {}
        if isinstance(raw, str):
            return self._env_file(raw)
        if not isinstance(raw, dict):
            raise self._error("env", _named(raw), "a file's path or an object of texts")
        values = {}
        for name, value in raw.items():
            if not isinstance(value, str | int | float):
                raise self._error(f"env.{name}", _named(value), "text")
            values[name] = value if isinstance(value, str) else json.dumps(value)
        return values

    def _env_file(self, raw: str) -> dict[str, str]:
        path = self._root / raw
        if not path.is_file():
            raise self._error("env", f"{json.dumps(raw)}, but there is no such file", "a file")
        self._files.append(path)
        try:
            return {name: value for name, value in dotenv_values(path).items() if value is not None}
        except (OSError, UnicodeDecodeError) as error:
            raise self._error("env", f"{json.dumps(raw)}: {error}", "a readable file") from error

    def _sections(self, raw: dict[str, Any]) -> dict[str, dict[str, Any]]:
        sections = {}
        for name in SECTIONS:
            section = raw.get(name)
            if section is None or section == {}:
                continue
            if not isinstance(section, dict):
                raise self._error(name, _named(section), "an object")
            if name in _UNPROTECTED:
                raise self._error(
                    name, "a section that this version cannot enforce", "no such section"
                )
            sections[name] = section
        for name in sections.keys() - _READ:
            self._warn(name, "not supported by this version, ignored")
        for name, known in (
            ("checkpointer", {"ttl"}),
            ("store", {"index", "ttl"}),
        ):
            for key in sorted(sections.get(name, {}).keys() - known):
                self._warn(f"{name}.{key}", "not supported by this version, ignored")
        return sections

    def _python_version(self, raw: object) -> None:
        if raw is None:
            return
        if not isinstance(raw, str) or not re.fullmatch(r"3\.\d{1,2}", raw):
            raise self._error("python_version", _named(raw), 'a version like "3.12"')
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        if raw != running:
            self._warn("python_version", f"asks for {raw}, running on {running}")

    def _error(self, key: str, got: str, expected: str) -> ConfigError:
        return ConfigError(self._path, key, got, expected)

    def _broken(self, key: str, value: object, expected: str) -> ConfigError:
        return self._error(key, "nothing" if value is None else _named(value), expected)

    def _warn(self, key: str, text: str) -> None:
        self._warnings.append(f"{self._path}: {key}: {text}")


def _named(value: object) -> str:
    """A JSON value as it looks in a sentence: short, and with its type when that is the point."""
    match value:
        case None:
            return "null"
        case dict():
            return "an object" if value else "an empty object"
        case list():
            return "a list"
        case _:
            return json.dumps(value)[:80]
