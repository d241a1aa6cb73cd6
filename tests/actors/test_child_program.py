"""The graph process as a program: started over a socket pair, as a worker does it."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
import redis

from actors.child.board import Board
from actors.child.event_names import events_key
from actors.child.protocol import Decoder, Frame, encode, unpack_parts

ROOT = Path(__file__).resolve().parents[2]
GRAPHS = Path(__file__).resolve().parents[1] / "graphs" / "child"
LONG = 60.0
"""Nothing here takes so long; a frame that does not come fails the test."""


class Program:
    """A graph process, and the worker's end of its pipe."""

    def __init__(self, init: dict[str, Any], log: Path) -> None:
        self.log = log
        ours, theirs = socket.socketpair()
        self.socket = ours
        seats = init["concurrency"]
        board = Board.file(seats)
        self.board = Board(board, seats)
        self.seats = itertools.cycle(range(1, seats + 1))
        self._decoder = Decoder()
        self._frames: list[Frame] = []
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "actors.child"],
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYTHONFAULTHANDLER": "1",
                    "CALLBOARD_CHILD_FD": str(theirs.fileno()),
                    "CALLBOARD_CHILD_BOARD_FD": str(board),
                    "WORKER_SOCKET": f"socket:[{os.fstat(theirs.fileno()).st_ino}]",
                },
                cwd="/",
                pass_fds=(theirs.fileno(), board),
                stderr=stderr,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        theirs.close()
        os.close(board)
        self.send("init", init)

    def send(self, kind: str, head: dict[str, Any], body: bytes = b"") -> None:
        self.socket.sendall(encode(Frame(kind, head, body)))

    def expect(self, kind: str, **head: Any) -> Frame:
        """The next frame of this kind with these values; others are kept. Pings meanwhile."""
        deadline = time.monotonic() + LONG
        while True:
            for frame in self._frames:
                if frame.kind == kind and head.items() <= frame.head.items():
                    self._frames.remove(frame)
                    return frame
            assert time.monotonic() < deadline, f"no {kind} frame\n{self.where_it_is()}"
            self.socket.settimeout(0.5)
            try:
                data = self.socket.recv(1 << 20)
            except TimeoutError:
                self.send("ping", {"n": 0})
                continue
            except ConnectionResetError:  # it ended with frames of ours unread
                data = b""
            assert data, f"the process ended\n{self.log.read_text()}"
            self._frames += self._decoder.feed(data)

    def where_it_is(self) -> str:
        """Ends the process and returns its log, with the stack of each thread."""
        self.process.send_signal(signal.SIGABRT)
        self.process.wait()
        return self.log.read_text()

    def exit_status(self) -> int:
        return self.process.wait(LONG)

    def end(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Runs:
    """Rows to run, and a process that runs them."""

    def __init__(self, program: Program, database_url: str, folder: Path) -> None:
        self.program = program
        self._database_url = database_url
        self._folder = folder

    def start(
        self, graph_id: str, note: str = "hello", patience: float = LONG, **configurable: Any
    ) -> "Run":
        run = Run(self.program, self._folder / uuid.uuid4().hex, graph_id)
        with psycopg.connect(self._database_url, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO threads (thread_id, status) VALUES (%s, 'busy')", [run.thread_id]
            )
            connection.execute(
                "INSERT INTO runs (run_id, thread_id, assistant_id, graph_id, status, kwargs,"
                " multitask_strategy, attempt, claimed_by, lease_expires_at, started_at)"
                " VALUES (%s, %s, %s, %s, 'running', '{}', 'enqueue', 1, 'h/1/b',"
                " now() + interval '1 hour', now())",
                [run.run_id, run.thread_id, run.assistant_id, graph_id],
            )
        kwargs = {
            "input": {"note": note},
            "config": {"configurable": {"at": str(run.marks_file), **configurable}},
            "stream_mode": ["values"],
        }
        head = {
            "run_id": run.run_id,
            "thread_id": run.thread_id,
            "assistant_id": run.assistant_id,
            "graph_id": graph_id,
            "attempt": 1,
            "metadata": {},
            "seat": run.seat,
            "expires_at": time.monotonic() + patience,
        }
        self.program.board.clear(run.seat)
        self.program.send("start", head, orjson.dumps(kwargs))
        return run


class Run:
    """A run that was started."""

    def __init__(self, program: Program, marks_file: Path, graph_id: str) -> None:
        self.program = program
        self.marks_file = marks_file
        self.seat = next(program.seats)
        self.run_id, self.thread_id, self.assistant_id = (str(uuid.uuid4()) for _ in range(3))

    def begun(self) -> "Run":
        """Returns when the node has begun."""
        self.await_mark("begun")
        return self

    def await_mark(self, mark: str) -> None:
        deadline = time.monotonic() + LONG
        while mark not in self.marks():
            assert time.monotonic() < deadline, self.program.where_it_is()
            self.program.send("ping", {"n": 0})
            time.sleep(0.01)

    def marks(self) -> list[str]:
        return self.marks_file.read_text().split() if self.marks_file.exists() else []

    def stop(self, step: str) -> None:
        self.program.send("stop", {"run_id": self.run_id, "attempt": 1, "step": step})

    def outcome(self) -> Frame:
        return self.program.expect("outcome", run_id=self.run_id, attempt=1)

    def end(self) -> str:
        return str(self.outcome().head["end"])

    def values(self) -> Any:
        frame = self.outcome()
        assert frame.head["end"] == "succeeded", frame
        return orjson.loads(unpack_parts(frame.head["parts"], frame.body)["values"])


Start = Callable[..., Program]


@pytest.fixture
def start(database_url: str, redis_url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts graph processes, ready ones unless told otherwise."""
    programs: list[Program] = []

    def start(*graph_ids: str, ready: bool = True, **init: Any) -> Program:
        targets = {graph_id: f"./agents.py:{graph_id}" for graph_id in graph_ids}
        settings = {
            "project": {"root": str(GRAPHS), "graphs": targets, "dependencies": [], "env": {}},
            "database_url": database_url,
            "redis_url": redis_url,
            "pool_max": 4,
            "concurrency": 4,
            "lease_seconds": 60,
            "stream_maxlen": 1000,
            "stream_max_bytes": 1 << 20,
            "stream_ttl_seconds": 60,
            "event_buffer_bytes": 1 << 20,
            "switch_interval": 0.0005,
        }
        program = Program(settings | init, tmp_path / f"log-{len(programs)}")
        programs.append(program)
        if ready:
            frame = program.expect("ready")
            assert set(frame.head["graphs"]) == set(graph_ids)
            assert frame.head["broken"] == {}
        return program

    yield start
    for program in programs:
        program.end()


@pytest.fixture
def running(start: Start, database_url: str, tmp_path: Path) -> Callable[..., Runs]:
    def running(*graph_ids: str, **init: Any) -> Runs:
        return Runs(start(*graph_ids, **init), database_url, tmp_path)

    return running


# Running


def test_a_run_comes_to_its_end(running: Callable[..., Runs], redis_url: str) -> None:
    runs = running("echo")
    run = runs.start("echo", "one")
    frame = run.outcome()
    assert frame.head["end"] == "succeeded"
    assert frame.head["next"] == []
    parts = unpack_parts(frame.head["parts"], frame.body)
    assert orjson.loads(parts["values"]) == {"note": "one", "seen": ["one", run.thread_id]}
    # The events are there when the outcome is.
    with redis.Redis.from_url(redis_url) as client:
        stored = [entry for _, entry in client.xrange(events_key(run.run_id))]
    assert stored[0][b"e"] == b"metadata"
    assert orjson.loads(stored[0][b"d"])["run_id"] == run.run_id
    assert orjson.loads(stored[-1][b"d"])["seen"] == ["one", run.thread_id]
    assert [int(entry[b"n"]) for entry in stored] == list(range(1, len(stored) + 1))
    assert {entry[b"a"] for entry in stored} == {b"1"}


def test_many_runs_at_once(running: Callable[..., Runs]) -> None:
    runs = running("echo", "sync_echo")
    started = [runs.start("echo", f"n{number}") for number in range(12)]
    threads = [runs.start("sync_echo") for _ in range(4)]
    assert [run.values()["note"] for run in started] == [f"n{number}" for number in range(12)]
    assert all(run.values()["note"].startswith("graph") for run in threads)


def test_the_store_is_given_to_graphs(running: Callable[..., Runs]) -> None:
    assert running("store").start("store", "kept").values()["note"] == "kept"


def test_factories_are_called_per_run(running: Callable[..., Runs]) -> None:
    runs = running("user")
    for name in ("ada", "bob"):
        assert runs.start("user", langgraph_auth_user_id=name).values()["note"] == name


def test_a_graphs_exception_is_an_outcome(running: Callable[..., Runs]) -> None:
    frame = running("fail").start("fail").outcome()
    assert frame.head["end"] == "failed"
    assert (frame.head["error"], frame.head["message"]) == ("ValueError", "this went wrong")


def test_a_reason_that_is_no_unicode_text_is_told(
    start: Start, running: Callable[..., Runs]
) -> None:
    frame = running("fails_unspeakably").start("fails_unspeakably").outcome()
    assert (frame.head["end"], frame.head["message"]) == ("failed", "no file \ufffd")

    graphs = {"broken": "./unspeakable.py:graph"}
    project = {"root": str(GRAPHS), "graphs": graphs, "dependencies": [], "env": {}}
    ready = start(ready=False, project=project).expect("ready")
    assert "no file \ufffd" in ready.head["broken"]["broken"]


def test_a_broken_graph_is_named_and_its_runs_fail(
    start: Start, database_url: str, tmp_path: Path
) -> None:
    graphs = {"echo": "./agents.py:echo", "gone": "./agents.py:nothing"}
    project = {"root": str(GRAPHS), "graphs": graphs, "dependencies": [], "env": {}}
    program = start(ready=False, project=project)
    ready = program.expect("ready")
    assert ready.head["graphs"] == ["echo"]
    assert ready.head["broken"] == {"gone": "./agents.py has no variable 'nothing'"}
    runs = Runs(program, database_url, tmp_path)
    frame = runs.start("gone").outcome()
    assert (frame.head["end"], frame.head["error"]) == ("failed", "GraphUnavailable")
    assert "has no variable 'nothing'" in frame.head["message"]
    assert runs.start("echo").end() == "succeeded"


@pytest.mark.parametrize("graph_id", ["exits_in_thread", "exits_on_loop"])
def test_an_exit_ends_the_run_and_not_the_process(
    graph_id: str, running: Callable[..., Runs]
) -> None:
    runs = running(graph_id, "awaits", "echo")
    neighbour = runs.start("awaits").begun()
    frame = runs.start(graph_id).outcome()
    assert frame.head["end"] == "failed"
    assert "the graph called sys.exit(" in frame.head["message"]
    assert runs.start("echo").end() == "succeeded"
    neighbour.stop("cancel")
    assert neighbour.end() == "cancelled"


def test_what_is_printed_goes_to_the_log(running: Callable[..., Runs]) -> None:
    runs = running("echo", "sync_echo")
    runs.start("echo", "aloud").values()
    runs.start("sync_echo").values()
    runs.program.send("retire", {})
    assert runs.program.exit_status() == 0
    log = runs.program.log.read_text()
    for text in ("agents are imported", "echo prints aloud", "without an end", "a thread prints"):
        assert text in log
    assert runs.program.process.stdout is not None
    assert runs.program.process.stdout.read() == b""


def test_grandchildren_have_no_socket_to_the_worker(running: Callable[..., Runs]) -> None:
    assert running("grandchildren").start("grandchildren").values()["note"] == "0 ''"


# Stopping


STEPS = {
    "awaits": ["cancel"],
    "spins_in_thread": ["cancel"],
    "swallows_once": ["cancel"],
    "swallows_in_thread": ["cancel"],
    "spins_on_loop": ["cancel", "interrupt"],
    "sleeps_on_loop": ["cancel", "interrupt"],
    "swallows_always": ["cancel", "interrupt"],
}


@pytest.mark.parametrize("graph_id", STEPS)
def test_a_run_is_stopped_and_its_neighbours_are_not(
    graph_id: str, running: Callable[..., Runs]
) -> None:
    runs = running(graph_id, "awaits", "sleeps_in_thread", "echo")
    waiting = runs.start("awaits").begun()
    working = runs.start("sleeps_in_thread", seconds=1.5).begun()
    run = runs.start(graph_id).begun()
    for step in STEPS[graph_id]:
        run.stop(step)
    assert run.end() == "cancelled"
    assert working.end() == "succeeded"
    assert working.marks() == ["begun", "slept"]
    assert waiting.marks() == ["begun"]
    assert runs.start("echo").end() == "succeeded"
    waiting.stop("cancel")
    assert waiting.end() == "cancelled"
    assert waiting.marks() == ["begun", "cleaned"]
    if "swallows" not in graph_id:
        assert run.marks() == ["begun", "cleaned"]


def test_the_outcome_waits_until_the_work_has_ended(running: Callable[..., Runs]) -> None:
    """A thread in C code cannot be stopped; until it returns, nobody is told that it did."""
    run = running("sleeps_in_thread").start("sleeps_in_thread", seconds=1.5).begun()
    run.stop("cancel")
    assert run.end() == "cancelled"
    assert run.marks() == ["begun"]  # it did not come further than the call


def test_a_stuck_loop_hits_only_the_guilty(running: Callable[..., Runs]) -> None:
    runs = running("spins_on_loop", "awaits")
    innocent = runs.start("awaits").begun()
    guilty = runs.start("spins_on_loop").begun()
    # The innocent one is to stop too, but does not hold the loop up: it ends in order, and only
    # when the guilty one has let go of the loop.
    innocent.stop("interrupt")
    time.sleep(0.5)
    assert guilty.marks() == ["begun"]
    guilty.stop("interrupt")
    assert guilty.end() == "cancelled"
    assert innocent.end() == "cancelled"
    assert innocent.marks() == ["begun", "cleaned"]


def test_a_thread_is_clean_after_an_interrupt(running: Callable[..., Runs]) -> None:
    """An exception that comes while a thread leaves must not hit who uses it next."""
    runs = running("spins_in_thread", "sync_echo")
    for _ in range(20):
        run = runs.start("spins_in_thread").begun()
        run.stop("interrupt")
        assert run.end() == "cancelled"
        assert runs.start("sync_echo").end() == "succeeded"


def test_a_stop_that_comes_before_the_loop_looks(running: Callable[..., Runs]) -> None:
    runs = running("spins_on_loop", "awaits")
    stuck = runs.start("spins_on_loop").begun()
    late = runs.start("awaits")
    late.stop("cancel")
    stuck.stop("interrupt")
    assert stuck.end() == "cancelled"
    assert late.end() == "cancelled"
    assert late.marks() == []


def test_a_stop_for_nobody_is_ignored(running: Callable[..., Runs]) -> None:
    runs = running("echo")
    run = runs.start("echo")
    assert run.end() == "succeeded"
    run.stop("cancel")
    run.stop("interrupt")
    assert runs.start("echo").end() == "succeeded"


# Living and dying


def test_pings_are_answered_by_the_loop(running: Callable[..., Runs]) -> None:
    runs = running("spins_on_loop")
    runs.program.send("ping", {"n": 7})
    assert runs.program.expect("pong", n=7)
    run = runs.start("spins_on_loop").begun()
    runs.program.send("ping", {"n": 8})
    time.sleep(0.3)
    run.stop("interrupt")
    assert run.end() == "cancelled"
    assert runs.program.expect("pong", n=8)


def test_it_retires_with_its_last_run(running: Callable[..., Runs]) -> None:
    runs = running("sleeps_in_thread", "leaves_things_behind")
    assert runs.start("leaves_things_behind").values()["note"] == "left"
    run = runs.start("sleeps_in_thread", seconds=0.5).begun()
    runs.program.send("retire", {})
    assert run.end() == "succeeded"
    assert runs.program.exit_status() == 0


def test_a_process_that_dies_closes_its_pipe(running: Callable[..., Runs]) -> None:
    runs = running("dies")
    runs.start("dies")
    assert runs.program.exit_status() == 9
    with pytest.raises(AssertionError, match="the process ended"):
        runs.program.expect("outcome")


@pytest.mark.parametrize("graph_id", ["awaits", "spins_on_loop"])
def test_it_ends_when_the_pipe_closes(graph_id: str, running: Callable[..., Runs]) -> None:
    runs = running(graph_id)
    runs.start(graph_id).begun()
    runs.program.socket.close()
    assert runs.program.exit_status() == 3


@pytest.mark.parametrize("graph_id", ["awaits", "spins_on_loop"])
def test_it_ends_when_the_worker_is_silent(graph_id: str, running: Callable[..., Runs]) -> None:
    runs = running(graph_id, lease_seconds=1)
    runs.start(graph_id).begun()
    assert runs.program.exit_status() == 3
    assert "silent" in runs.program.log.read_text()


def test_it_lives_as_long_as_the_worker_speaks(running: Callable[..., Runs]) -> None:
    runs = running("echo", lease_seconds=2)
    for _ in range(12):
        runs.program.send("ping", {"n": 1})
        time.sleep(0.25)
    assert runs.start("echo").end() == "succeeded"


def test_it_hears_what_the_worker_said_while_it_could_not_listen(
    running: Callable[..., Runs],
) -> None:
    """Its thread that listens finds nothing, and learns of it when the lease would be over."""
    runs = running("keeps_the_interpreter", lease_seconds=2)
    run = runs.start("keeps_the_interpreter").begun()
    time.sleep(1.2)  # nothing is said while it still listens
    assert run.values()["note"] == "kept"


def test_it_dies_with_its_worker(tmp_path: Path) -> None:
    """The kernel sees to it even when somebody else still holds the worker's end of the pipe."""
    ours, theirs = socket.socketpair()
    pid_file = tmp_path / "pid"
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-P', '-m', 'actors.child'],"
        f" pass_fds=({theirs.fileno()},), env={{**os.environ, 'PYTHONPATH': {str(ROOT)!r},"
        f" 'CALLBOARD_CHILD_FD': '{theirs.fileno()}'}})\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(3600)\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", script], pass_fds=(theirs.fileno(),))
    theirs.close()
    try:
        deadline = time.monotonic() + LONG
        while not (pid_file.exists() and pid_file.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child = int(pid_file.read_text())
        while b"event-writer" not in _threads(child) and b"pipe-writer" not in _threads(child):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    while _is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ours.close()


def _threads(pid: int) -> bytes:
    """How many threads the process has tells how far it has come; names need Python 3.14."""
    with contextlib.suppress(OSError):
        return b"pipe-writer" if len(os.listdir(f"/proc/{pid}/task")) > 1 else b""
    return b""


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    return False


# Questions


def test_an_inspector_answers(start: Start) -> None:
    program = start("echo")
    for number, op in enumerate(("schemas", "graph")):
        program.send("inspect", {"id": number, "op": op}, orjson.dumps({"graph_id": "echo"}))
    for number in range(2):
        answer = program.expect("answer", id=number)
        assert answer.head["status"] == 200, answer
        assert orjson.loads(answer.body)


def test_an_inspector_survives_nonsense(start: Start) -> None:
    program = start("echo")
    program.send("inspect", {"id": 1, "op": "no such thing"}, b"{}")
    assert program.expect("answer", id=1).head["status"] >= 400
    program.send("inspect", {"id": 2, "op": "schemas"}, orjson.dumps({"graph_id": "nowhere"}))
    assert program.expect("answer", id=2).head["status"] >= 400


# Redis


def test_runs_go_on_without_redis(running: Callable[..., Runs], free_port: int) -> None:
    runs = running("echo", redis_url=f"redis://127.0.0.1:{free_port}/0")
    assert runs.start("echo").end() == "succeeded"


def test_there_may_be_no_redis_at_all(running: Callable[..., Runs]) -> None:
    assert running("echo", redis_url=None).start("echo").end() == "succeeded"
