"""What a process may do and how it ends: dying with its parent, and giving up root.

Linux has no call for either in Python's library, hence ``ctypes``. Elsewhere
``die_with_parent`` does nothing: an orphan is then found by the lock on its folder or by its port.
"""

import ctypes
import logging
import os
import signal
import struct
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_SECUREBITS = 28
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION_3 = 0x20080522


def die_with_parent(number: signal.Signals) -> None:
    """Asks the kernel to send this process ``number`` when its parent ends, however it ends.

    The wish survives ``exec`` but not a change of user, so it comes after ``become``.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    _check(_libc().prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0), "prctl")
    if os.getppid() != parent:  # it ended while we were asking
        os.kill(os.getpid(), number)


def leave(code: int) -> NoReturn:
    """Ends the process now, its output written.

    Without taking a hundred thousand objects apart first: the interpreter's last garbage collection
    takes up to seconds on a busy machine, and the parts are stopped one after the other.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def become(uid: int, gid: int) -> None:
    """Gives up root for ``uid`` for good, keeping only the right to read and search any folder.

    With that one right programs and data below a private folder (a checkout in ``/root``) stay
    reachable without changing anybody's modes. It is passed on to what is executed next.
    """
    libc = _libc()
    linux = sys.platform == "linux"
    if linux:
        _check(libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "prctl")
        # Else access(2), by which initdb looks for its programs, would not count that right. Where
        # it is refused (a container that has taken it from root) only public folders will do.
        libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    os.setgroups([gid])
    os.setgid(gid)
    os.setuid(uid)
    if linux:
        only = 1 << _CAP_DAC_READ_SEARCH
        header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
        sets = struct.pack("IIIIII", only, only, only, 0, 0, 0)  # effective, permitted, inheritable
        _check(libc.capset(header, sets), "capset")
        ambient = libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH, 0, 0)
        _check(ambient, "prctl")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
