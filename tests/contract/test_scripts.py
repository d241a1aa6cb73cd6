"""``scripts/up`` and ``scripts/setup`` as a person starts them, ``up`` by a newer Python too."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from langgraph_sdk import get_sync_client

ROOT = Path(__file__).resolve().parents[2]
STAMP = Path(sys.prefix) / "callboard.stamp"

pytestmark = pytest.mark.topology


def is_ours() -> bool:
    """Whether these tests run in an environment that the scripts have made: no other is touched."""
    return STAMP.exists() and STAMP.read_text().startswith(f"{sys.prefix} ")


def runs(python: str) -> bool:
    return bool(shutil.which(python)) and not subprocess.call(
        [python, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.fixture(
    params=[
        pytest.param(sys.executable, id="this Python"),
        pytest.param("python3.13", marks=[pytest.mark.faults, pytest.mark.timeout(900)]),
    ]
)
def up(request: pytest.FixtureRequest, tmp_path: Path, free_port: int) -> Iterator[str]:
    """The URL of what ``scripts/up`` serves. It must stop in order."""
    python = str(request.param)
    venv = sys.prefix if python == sys.executable else str(tmp_path / "venv")
    if not runs(python):
        pytest.skip(f"there is no {python}")
    if venv == sys.prefix and not is_ours():
        pytest.skip("the environment of these tests is not one of scripts/test")
    with (tmp_path / "log").open("ab") as log:
        process = subprocess.Popen(
            [
                python,
                ROOT / "scripts" / "up",
                "--port",
                str(free_port),
                "--data",
                tmp_path / "data",
            ],
            cwd=tmp_path,  # there is no project: the examples are served
            env={**os.environ, "CALLBOARD_VENV": venv},
            stdout=log,
            stderr=log,
        )
    try:
        url = f"http://127.0.0.1:{free_port}"
        deadline = time.monotonic() + 800
        while True:
            said = (tmp_path / "log").read_text()
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            try:
                if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, (tmp_path / "log").read_text()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


@pytest.mark.skipif(not is_ours(), reason="the environment is not one of scripts/test")
def test_setup_leaves_the_command_and_starts_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "CALLBOARD_VENV": sys.prefix}
    subprocess.run([ROOT / "scripts" / "setup"], cwd=tmp_path, env=environment, check=True)
    assert not list(tmp_path.iterdir())
    subprocess.run([Path(sys.prefix) / "bin" / "callboard", "version"], check=True)


def test_it_serves_the_examples(up: str) -> None:
    with get_sync_client(url=up) as client:
        thread = client.threads.create()
        question = {"messages": [{"role": "user", "content": "What is 17 * 23?"}]}
        parts = list(client.runs.stream(thread["thread_id"], "chat", input=question))
        assert parts[0].event == "metadata"
        assert {part.event for part in parts[1:]} == {"values"}
        assert "391" in parts[-1].data["messages"][-1]["content"]
        run = client.runs.create(thread["thread_id"], "chat", input=question)
        client.runs.join(thread["thread_id"], run["run_id"])
        assert client.runs.get(thread["thread_id"], run["run_id"])["status"] == "success"
