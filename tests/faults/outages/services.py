"""Postgres and Valkey of our own, to be stopped, killed and frozen."""

import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from callboard import embedded
from callboard.embedded import Server


@dataclass
class Service:
    """A server that is found under one URL, however often it is started."""

    launch: Callable[[], Server]
    server: Server
    data: Path

    @property
    def url(self) -> str:
        return self.server.url

    def stop(self) -> None:
        self.server.stop()

    def start(self) -> None:
        self.server = self.launch()

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        self.server.process.kill()
        self.server.process.wait(10)

    def forget(self) -> None:
        """Removes what a stopped server has stored."""
        shutil.rmtree(self.data)

    def freeze(self) -> None:
        self.server.process.send_signal(signal.SIGSTOP)

    def family(self) -> list[psutil.Process]:
        """The server and all processes of its own."""
        leader = psutil.Process(self.server.process.pid)
        return [leader, *leader.children(recursive=True)]

    def thaw(self) -> None:
        self.server.process.send_signal(signal.SIGCONT)


def own_postgres(folder: Path) -> Service:
    def launch() -> Server:
        return embedded.start_postgres(folder)

    return Service(launch, launch(), folder / f"postgres-{embedded.POSTGRES_MAJOR}")


def own_valkey(folder: Path) -> Service:
    first = embedded.start_valkey(folder)
    port = urlsplit(first.url).port
    assert port
    return Service(lambda: embedded.start_valkey(folder, port=port), first, folder / "valkey")
