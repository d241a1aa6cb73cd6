"""Sees that a project's files have changed, by looking at them: works on every file system."""

import os
from collections.abc import Iterator
from pathlib import Path

from callboard.config import Project

_IGNORED = frozenset({"__pycache__", "node_modules", "site-packages", "dist", "build"})
_SUFFIX = ".py"
"""Other files in the project's folders may be written by what runs there: following a log that is
kept there would be a reload for ever."""


class Changes:
    """The state of a project's files at the last look: its code, and what configures it."""

    def __init__(self, project: Project, *, without: Path) -> None:
        """without: the data folder, whose files change all the time."""
        self._folders = {project.root, *project.dependencies}
        self._named = project.files
        self._without = without
        self._known = self._look()

    def seen(self) -> list[Path]:
        """The files that were added, changed or removed since the last call."""
        now = self._look()
        changed = {path for path, _ in now.items() ^ self._known.items()}
        self._known = now
        return sorted(changed)

    def _look(self) -> dict[Path, int]:
        code = (path for folder in self._folders for path in self._code(folder))
        stamps = {path: self._stamp(path) for path in (*self._named, *code)}
        return {path: stamp for path, stamp in stamps.items() if stamp is not None}

    def _stamp(self, path: Path) -> int | None:
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def _code(self, folder: Path) -> Iterator[Path]:
        for where, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if self._is_of_interest(Path(where), name)]
            yield from (Path(where, name) for name in files if name.endswith(_SUFFIX))

    def _is_of_interest(self, where: Path, name: str) -> bool:
        hidden = name.startswith(".") or name in _IGNORED
        return not hidden and where / name != self._without
