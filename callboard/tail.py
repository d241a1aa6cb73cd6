"""Shows what is added to the log files of the parts, each line behind the name of its part."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path


class Tail:
    """What is new in the files of a folder since the last look; follows their rotation."""

    def __init__(self, folder: Path, *, shown: Callable[[str], bool]) -> None:
        """shown: whether the part with this name is of interest. Old content is not."""
        self._folder = folder
        self._shown = shown
        self._seen = {path: (_identity(path), path.stat().st_size) for path in self._files()}
        self._rest: dict[Path, bytes] = {}

    def lines(self) -> Iterator[str]:
        """The lines that were completed since the last call."""
        for path in self._files():
            text = self._rest.pop(path, b"") + self._added(path)
            *complete, rest = text.split(b"\n")
            if rest:
                self._rest[path] = rest
            for line in complete:
                yield f"{path.stem:<11} {line.decode(errors='replace')}"

    def _files(self) -> list[Path]:
        return [path for path in sorted(self._folder.glob("*.log")) if self._shown(path.stem)]

    def _added(self, path: Path) -> bytes:
        identity = _identity(path)
        known, offset = self._seen.get(path, (identity, 0))
        if known != identity or path.stat().st_size < offset:  # rotated, or emptied
            offset = 0
        with path.open("rb") as file:
            file.seek(offset)
            text = file.read()
        self._seen[path] = (identity, offset + len(text))
        return text


def last_lines(path: Path, count: int) -> list[str]:
    """The end of a log file, for people; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 64 * 1024))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []


def _identity(path: Path) -> int:
    return path.stat().st_ino
