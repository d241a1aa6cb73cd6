"""Makes ``.venv`` with everything in it, from nothing but Python 3.11 or newer.

Standard library only, and idempotent: what is there already is not done again. ``scripts/setup`` is
nothing else, ``scripts/up`` and ``scripts/test`` begin with it. ``CALLBOARD_VENV`` names another
folder than ``.venv``.
"""

from __future__ import annotations  # an older Python must get as far as being refused

import compileall
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
CLIENTS = ROOT / "tests" / "clients"
VENV = Path(os.environ.get("CALLBOARD_VENV") or ROOT / ".venv").absolute()
PYTHON = VENV / "bin" / "python"
PACKAGES = ("actors", "callboard", "gateway", "persistence")
MINIMAL = (3, 11)


def ensure() -> None:
    """Leaves a virtual environment with the locked packages and the ``callboard`` command."""
    if sys.version_info < MINIMAL:
        sys.exit(f"Callboard needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    made = f"{VENV} {sys.version_info[:2]}\n"
    lock = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    stamp = VENV / "callboard.stamp"
    stamped = stamp.read_text() if stamp.exists() else ""
    try:
        if not PYTHON.exists() or not stamped.startswith(made):
            create()
            stamped = made
            stamp.write_text(stamped)
        if stamped != made + lock:
            install()
            stamp.write_text(made + lock)
        link()
    except OSError as error:
        sys.exit(f"cannot set up {VENV}: {error}")


def create() -> None:
    """An empty environment, in place of one that was moved or made by another Python."""
    say(f"creating {VENV}")
    try:
        venv.create(VENV, with_pip=True, clear=True, symlinks=os.name != "nt")
    except subprocess.CalledProcessError:
        sys.exit(
            "cannot create a virtual environment: Python's ensurepip is missing "
            "(on Debian and Ubuntu it is in the package python3-venv)"
        )


def install() -> None:
    """The packages of the lock, by uv where there is one (three times as fast), else by pip.

    What uv cannot get, pip may: uv does not read pip's configuration, where an index may be set.
    """
    say("installing the packages of requirements.lock (once; about a minute)")
    options = ["--quiet", "--require-hashes", "-r", str(LOCK)]
    uv, python = shutil.which("uv"), str(PYTHON)
    if uv and succeeds(uv, "pip", "install", "--python", python, "--compile-bytecode", *options):
        return
    if not succeeds(python, "-m", "pip", "install", "--disable-pip-version-check", *options):
        sys.exit(
            "the packages could not be installed: see above. A network with access to the package "
            "index (or an index set in pip's configuration) is needed for this one step"
        )


def ensure_clients() -> None:
    """Leaves the packages of the tests with JavaScript clients, where npm can get them."""
    npm = shutil.which("npm")
    if npm is None:
        return
    lock = hashlib.sha256((CLIENTS / "package-lock.json").read_bytes()).hexdigest()
    stamp = CLIENTS / "node_modules" / "callboard.stamp"
    if stamp.exists() and stamp.read_text() == lock:
        return
    say("installing the packages of tests/clients (once; about half a minute)")
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    if succeeds(npm, "--prefix", str(CLIENTS), "ci", *options):
        stamp.write_text(lock)
    else:
        say("they could not be installed: see above")


def link() -> None:
    """Puts the checkout itself, and its command, into the environment."""
    site = next((VENV / "lib").glob("python3.*")) / "site-packages"
    write(site / "callboard.pth", f"{ROOT}\n")
    write(VENV / "bin" / "callboard", command_text(), mode=0o755)
    # Where bytecode is not written by itself, every process would compile our modules anew.
    for package in PACKAGES:
        compileall.compile_dir(ROOT / package, quiet=2)


def command_text() -> str:
    """The console script, as an installer would write it; a long path does not fit in ``#!``."""
    short = len(str(PYTHON)) < 120 and " " not in str(PYTHON)
    head = f"#!{PYTHON}" if short else f"#!/bin/sh\n'''exec' \"{PYTHON}\" \"$0\" \"$@\"\n' '''"
    return f"{head}\nimport sys\nfrom callboard.cli import main\nsys.exit(main())\n"


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Writes a file that is not as it should be; one of another owner is left alone if it is."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        path.chmod(mode)


def succeeds(*command: str) -> bool:
    """Runs a command to its end; its output is for the person."""
    return subprocess.run(command, check=False).returncode == 0


def say(text: str) -> None:
    """Progress, on stderr."""
    sys.stderr.write(f"{text}\n")


def run(*command: str | Path) -> None:
    """Runs a program of the environment from the root; ends with its code when that is not 0."""
    name, *arguments = map(str, command)
    code = subprocess.run([str(VENV / "bin" / name), *arguments], cwd=ROOT, check=False).returncode
    if code != 0:
        sys.exit(code)


def become(name: str, *arguments: str) -> None:
    """Goes on as a program of the environment, in the folder where the caller is."""
    path = str(VENV / "bin" / name)
    os.execv(path, [path, *arguments])  # noqa: S606  # no shell wanted
