"""``callboard up`` and ``callboard dev``: supervisord with a person in front of it.

Starts it, waits until a run would be executed, says where, shows the logs, and returns when all is
stopped. Whatever ends this process ends the rest: supervisord stops with it, and the parts with
supervisord.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault

import click

from callboard import launch as launching
from callboard import trial
from callboard.changes import Changes
from callboard.config import ConfigError, Project, load_project
from callboard.launch import Launch
from callboard.tail import Tail, last_lines
from gateway.settings import local_url

_TICK_SECONDS = 0.25
_CHECK_SECONDS = 1.0
_FATAL = 200
_PATIENCE_SECONDS = 15.0
"""After so long without being ready a line says what is being waited for."""
_SCHEMA_SECONDS = 5.0
"""How long the line that says that it serves waits for a schema to make a request from."""


def run(launch: Launch, project: Project, *, reload: bool) -> int:
    """Runs until told to stop. Returns the exit code: 1 when a part could not be kept running.

    reload: follow changes of the project's files.
    """
    with _signals() as stop:
        tail = Tail(launch.logs, shown=lambda part: part.startswith(("gate", "work", "sched")))
        supervisord = _start(launch)
        try:
            code = _Session(launch, project, supervisord, stop, tail, reload).attend()
        finally:
            _stop(launch, supervisord, stop, tail)
    return code


class _Stop:
    """Becomes true when a signal asks for the end; can be waited for."""

    def __init__(self, woken: socket.socket) -> None:
        self.count = 0
        self._woken = woken

    def __bool__(self) -> bool:
        return self.count > 0

    def wait(self, seconds: float) -> None:
        """Returns after so long, or at a signal (also of a child that ended)."""
        if select.select([self._woken], [], [], seconds)[0]:
            self._woken.recv(64)


@contextmanager
def _signals() -> Iterator[_Stop]:
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    stop = _Stop(woken)

    def asked(_number: int, _frame: object) -> None:
        stop.count += 1

    handlers = {
        signal.SIGINT: asked,
        signal.SIGTERM: asked,
        signal.SIGHUP: asked,
        signal.SIGCHLD: lambda _number, _frame: None,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        woken.close()
        wake.close()


def _start(launch: Launch) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-P", "-m", "callboard", "supervise", "--with-parent"]
    environment = launching.environment(launch, os.environ)
    # The embedded services are chosen by the absence of a URL, also one process further on.
    for name, url in (("DATABASE_URL", launch.database_url), ("REDIS_URL", launch.redis_url)):
        if url is None:
            del environment[name]
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # its own log file has the same lines
        start_new_session=True,  # Ctrl-C at the terminal reaches us alone, and we pass it on
    )


def _stop(launch: Launch, supervisord: "subprocess.Popen[bytes]", stop: _Stop, tail: Tail) -> None:
    """Ends everything in order; a second signal while waiting ends it at once."""
    asked = stop.count
    if supervisord.poll() is None:
        supervisord.terminate()
    while supervisord.poll() is None:
        if stop.count > max(asked, 1):
            supervisord.kill()  # the parts die with it
        _show(tail)
        stop.wait(_TICK_SECONDS)
    if supervisord.returncode < 0:
        launching.await_end(launch)
    _show(tail)


class _Session:
    """From the start of supervisord to its end."""

    def __init__(
        self,
        launch: Launch,
        project: Project,
        supervisord: "subprocess.Popen[bytes]",
        stop: _Stop,
        tail: Tail,
        reload: bool,
    ) -> None:
        self._launch = launch
        self._project = project
        self._supervisord = supervisord
        self._stop = stop
        self._tail = tail
        self._changes = Changes(project, without=launch.data) if reload else None
        self._started = time.monotonic()
        self._ready_at: float | None = None
        self._announced = False
        self._patient = True

    def attend(self) -> int:
        """Looks after it until it is to end; returns the exit code."""
        next_check = 0.0
        while not self._stop:
            _show(self._tail)
            if self._supervisord.poll() is not None:
                return self._ended()
            if time.monotonic() >= next_check:
                next_check = time.monotonic() + _CHECK_SECONDS
                if (part := self._fatal()) is not None:
                    return self._gave_up(part)
                if self._changes is not None and (changed := self._changes.seen()):
                    self._reload(changed)
            if not self._announced:
                self._announce()
            self._stop.wait(_TICK_SECONDS)
        return 0

    def _announce(self) -> None:
        """Says once, in one line, that it serves and what to try; and once that it takes long.

        After readiness it may take a moment until the graph's schema can be read.
        """
        now = time.monotonic()
        if self._ready_at is None and _answers(f"{self._url}/ready"):
            self._ready_at = now
        url = self._url + self._project.http.mount_prefix
        if self._ready_at is not None and self._project.auth is not None:
            # Who asks without a credential is of no use, but asks the project's own handler.
            self._announced = True
            say(f"Callboard serves at {url}  to callers that auth lets in")
        elif self._ready_at is not None:
            graph_id = next(iter(self._project.graphs))
            schema = trial.input_schema(url, graph_id)
            if schema is not None or now - self._ready_at > _SCHEMA_SECONDS:
                self._announced = True
                request = trial.command(url, graph_id, schema or {})
                say(f"Callboard serves at {url}  try: {request}")
        elif self._patient and now - self._started > _PATIENCE_SECONDS:
            self._patient = False
            say(f"still starting; the logs are in {self._launch.logs}")

    @property
    def _url(self) -> str:
        return local_url(self._launch.host, self._launch.port)

    def _fatal(self) -> str | None:
        """The name of a part that supervisord no longer tries to start."""
        with suppress(OSError, Fault):  # not listening yet, or not any more
            for part in self._parts():
                if part["state"] == _FATAL:
                    return str(part["name"])
        return None

    def _parts(self) -> list[dict[str, Any]]:
        parts = launching.supervisor(self._launch).supervisor.getAllProcessInfo()
        return parts if isinstance(parts, list) else []

    def _ended(self) -> int:
        say(f"supervisord ended with code {self._supervisord.returncode}")
        _quote(last_lines(self._launch.logs / "supervisord.log", 10))
        return 1

    def _gave_up(self, part: str) -> int:
        say(f"{part} does not stay up; the end of its log:")
        _quote(last_lines(self._launch.logs / f"{part}.log", 20))
        return 1

    def _reload(self, changed: list[Path]) -> None:
        """Restarts what has the project's code or configuration loaded."""
        try:
            self._project = load_project(self._project.path)
        except ConfigError as error:
            say(f"not reloaded: {error}")
            return
        names = ", ".join(path.name for path in changed[:5])
        say(f"reloading: {names}{' …' if len(changed) > 5 else ''}")
        groups = ["worker"]
        runs_code = self._project.auth is not None or self._project.http.app is not None
        if runs_code or not set(self._project.files).isdisjoint(changed):
            groups.append("gateway")  # it knows the names of the graphs, and serves such code
        with suppress(OSError):
            supervisor = launching.supervisor(self._launch).supervisor
            for group in groups:
                with suppress(Fault):  # a part that is starting or dying just now
                    supervisor.stopProcessGroup(group)
                supervisor.startProcessGroup(group, False)


def _show(tail: Tail) -> None:
    for line in tail.lines():
        say(line)


def _quote(lines: list[str]) -> None:
    for line in lines:
        say(f"    {line}")


def say(text: str) -> None:
    """Prints a line at once. That nobody reads any more is no reason not to stop in order."""
    with suppress(OSError):
        click.echo(text)
        sys.stdout.flush()


def _answers(url: str) -> bool:
    with suppress(urllib.error.URLError, OSError):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by a proxy
        with opener.open(url, timeout=2) as response:
            return bool(response.status == 200)
    return False
