"""From options and environment to a running supervisord.

``supervisord.conf`` names variables and has no way to give them defaults; they are filled here.
The file can also be used without us: its head says how.
"""

import errno
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xmlrpc.client import Fault, ServerProxy

from callboard import embedded, process
from callboard.config import FILE_NAME
from callboard.errors import StartError

CONFIGURATION = "supervisord.conf"

STOP_RESERVE_SECONDS = 20
"""supervisord kills a worker so long after the end of its drain."""

_LOCK_DESCRIPTOR = 3
"""supervisord closes everything from 5 up when it starts, and from 3 up in its programs: so a lock
held here lives exactly as long as supervisord itself."""

_WIND_DOWN_SECONDS = 60.0
_SHUTDOWN_STATE = -1


class LaunchError(StartError):
    """The server cannot be started this way; the text says why, for people."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start. Without a URL the service is embedded.

    data: folder of logs and of the embedded services' data.
    """

    config: Path
    host: str
    port: int
    data: Path
    database_url: str | None
    redis_url: str | None
    gateways: int
    workers: int

    @property
    def logs(self) -> Path:
        """Folder of the log files, one a process."""
        return self.data / "logs"

    @property
    def sockets(self) -> Path:
        """Folder of supervisord's socket and pid file."""
        return embedded.socket_folder(self.data)


