"""A Callboard as a user has it, with embedded services, and the official client."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

EXAMPLES = Path(__file__).parents[2] / "examples"
_KEPT = {"PATH", "HOME", "LANG", "PYTHONDONTWRITEBYTECODE", "TMPDIR"}


class Callboard:
    """A ``callboard up`` or ``dev`` in a process of its own, on a free port."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        named = dict(itertools.pairwise(arguments)).get("--data")
        self.data = None if named is None else Path(named)
        """Where the embedded servers and the logs are, if that was said."""
        inherited = {name: value for name, value in os.environ.items() if name in _KEPT}
        self.process = subprocess.Popen(
            [str(Path(sys.executable).parent / "callboard"), *arguments, "--port", "0"],
            env={**inherited, "WORKER_COUNT": "2", "CALLBOARD_GATEWAYS": "2", **environment},
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            line = self.await_line(" serves at ")
        except AssertionError:
            self.close()
            raise
        self.url = line.partition(" serves at ")[2].split()[0]

    def await_line(self, text: str, seconds: float = 240) -> str:
        """The first line of the output with this text, as soon as there is one."""

        def found() -> str | None:
            return next((line for line in self._lines if text in line), None)

        with self._news:
            self._news.wait_for(lambda: found() or not self._reader.is_alive(), seconds)
            line = found()
        assert line is not None, "".join(self._lines)
        return line

    def has_said(self, text: str) -> bool:
        """Whether a line of the output has this text."""
        with self._news:
            return any(text in line for line in self._lines)

    def tree(self) -> list[psutil.Process]:
        """All processes that were started by it, itself first."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Asks it to end; returns its exit code when it has, and all that it started too."""
        left = self.tree()[1:]
        self.process.send_signal(number)
        code = self.close()
        alive = [process for process in left if _lives(process)]
        assert not alive, f"left behind: {alive}"
        return code

    def kill(self) -> None:
        """Kills it and all that it started, as a power failure would."""
        self._kill_tree()
        self.close()

    def close(self) -> int:
        """Waits for its end, for a while, and lets go of it."""
        try:
            return self.process.wait(90)
        finally:
            if self.process.poll() is None:
                self._kill_tree()
                self.process.wait()
            self._reader.join(30)
            assert not self._reader.is_alive(), "something that it started holds its output"
            if self.process.stdout is not None:
                self.process.stdout.close()

    def _kill_tree(self) -> None:
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):  # died of its parent's death meanwhile
                process.kill()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def run_callboard() -> Iterator[Callable[..., Callboard]]:
    """Starts a small Callboard with arguments and an environment; ends it with the test."""
    started: list[Callboard] = []
    small = {"WORKER_COUNT": "1", "CALLBOARD_GATEWAYS": "1"}

    def run(*arguments: str, **environment: str) -> Callboard:
        started.append(Callboard(*arguments, **{**small, **environment}))
        return started[-1]

    yield run
    for callboard in started:
        if callboard.process.poll() is None:
            callboard.stop()
        callboard.close()


@pytest.fixture(scope="session")
def callboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callboard]:
    """The examples, served with embedded services."""
    data = tmp_path_factory.mktemp("callboard")
    running = Callboard("up", "--config", str(EXAMPLES), "--data", str(data))
    yield running
    assert running.stop() == 0


@pytest.fixture
async def client(callboard: Callboard) -> AsyncIterator[LangGraphClient]:
    """The official client."""
    async with get_client(url=callboard.url) as client:
        yield client


@pytest.fixture(scope="session")
def store_callboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callboard]:
    """A project with a semantic index, and with states of every kind.

    Its worker looks for runs at the rows once an hour: what starts was started by a message.
    """
    data = tmp_path_factory.mktemp("callboard-store")
    project = Path(__file__).parents[1] / "graphs" / "store"
    settings = {"WORKER_COUNT": "1", "POSTGRES_POLL_INTERVAL_SECONDS": "3600"}
    running = Callboard("up", "--config", str(project), "--data", str(data), **settings)
    yield running
    assert running.stop() == 0
