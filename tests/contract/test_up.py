"""``callboard up`` and ``dev``: stop in order, start after anything, follow the project's files."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

pytestmark = pytest.mark.topology

GRAPH = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    word: str

def say(state: State) -> State:
    return {{"word": "{word}"}}

graph = StateGraph(State).add_node(say).add_edge(START, "say").compile()
"""


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one graph, which says a word, in a folder with a name that needs quotes.

    Its path is short enough for sockets, which so lie in it, and not in a folder below /tmp.
    """
    folder = tmp_path_factory.mktemp("up") / "somebody's project"
    folder.mkdir()
    say(folder, "first")
    content = {"graphs": {"agent": "./agent.py:graph"}}
    (folder / "langgraph.json").write_text(json.dumps(content))
    return folder


def say(project: Path, word: str) -> None:
    (project / "agent.py").write_text(GRAPH.format(word=word))


def ask(url: str) -> str:
    answer = httpx.post(
        f"{url}/runs/wait", json={"assistant_id": "agent", "input": {}}, timeout=120
    )
    return str(answer.json().get("word"))


@pytest.mark.faults
def test_up_starts_again_after_everything_was_killed(
    project: Path, run_callboard: Callable[..., Any]
) -> None:
    callboard = run_callboard("up", "--config", str(project))
    assert ask(callboard.url) == "first"
    callboard.kill()
    callboard = run_callboard("up", "--config", str(project))
    assert ask(callboard.url) == "first"
    assert callboard.stop(signal.SIGINT) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{callboard.url}/ok")


@pytest.mark.faults
def test_nothing_survives_supervisord(project: Path, run_callboard: Callable[..., Any]) -> None:
    callboard = run_callboard("up", "--config", str(project))
    (supervisord,) = psutil.Process(callboard.process.pid).children()
    left = callboard.tree()[1:]
    supervisord.kill()
    assert callboard.process.wait(60) == 1
    _gone, alive = psutil.wait_procs(left, timeout=30)
    assert not alive


@pytest.mark.faults
def test_a_killed_up_is_followed_by_the_next(
    project: Path, run_callboard: Callable[..., Any]
) -> None:
    """The supervisord of the first stops in order, and the second waits for it."""
    first = run_callboard("up", "--config", str(project))
    left = first.tree()[1:]
    first.process.kill()
    second = run_callboard("up", "--config", str(project))
    assert ask(second.url) == "first"
    assert not [process for process in left if process.is_running()]


@pytest.mark.faults
def test_one_data_folder_serves_one_callboard(
    project: Path, run_callboard: Callable[..., Any]
) -> None:
    run_callboard("up", "--config", str(project))
    with pytest.raises(AssertionError, match="already runs on the data folder"):
        run_callboard("up", "--config", str(project))


@pytest.mark.faults
def test_a_part_that_does_not_stay_up_ends_it_with_a_reason(
    project: Path, tmp_path: Path, run_callboard: Callable[..., Any]
) -> None:
    """A folder that Postgres cannot use: found out by trying, as most such things."""
    data = tmp_path / "data"
    (data / "postgres-18").mkdir(parents=True)
    with pytest.raises(AssertionError, match="postgres does not stay up") as caught:
        run_callboard("up", "--config", str(project), "--data", str(data))
    assert "postgres-18" in str(caught.value)


def test_dev_follows_the_files(project: Path, run_callboard: Callable[..., Any]) -> None:
    callboard = run_callboard("dev", "--config", str(project))
    assert ask(callboard.url) == "first"
    say(project, "second")
    callboard.await_line("reloading: agent.py")
    while ask(callboard.url) != "second":
        pass
    (project / "langgraph.json").write_text("{")
    callboard.await_line("not reloaded")
    assert ask(callboard.url) == "second"
    assert callboard.stop(signal.SIGINT) == 0
