"""A real supervisord tells a program that it is to stop, also one that has not heard the signal."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard import supervised

DEAF = """
import signal, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
from callboard import supervised
log = Path({log!r})
while not supervised.is_to_stop():
    log.touch()
    time.sleep(0.01)
log.with_suffix(".told").touch()
"""


@pytest.fixture
def program(service_folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path, list[str]]]:
    """supervisord with a program that ignores its signals; its log, and a way to supervisorctl."""
    folder = service_folder / "supervised"
    folder.mkdir()
    log = folder / "log"
    (folder / "deaf.py").write_text(DEAF.format(log=str(log)))
    config = folder / "supervisord.conf"
    config.write_text(
        f"""[supervisord]
logfile={folder}/supervisord.log
pidfile={folder}/pid
nodaemon=true
[unix_http_server]
file={folder}/sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{folder}/sock
[program:deaf]
command={sys.executable} {folder}/deaf.py
directory={os.getcwd()}
environment=PYTHONPATH="{os.getcwd()}"
stopwaitsecs=600
startsecs=0
"""
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor.supervisord", "-c", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    control = [sys.executable, "-m", "supervisor.supervisorctl", "-c", str(config)]
    try:
        await_file(log)
        yield process, log, control
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        for left in folder.iterdir():
            left.unlink()
        folder.rmdir()


def await_file(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name}"
        time.sleep(0.01)


def test_one_that_is_stopped_is_told(
    program: tuple[subprocess.Popen[bytes], Path, list[str]],
) -> None:
    _, log, control = program
    assert not log.with_suffix(".told").exists()
    subprocess.run([*control, "stop", "deaf"], check=True, stdout=subprocess.DEVNULL)
    await_file(log.with_suffix(".told"))


def test_one_is_told_that_all_is_stopped(
    program: tuple[subprocess.Popen[bytes], Path, list[str]],
) -> None:
    process, log, _ = program
    process.send_signal(signal.SIGTERM)
    await_file(log.with_suffix(".told"))
    assert process.wait(60) == 0


def test_without_a_supervisord_nobody_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SUPERVISOR_SERVER_URL", raising=False)
    assert not supervised.is_to_stop()
    monkeypatch.setenv("SUPERVISOR_SERVER_URL", f"unix://{tmp_path}/gone")
    monkeypatch.setenv("SUPERVISOR_PROCESS_NAME", "worker-0")
    monkeypatch.setenv("SUPERVISOR_GROUP_NAME", "worker")
    assert not supervised.is_to_stop()
