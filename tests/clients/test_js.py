"""The JavaScript SDK in Node, and ``useStream`` of both generations in Chromium.

``scripts/test`` installs the packages that they need, from ``package-lock.json``. Node and Chromium
are the machine's: a test that lacks one is skipped, saying so, and fails where ``CI`` is set.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from tests.contract.conftest import Callboard

pytestmark = pytest.mark.topology

FOLDER = Path(__file__).parent
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def lacking(what: str) -> NoReturn:
    """Ends a test that cannot be made here."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="module")
def node() -> str:
    """Path of Node, when the packages are there."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        lacking("there is no node or no npm")
    if not (FOLDER / "node_modules").is_dir():
        lacking("the packages are missing: run 'npm ci' in tests/clients, or scripts/test")
    return node


@pytest.fixture
def chromium() -> str:
    """Path of Chromium."""
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None:
        lacking("there is no Chromium (on Debian: apt-get install chromium)")
    return found


def run(node: str, file: str, callboard: Callboard, **environment: str) -> None:
    done = subprocess.run(
        [node, file],
        cwd=FOLDER,
        env={**os.environ, "CALLBOARD_URL": callboard.url, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout
    assert "\nok 1 - " in done.stdout, done.stdout


def test_the_sdk(node: str, callboard: Callboard) -> None:
    run(node, "js/sdk.test.mjs", callboard)


def test_the_hooks(node: str, chromium: str, callboard: Callboard) -> None:
    run(node, "browser/hooks.test.mjs", callboard, CHROMIUM=chromium)
