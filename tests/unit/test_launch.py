"""supervisord.conf and what fills it agree."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from callboard.errors import StartError
from callboard.launch import Launch, configuration, environment, launch_from, prepare

TEXT = configuration().read_text()
NAMED = set(re.findall(r"%\(ENV_([A-Z_]+)\)s", TEXT))


def launch(tmp_path: Path, **environ: str) -> Launch:
    return launch_from(tmp_path, "127.0.0.1", 2024, None, environ)


def test_every_variable_of_supervisord_conf_is_filled_and_explained(tmp_path: Path) -> None:
    head = TEXT.partition("[supervisord]")[0]
    values = environment(launch(tmp_path), {})
    for name in NAMED:
        assert name in values
        assert f";     {name} " in head, name


def test_supervisord_conf_says_where_the_embedded_services_are(tmp_path: Path) -> None:
    values = environment(launch(tmp_path), {})
    head = TEXT.partition("[supervisord]")[0].replace("$CALLBOARD_RUN", values["CALLBOARD_RUN"])
    for name in ("DATABASE_URL", "REDIS_URL"):
        assert f"{unquote(values[name])}\n" in head


def test_services_are_embedded_unless_they_are_named(tmp_path: Path) -> None:
    values = environment(launch(tmp_path), {})
    assert values["CALLBOARD_EMBEDDED_POSTGRES"] == "1"
    assert values["CALLBOARD_EMBEDDED_VALKEY"] == "1"
    assert values["DATABASE_URL"].startswith("postgresql://")
    assert values["REDIS_URL"].startswith("unix://")

    urls = {"DATABASE_URL": "postgresql://db/x", "REDIS_URL": "redis://r/0"}
    values = environment(launch(tmp_path, **urls), {})
    assert values["CALLBOARD_EMBEDDED_POSTGRES"] == "0"
    assert values["CALLBOARD_EMBEDDED_VALKEY"] == "0"
    assert {name: values[name] for name in urls} == urls


def test_a_worker_has_longer_to_stop_than_to_drain(tmp_path: Path) -> None:
    values = environment(launch(tmp_path), {"WORKER_DRAIN_TIMEOUT": "600"})
    assert int(values["CALLBOARD_STOP_SECONDS"]) > 600
    with pytest.raises(StartError, match="WORKER_DRAIN_TIMEOUT"):
        environment(launch(tmp_path), {"WORKER_DRAIN_TIMEOUT": "soon"})


def test_the_folder_of_a_project_stands_for_its_file(tmp_path: Path) -> None:
    project = launch(tmp_path)
    assert project.config == tmp_path / "langgraph.json"
    assert project.data == tmp_path / ".callboard"


def test_a_folder_that_supervisord_cannot_take_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "50% off"
    folder.mkdir()
    with pytest.raises(StartError, match=r"CALLBOARD_DATA.*50% off"):
        prepare(launch(folder))