def launch_from(
    config: Path, host: str, port: int, data: Path | None, environ: Mapping[str, str]
) -> Launch:
    """Options as they came, and what only the environment says. Raises LaunchError."""
    config = Path(os.path.abspath(config.expanduser()))
    if config.is_dir():
        config = config / FILE_NAME
    return Launch(
        config=config,
        host=host,
        port=port or free_port(host),
        data=Path(os.path.abspath(data.expanduser() if data else config.parent / ".callboard")),
        database_url=environ.get("DATABASE_URL", "").strip() or None,
        redis_url=environ.get("REDIS_URL", "").strip() or None,
        gateways=_number(environ, "CALLBOARD_GATEWAYS", max(1, min(4, cores() // 2))),
        workers=_number(environ, "CALLBOARD_WORKERS", 1),
    )


def cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise LaunchError(f"{name}: expected a number from 1 to 256, got {text!r}")
    return int(text)


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "").strip()
    try:
        return float(text) if text else default
    except ValueError:
        raise LaunchError(f"{name}: expected a number of seconds, got {text!r}") from None


def environment(launch: Launch, base: Mapping[str, str]) -> dict[str, str]:
    """``base`` and all that supervisord.conf and its programs read from the environment."""
    programs = os.path.dirname(sys.executable)
    drain = _seconds(base, "WORKER_DRAIN_TIMEOUT", 30)
    return {
        **base,
        "PATH": f"{programs}{os.pathsep}{base.get('PATH', os.defpath)}",
        "CALLBOARD_CONFIG": str(launch.config),
        "CALLBOARD_DATA": str(launch.data),
        "CALLBOARD_RUN": str(launch.sockets),
        "CALLBOARD_GATEWAYS": str(launch.gateways),
        "CALLBOARD_WORKERS": str(launch.workers),
        "CALLBOARD_EMBEDDED_POSTGRES": "0" if launch.database_url else "1",
        "CALLBOARD_EMBEDDED_VALKEY": "0" if launch.redis_url else "1",
        "CALLBOARD_STOP_SECONDS": str(int(drain) + STOP_RESERVE_SECONDS),
        "HOST": launch.host,
        "PORT": str(launch.port),
        "DATABASE_URL": launch.database_url or embedded.postgres_url(launch.data),
        "REDIS_URL": launch.redis_url or embedded.valkey_url(launch.data),
    }


def prepare(launch: Launch) -> None:
    """Creates the folders, and refuses a data folder in use or a port that is taken.

    What the last supervisord left behind after a kill -9 is waited for: it is about to end.
    """
    if "%" in str(launch.data):  # it expands what it has read from the environment once more
        raise LaunchError(f"CALLBOARD_DATA: supervisord takes no % in a path, got {launch.data}")
    try:
        launch.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        embedded.private_folder(launch.sockets)
    except OSError as error:
        raise LaunchError(f"cannot use the data folder {launch.data}: {error.strerror}") from error
    os.close(_lock(launch))
    _await_port(launch.host, launch.port)


def await_end(launch: Launch) -> None:
    """Returns when the embedded servers of a supervisord that was killed have ended too."""
    for server in ("postgres", "valkey"):
        with suppress(embedded.EmbeddedError, OSError):
            os.close(embedded.lock(launch.data / f"{server}.lock"))


def exec_supervisord(launch: Launch, *, with_parent: bool) -> NoReturn:
    """Becomes supervisord, in the foreground. with_parent: stop when the parent ends."""
    prepare(launch)
    values = environment(launch, os.environ)
    lock = _lock(launch)
    if lock != _LOCK_DESCRIPTOR:
        os.dup2(lock, _LOCK_DESCRIPTOR)
    os.set_inheritable(_LOCK_DESCRIPTOR, True)
    _forget_counters(launch)
    if with_parent:
        process.die_with_parent(signal.SIGTERM)
    command = [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(configuration())]
    os.chdir("/")  # a neutral folder: nothing in it can be taken for a module of ours
    os.execve(command[0], command, values)  # noqa: S606  # no shell wanted


def _forget_counters(launch: Launch) -> None:
    """What the gateways of the last start counted is no part of this one."""
    for counters in (launch.sockets / "metrics").glob("*.db"):
        with suppress(OSError):
            counters.unlink()


def exec_supervisorctl(launch: Launch, arguments: tuple[str, ...]) -> NoReturn:
    """Becomes supervisorctl, talking to the supervisord of the data folder.

    Raises LaunchError when there is none.
    """
    if not (launch.sockets / "supervisor.sock").exists():
        raise LaunchError(
            f"no Callboard runs on the data folder {launch.data}; "
            "CALLBOARD_CONFIG names the project of another, or CALLBOARD_DATA its folder"
        )
    command = [sys.executable, "-m", "supervisor.supervisorctl", "-c", str(configuration())]
    values = environment(launch, os.environ)
    os.execve(command[0], [*command, *arguments], values)  # noqa: S606  # no shell wanted


def configuration() -> Path:
    """``supervisord.conf``: beside the packages in a checkout, inside this one when installed."""
    package = Path(__file__).resolve().parent
    for folder in (package.parent, package):
        if (folder / CONFIGURATION).is_file():
            return folder / CONFIGURATION
    raise LaunchError(f"{CONFIGURATION} is missing from the installation")


def supervisor(launch: Launch) -> ServerProxy:
    """supervisord's own interface (``.supervisor.…``); calls raise OSError when it is not there."""
    from supervisor.xmlrpc import SupervisorTransport

    url = f"unix://{launch.sockets / 'supervisor.sock'}"
    return ServerProxy("http://localhost", transport=SupervisorTransport(None, None, url))


def free_port(host: str) -> int:
    """A port of ``host`` that nobody listens on at this moment."""
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _lock(launch: Launch) -> int:
    path = launch.data / "callboard.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _WIND_DOWN_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline or _serves(launch):
                os.close(descriptor)
                raise LaunchError(
                    f"a Callboard already runs on the data folder {launch.data}; "
                    "choose another with --data"
                ) from None
            time.sleep(0.2)


def _serves(launch: Launch) -> bool:
    """Whether the supervisord that holds the lock means to go on."""
    time.sleep(0.3)  # one whose parent was killed this instant may not have heard of it yet
    with suppress(OSError, Fault):
        state = supervisor(launch).supervisor.getState()
        return isinstance(state, dict) and state["statecode"] != _SHUTDOWN_STATE
    return False


def _await_port(host: str, port: int) -> None:
    """Raises LaunchError when somebody listens on the port and goes on doing so."""
    deadline = time.monotonic() + 1
    while True:
        try:
            with socket.socket(_family(host)) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
                return
        except OSError as error:
            if time.monotonic() > deadline:
                # Every other port of an address that is not this machine's is as good as this one.
                wrong = "--host" if error.errno == errno.EADDRNOTAVAIL else "--port"
                raise LaunchError(
                    f"cannot listen on {host} port {port}: {error.strerror}; "
                    f"choose another with {wrong}"
                ) from error
            time.sleep(0.1)


def _family(host: str) -> socket.AddressFamily:
    try:
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    except socket.gaierror as error:
        raise LaunchError(f"HOST: expected an address of this machine, got {host!r}") from error
