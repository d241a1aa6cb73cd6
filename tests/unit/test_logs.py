"""What is logged, as it reaches standard output."""

import logging
from collections.abc import Iterator

import pytest

from callboard.logs import configure


@pytest.fixture
def _as_before() -> Iterator[None]:
    """Gives the root logger back what it had."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:], root.level = handlers, level


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("as_json", ["true", "false"])
def test_a_traceback_shows_no_variables(
    as_json: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOG_JSON", as_json)
    configure("gateway")
    try:
        password = "hunter" + "2"
        raise ValueError(len(password))
    except ValueError:
        logging.getLogger("a.library").exception("it failed")
    logged = capsys.readouterr().out
    assert "it failed" in logged
    assert "ValueError: 7" in logged
    assert "hunter2" not in logged
