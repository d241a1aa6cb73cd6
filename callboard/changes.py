"""Sees that a project's files have changed, by looking at them: works on every file system."""

import os
from collections.abc import Iterator
from pathlib import Path

from callboard.config import Project

_IGNORED = frozenset({"__pycache__", "node_modules", "site-packages", "dist", "build"})
_SUFFIXES = (".py", ".json", ".env", ".toml", ".yaml", ".yml", ".txt", ".md", ".j2", ".jinja")
"""Code, and what code of graphs usually reads when it is loaded."""


class Changes:
    """The state of a project's files at the last look."""

    def __init__(self, project: Project, *, without: Path) -> None:
        """without: the data folder, whose files change all the time."""
        self._folders = {project.root, *project.dependencies}
        self._without = without
        self._known = self._look()

    def seen(self) -> list[Path]:
        """The files that were added, changed or removed since the last call."""
        now = self._look()
        changed = {path for path, _ in now.items() ^ self._known.items()}
        self._known = now
        return sorted(changed)

    def _look(self) -> dict[Path, int]:
        return {path: stamp for folder in self._folders for path, stamp in self._files(folder)}

    def _files(self, folder: Path) -> Iterator[tuple[Path, int]]:
        for where, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if self._is_of_interest(Path(where), name)]
            for name in files:
                if name.endswith(_SUFFIXES):
                    path = Path(where, name)
                    try:
                        yield path, path.stat().st_mtime_ns
                    except FileNotFoundError:
                        continue

    def _is_of_interest(self, where: Path, name: str) -> bool:
        hidden = name.startswith(".") or name in _IGNORED
        return not hidden and where / name != self._without
