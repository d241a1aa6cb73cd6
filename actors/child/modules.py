"""Imports the modules in which users keep their graphs, under names that stay the same.

A checkpoint names the classes it holds by module, so a file must have the same module name in every
process and after every restart; and a file that two graphs share, or that other user code imports,
must be one module, or its classes would exist twice. So a file is imported under the name by which
the user's own code would import it, wherever there is one.
"""

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import actors

_OURS = Path(actors.__file__).resolve().parent


class ImportRefused(Exception):
    """The module cannot be imported as it is asked for; the text says why."""


def prepend(folders: Sequence[Path]) -> None:
    """Puts ``folders`` first on ``sys.path``, in order, each once."""
    wanted = list(dict.fromkeys(str(folder) for folder in folders))
    sys.path[:] = wanted + [entry for entry in sys.path if entry not in wanted]
    importlib.invalidate_caches()


def reserved_name(folders: Sequence[Path]) -> str | None:
    """A sentence when a folder holds a module named ``actors``, which would collide with ours."""
    for folder in folders:
        package, module = folder / "actors", folder / "actors.py"
        if package.is_dir() and package.resolve() != _OURS and any(package.rglob("*.py")):
            found = package
        elif module.is_file():
            found = module
        else:
            continue
        return (
            f"the project has a top-level module named 'actors' ({found}); this is the only name"
            " that is reserved: please rename it or move it into a package"
        )
    return None


def import_file(file: Path, root: Path, folders: Sequence[Path]) -> ModuleType:
    """The module of a Python file, imported once, whatever name it is known by.

    root: the project's folder; a file that has no importable name is named by its place below it.
    folders: the user's entries of ``sys.path``.
    Raises ImportRefused when there is no such file, and whatever the module itself raises.
    """
    if not file.is_file():
        raise ImportRefused(f"there is no file {_shown(file, root)}")
    if file.suffix != ".py":
        raise ImportRefused(
            f"{_shown(file, root)} is not a Python file; only Python graphs run here"
        )
    file = file.resolve()
    for loaded in list(sys.modules.values()):
        # Its __dict__: asking a lazily loading module for an attribute may import half the world.
        if getattr(loaded, "__dict__", {}).get("__file__") == str(file):
            return loaded
    for name in _natural_names(file, folders):
        if _leads_to(name, file):
            return importlib.import_module(name)
    return _import_as(_made_name(file, root), file)


def import_name(name: str) -> ModuleType:
    """The module ``package.module``. Raises what the import raises."""
    return importlib.import_module(name)


def reason(error: BaseException, root: Path, folders: Sequence[Path]) -> str:
    """One line for people: what was raised, and where in the user's files."""
    if isinstance(error, ImportRefused):
        return str(error)
    if isinstance(error, SystemExit):
        what = f"it called sys.exit({error.code!r}) while it was imported"
    else:
        what = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename:
        return f"{what} ({_shown(Path(error.filename), root)}:{error.lineno})"
    homes = [folder.resolve() for folder in (root, *folders)]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        # A virtual environment often lies in the project's folder; its files are not the user's.
        if "site-packages" not in file.parts and any(file.is_relative_to(home) for home in homes):
            return f"{what} ({_shown(file, root)}:{frame.lineno})"
    return what


def _natural_names(file: Path, folders: Sequence[Path]) -> Iterator[str]:
    """Names by which user code may import the file, the likeliest first."""
    top = file.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    homes = [folder.resolve() for folder in folders if file.is_relative_to(folder.resolve())]
    for home in dict.fromkeys([top, *sorted(homes, key=lambda home: -len(home.parts))]):
        parts = list(file.relative_to(home).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if parts and all(part.isidentifier() for part in parts):
            yield ".".join(parts)


def _leads_to(name: str, file: Path) -> bool:
    """Whether ``import name`` would load this very file.

    Looks at the top-level name first: finding a submodule imports its parents, and parents that
    belong to somebody else must not run.
    """
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # in sys.modules, and without a spec
        return False
    if spec is None:
        return False
    if rest:
        home = file.parents[len(rest) - (1 if file.name != "__init__.py" else 0)]
        places = [Path(place).resolve() for place in spec.submodule_search_locations or ()]
        if home not in places:
            return False
        spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file


def _made_name(file: Path, root: Path) -> str:
    """A name for a file that has none; made of its place in the project, so that it is stable."""
    try:
        place = file.relative_to(root.resolve())
    except ValueError:
        place = Path(*file.parts[1:])
    words = "".join(letter if letter.isalnum() else "_" for letter in str(place.with_suffix("")))
    # "a/b_c.py" and "a_b/c.py" have the same words.
    digest = hashlib.blake2s(str(place).encode(), digest_size=4).hexdigest()
    return f"callboard_graph_{words}_{digest}"


def _import_as(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportRefused(f"{file} cannot be imported as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _shown(file: Path, root: Path) -> str:
    """The file as the user would write it: relative to the project when it lies below it."""
    for home in (root, root.resolve()):
        if file.is_relative_to(home):
            return str(file.relative_to(home))
    return str(file)
