"""The command line refuses what cannot work with one clear sentence and an exit code."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one graph file, which nobody imports here."""
    (tmp_path / "agent.py").write_text("graph = None\n")
    (tmp_path / "langgraph.json").write_text(json.dumps({"graphs": {"agent": "./agent.py:graph"}}))
    return tmp_path


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def callboard(*arguments: str, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Runs a command that must end by itself."""
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG"}}
    return subprocess.run(
        [sys.executable, "-P", "-m", "callboard", *arguments],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def refused(*arguments: str, cwd: Path, **environment: str) -> str:
    """The one sentence with which a command is refused."""
    done = callboard(*arguments, cwd=cwd, **environment)
    assert done.returncode not in (0, None), done
    assert "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


def test_version(tmp_path: Path) -> None:
    done = callboard("version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "0.1.0\n")


def test_version_imports_nothing_heavy(tmp_path: Path) -> None:
    script = "import sys; import callboard.cli; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    heavy = {"langgraph", "sqlalchemy", "pydantic", "aiohttp", "structlog", "psycopg", "redis"}
    assert not heavy & set(done.stdout.split())


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    assert f"{tmp_path}/langgraph.json: expected" in refused("up", cwd=tmp_path)


def test_a_broken_configuration_is_named_with_its_place(project: Path) -> None:
    (project / "langgraph.json").write_text('{"graphs": {\n"agent": }')
    sentence = refused("up", "--config", str(project), cwd=project)
    assert "langgraph.json" in sentence
    assert "line 2 column 10" in sentence


def test_a_taken_port_is_named(project: Path, taken_port: int) -> None:
    sentence = refused("up", "--port", str(taken_port), cwd=project)
    assert f"port {taken_port}" in sentence
    assert "--port" in sentence


def test_an_address_of_another_machine_is_no_matter_of_ports(project: Path) -> None:
    sentence = refused("up", "--host", "192.0.2.1", "--port", "2024", cwd=project)
    assert "192.0.2.1" in sentence
    assert "choose another with --host" in sentence


def test_ctl_says_when_nothing_runs_there(project: Path) -> None:
    sentence = refused("ctl", "status", cwd=project)
    assert f"no Callboard runs on the data folder {project}/.callboard" in sentence
    assert "CALLBOARD_CONFIG" in sentence


def test_an_unreachable_database_is_refused_without_its_password(project: Path) -> None:
    url = "postgresql://somebody:secret-word@127.0.0.1:1/db"
    sentence = refused("up", "--port", "0", cwd=project, DATABASE_URL=url)
    assert "DATABASE_URL: cannot reach the database" in sentence
    assert "secret-word" not in sentence


def test_an_unreachable_redis_is_refused(project: Path) -> None:
    sentence = refused("up", "--port", "0", cwd=project, REDIS_URL="redis://127.0.0.1:1/0")
    assert "REDIS_URL: cannot reach Redis" in sentence


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORKER_COUNT", "many"),
        ("N_JOBS_PER_WORKER", "0"),
        ("HEARTBEAT_INTERVAL_SECONDS", "29"),
        ("DATABASE_POOL_MAX", "-1"),
        ("STREAM_HEARTBEAT_SECONDS", "never"),
        ("CALLBOARD_GATEWAYS", "0"),
        ("WORKER_DRAIN_TIMEOUT", "soon"),
        ("PORT", "70000"),
        ("DATABASE_POOL_MAX", "500"),
    ],
)
def test_a_bad_setting_is_named_with_what_came(project: Path, name: str, value: str) -> None:
    done = callboard("up", cwd=project, **{"PORT": "0", name: value})
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert value in done.stderr
    assert name in done.stderr.replace("--port", "PORT").upper()


def test_doctor_finds_everything_at_once(project: Path, taken_port: int) -> None:
    """A graph that fails, and one that ends its process, are findings like any other."""
    (project / "agent.py").write_text("import not_installed_here\n")
    done = callboard("doctor", "--port", str(taken_port), cwd=project)
    assert done.returncode == 1
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 2, done.stdout
    assert "not_installed_here" in failed[0]
    assert str(taken_port) in failed[1]

    (project / "agent.py").write_text("import os; os._exit(3)\n")
    done = callboard("doctor", "--port", "0", cwd=project)
    assert "ended the process" in done.stdout


@pytest.mark.parametrize(
    ("source", "sections", "words"),
    [
        ("auth = 5\n", {"auth": {"path": "./code.py:auth"}}, ["auth.path", "code.py:auth"]),
        ("app = 5\n", {"http": {"app": "./code.py:app"}}, ["http.app", "ASGI application"]),
        ("import not_here\n", {"http": {"app": "./code.py:app"}}, ["http.app", "not_here"]),
        ("import os; os._exit(3)\n", {"http": {"app": "./code.py:app"}}, ["ended the process"]),
    ],
)
def test_doctor_looks_at_what_gateways_import(
    project: Path, source: str, sections: dict[str, object], words: list[str]
) -> None:
    (project / "code.py").write_text(source)
    graphs = {"agent": "./agent.py:graph"}
    (project / "langgraph.json").write_text(json.dumps({"graphs": graphs, **sections}))
    done = callboard("doctor", "--port", "0", cwd=project)
    line = next(line for line in done.stdout.splitlines() if "auth, http.app" in line)
    assert line.startswith("FAIL"), done.stdout
    for word in words:
        assert word in done.stdout


def test_doctor_names_a_fault_of_the_configuration_once_and_each_warning(project: Path) -> None:
    (project / "langgraph.json").write_text('{"graphs": 5}')
    assert callboard("doctor", "--port", "0", cwd=project).stdout.count("graphs: expected") == 1

    graphs = {"agent": {"path": "./agent.py:graph", "descripton": "x"}}
    (project / "langgraph.json").write_text(json.dumps({"graphs": graphs, "grahps": {}}))
    lines = callboard("doctor", "--port", "0", cwd=project).stdout.splitlines()
    assert "grahps: unknown key, ignored" in [line.strip() for line in lines]
    assert "graphs.agent.descripton: unknown key, ignored" in [line.strip() for line in lines]


def test_doctor_is_content_with_a_project_that_works(project: Path, database_url: str) -> None:
    (project / "agent.py").write_text(
        "print('noise')\n"
        "from langgraph.graph import START, MessagesState, StateGraph\n"
        "graph = StateGraph(MessagesState).add_node('n', print).add_edge(START, 'n').compile()\n"
    )
    done = callboard("doctor", "--port", "0", cwd=project, DATABASE_URL=database_url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agent" in done.stdout


def test_worker_and_gateway_name_a_missing_setting(project: Path) -> None:
    for part in ("gateway", "worker", "scheduler", "migrate"):
        assert "DATABASE_URL" in refused(part, cwd=project, CALLBOARD_CONFIG=str(project))
