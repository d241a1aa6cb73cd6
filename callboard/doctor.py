"""``callboard doctor``: every check, one line each, and what to do about those that fail."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import click

from callboard import checks, embedded
from callboard import launch as launching
from callboard.config import load_project
from callboard.errors import StartError
from callboard.launch import Launch

_IMPORT_SECONDS = 300

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


def examine(launch: Launch) -> int:
    """Prints the findings. Returns the exit code: 0 when all is well."""
    findings: list[tuple[str, Callable[[], str]]] = [
        ("python", checks.python),
        ("embedded servers", lambda: _embedded(launch)),
        ("configuration", lambda: _configuration(launch)),
        ("graphs", lambda: _graphs(launch)),
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
    return "; ".join([str(project.path), *project.warnings])


def _graphs(launch: Launch) -> str:
    """Imports the graphs as a graph process would: in a process of their own."""
    project = load_project(launch.config)
    done = subprocess.run(
        [sys.executable, "-P", "-c", _IMPORT_GRAPHS],
        input=json.dumps(project.to_child()),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_IMPORT_SECONDS,
        check=False,
    )
    found = None
    with suppress(ValueError, IndexError):
        found = json.loads(done.stdout.splitlines()[-1])
    if not isinstance(found, dict):
        raise StartError(f"importing the graphs ended the process: {done.stderr.strip()[-500:]}")
    if found["broken"]:
        raise StartError("; ".join(f"{name}: {why}" for name, why in found["broken"].items()))
    return ", ".join(found["ids"])


def _database(launch: Launch) -> str:
    return checks.budget(checks.settings(launch), checks.database(launch))


def _schema(launch: Launch) -> str:
    if launch.database_url is None:
        return "embedded: brought up to date at each start"
    return checks.schema(launch, load_project(launch.config).store, upgrade=False)


def _folder_and_port(launch: Launch) -> str:
    launching.prepare(launch)
    return f"{launch.data}, {launch.host} port {launch.port}"
