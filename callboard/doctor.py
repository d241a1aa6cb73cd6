"""``callboard doctor``: every check, one line each, and what to do about those that fail."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from callboard import checks, embedded
from callboard import launch as launching
from callboard.config import ConfigError, Project, load_project
from callboard.errors import StartError
from callboard.launch import Launch

_IMPORT_SECONDS = 300

_LINE = "\n" + " " * 24
"""Between the lines of one finding."""

_IMPORT_GRAPHS = """
import json, sys
project = json.load(sys.stdin)
from actors.child.loader import Graphs
from actors.child.store_config import StoreConfig
graphs = Graphs.import_all(project)
index = StoreConfig.load(project).index
if index and index.broken:
    graphs.broken["store.index.embed"] = index.broken
sys.__stdout__.write("\\n" + json.dumps({"ids": graphs.ids, "broken": graphs.broken}))
"""

_IMPORT_CODE = """
import json, pathlib, sys
from callboard import config, user_code
from callboard.errors import StartError
try:
    user_code.load(config.load_project(pathlib.Path(json.load(sys.stdin))))
    broken = None
except StartError as error:
    broken = str(error)
sys.__stdout__.write("\\n" + json.dumps({"broken": broken}))
"""


def examine(launch: Launch) -> int:
    """Prints the findings. Returns the exit code: 0 when all is well."""
    findings: list[tuple[str, Callable[[], str]]] = [
        ("python", checks.python),
        ("embedded servers", lambda: _embedded(launch)),
        ("configuration", lambda: _configuration(launch)),
        ("graphs", lambda: _graphs(launch)),
        ("auth, http.app", lambda: _code(launch)),
        ("settings", lambda: str(checks.settings(launch).total) + " database connections at most"),
        ("database", lambda: _database(launch)),
        ("schema", lambda: _schema(launch)),
        ("redis", lambda: checks.redis(launch)),
        ("folder and port", lambda: _folder_and_port(launch)),
    ]
    well = [_found(name, check) for name, check in findings]
    return 0 if all(well) else 1


def _found(name: str, check: Callable[[], str]) -> bool:
    try:
        detail, well = check(), True
    except StartError as error:
        detail, well = str(error), False
    click.echo(f"{'ok  ' if well else 'FAIL'}  {name:<17} {detail}")
    return well


def _embedded(launch: Launch) -> str:
    if launch.database_url and launch.redis_url:
        return "not needed"
    return embedded.installed()


def _configuration(launch: Launch) -> str:
    project = load_project(launch.config)
    warnings = (text.removeprefix(f"{project.path}: ") for text in project.warnings)
    return _LINE.join([str(project.path), *warnings])


def _graphs(launch: Launch) -> str:
    """Imports the graphs as a graph process would."""
    found = _imported(_IMPORT_GRAPHS, _project(launch).to_child(), "the graphs")
    if found["broken"]:
        raise StartError(_LINE.join(f"{name}: {why}" for name, why in found["broken"].items()))
    return ", ".join(found["ids"])


def _code(launch: Launch) -> str:
    """Imports what the gateway would: who says who calls, and the project's own application."""
    project = _project(launch)
    targets = [
        *([project.auth.path] if project.auth else []),
        *([project.http.app] if project.http.app else []),
    ]
    if not targets:
        return "none"
    found = _imported(_IMPORT_CODE, str(project.path), " and ".join(targets))
    if found["broken"]:
        raise StartError(found["broken"])
    return ", ".join(targets)


def _project(launch: Launch) -> Project:
    """The project, for what needs one. Its faults are a finding of their own."""
    try:
        return load_project(launch.config)
    except ConfigError:
        raise StartError("not looked at: the configuration is broken") from None


def _imported(script: str, given: object, what: str) -> dict[str, Any]:
    """What a script says that imports the project's code, in a process of its own.

    Raises StartError when the code ends the process, or never comes to an end.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", script],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_IMPORT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StartError(f"importing {what} took longer than {_IMPORT_SECONDS} s") from None
    found = None
    with suppress(ValueError, IndexError):
        found = json.loads(done.stdout.splitlines()[-1])
    if not isinstance(found, dict):
        raise StartError(f"importing {what} ended the process: {done.stderr.strip()[-500:]}")
    return found


def _database(launch: Launch) -> str:
    return checks.budget(checks.settings(launch), checks.database(launch))


def _schema(launch: Launch) -> str:
    if launch.database_url is None:
        return "embedded: brought up to date at each start"
    return checks.schema(launch, _project(launch).store, upgrade=False)


def _folder_and_port(launch: Launch) -> str:
    launching.prepare(launch)
    return f"{launch.data}, {launch.host} port {launch.port}"
