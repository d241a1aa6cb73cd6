"""Changes of a project's files are seen; those of its data and its tools are not."""

import json
import os
from pathlib import Path

from callboard.changes import Changes
from callboard.config import load_project


def test_changes_are_seen_once(tmp_path: Path) -> None:
    (tmp_path / "langgraph.json").write_text(
        json.dumps({"graphs": {"agent": "./agent.py:graph"}, "env": "./settings"})
    )
    (tmp_path / "agent.py").write_text("graph = None\n")
    (tmp_path / "settings").write_text("A=1\n")
    data = tmp_path / "data"
    for folder in (data, tmp_path / ".venv", tmp_path / "package", tmp_path / "__pycache__"):
        folder.mkdir()
    changes = Changes(load_project(tmp_path), without=data)
    assert changes.seen() == []

    for path in (data / "a.py", tmp_path / ".venv" / "b.py", tmp_path / "__pycache__" / "c.py"):
        path.write_text("")
    for name in ("server.log", "out.txt", "out.json", "notes.md"):  # what runs there may write it
        (tmp_path / name).write_text("a line\n")
    assert changes.seen() == []

    (tmp_path / "package" / "new.py").write_text("")
    os.utime(tmp_path / "agent.py", (1, 1))
    assert changes.seen() == [tmp_path / "agent.py", tmp_path / "package" / "new.py"]
    assert changes.seen() == []

    os.utime(tmp_path / "langgraph.json", (1, 1))
    os.utime(tmp_path / "settings", (1, 1))
    assert changes.seen() == [tmp_path / "langgraph.json", tmp_path / "settings"]

    (tmp_path / "package" / "new.py").unlink()
    assert changes.seen() == [tmp_path / "package" / "new.py"]
