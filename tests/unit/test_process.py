"""What a process may do when it has given root up."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

TRY = """
import os, sys
from callboard.process import become
uid, gid, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
become(uid, gid)
assert os.geteuid() == uid
assert os.access(program, os.R_OK | os.X_OK), "access(2), as initdb asks"
assert os.execv(program, [program, program]) is None
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give root up")
@pytest.mark.skipif(sys.platform != "linux", reason="Linux has the right to search any folder")
def test_programs_below_a_private_folder_stay_within_reach(tmp_path: Path) -> None:
    """A checkout of root's lies in ``/root``, which nobody else may enter."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    program = private / "program"
    program.write_text('#!/bin/sh\ntest -r "$1" && ! (echo >> "$1") 2>/dev/null && echo fine\n')
    program.chmod(0o755)
    nobody = pwd.getpwnam("nobody")
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(nobody.pw_uid), str(nobody.pw_gid), str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")
