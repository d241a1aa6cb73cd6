"""The project's graphs: imported once, opened for each use.

What a project may export under a graph's name: a compiled graph, a builder (``StateGraph``), or a
factory of either: a function, a coroutine function, a context manager or an asynchronous one. A
factory is called for each use and never before the first, so that it always sees a real config; it
may take the run's config and the server's runtime.
"""

import asyncio
import contextlib
import dataclasses
import functools
import importlib
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore
from pydantic import BaseModel

from actors.child import modules
from actors.child.user import User

sdk_runtime: Any
try:
    sdk_runtime = importlib.import_module("langgraph_sdk.runtime")
except ImportError:  # an older SDK knows no runtime for factories
    sdk_runtime = None

RUN = "threads.create_run"
"""Access context of a graph that is opened to execute a run."""

Compiled = Pregel[Any, Any, Any, Any]
"""A graph that can run."""


class GraphUnavailable(RuntimeError):  # so that its text is for clients to see
    """The project has no such graph, or it could not be loaded. ``reason`` says which, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WrongExport(TypeError):
    """What stands under the graph's name, or what its factory returned, is no graph."""


@dataclass
class Graphs:
    """The graphs of a project.

    broken: graph id → why it could not be loaded. The others serve.
    store: given to every graph that is opened, and to factories that take the runtime.
    """

    broken: dict[str, str] = field(default_factory=dict)
    store: BaseStore | None = None
    _exports: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def import_all(cls, project: Mapping[str, Any]) -> "Graphs":
        """Imports every graph of the project.

        To be called where no loop turns: a module may call ``asyncio.run``, or take minutes.

        project: ``{"root": folder, "graphs": {id: "./file.py:var" | "package.module:var"},
            "dependencies": [folders]}``. Root and dependencies become the first entries of
            ``sys.path``. Never raises for what a graph does: that graph is in ``broken``.
        """
        root = Path(project["root"])
        folders = [root, *(Path(folder) for folder in project.get("dependencies") or ())]
        targets: dict[str, str] = project["graphs"]
        if refusal := modules.reserved_name(folders):
            return cls(broken=dict.fromkeys(targets, refusal))
        modules.prepend(folders)
        graphs, imports = cls(), _Imports(root, folders)
        for graph_id, target in targets.items():
            try:
                graphs._exports[graph_id] = _checked(imports.export(target), target)
            except BaseException as error:  # noqa: BLE001  # user code, which may call sys.exit too
                graphs.broken[graph_id] = modules.reason(error, root, folders)
        return graphs

    @property
    def ids(self) -> list[str]:
        """The graphs that serve."""
        return list(self._exports)

    @contextlib.asynccontextmanager
    async def open(
        self,
        graph_id: str,
        config: Mapping[str, Any] | None = None,
        *,
        access: str = RUN,
        context: Any = None,
    ) -> AsyncIterator[Compiled]:
        """Yields a compiled graph of the caller's own: it may set ``checkpointer`` on it.

        config: what a factory is given; the user is taken from its ``configurable``.
        access: why the graph is opened, in the words of ``langgraph_sdk.runtime``.
        context: the run's context, for a factory that takes the runtime of a run.
        Raises GraphUnavailable when there is no such graph, and what the user's factory raises.
        """
        if graph_id in self.broken:
            why = self.broken[graph_id]
            raise GraphUnavailable(f"Graph '{graph_id}' could not be loaded: {why}")
        if graph_id not in self._exports:
            known = ", ".join(sorted(self._exports)) or "none"
            raise GraphUnavailable(
                f"there is no graph named '{graph_id}' here (there are: {known})"
            )
        export = self._exports[graph_id]
        async with contextlib.AsyncExitStack() as stack:
            if not isinstance(export, Pregel | StateGraph):
                given = _Given(dict(config or {}), self.store, access, context)
                export = await _made(export, given, stack)
            yield _compiled(export).copy({"checkpointer": None, "store": self.store})


class _Imports:
    """Imports each module at most once, also one that fails."""

    def __init__(self, root: Path, folders: list[Path]) -> None:
        self._root = root
        self._folders = folders
        self._done: dict[str, ModuleType | BaseException] = {}

    def export(self, target: str) -> Any:
        place, colon, name = target.rpartition(":")
        if not colon or not place or not name:
            raise modules.ImportRefused(
                f"'{target}' does not name a graph: expected 'path/to/file.py:variable'"
                " or 'package.module:variable'"
            )
        module = self._module(place)
        if not hasattr(module, name):
            raise modules.ImportRefused(f"{place} has no variable '{name}'")
        return getattr(module, name)

    def _module(self, place: str) -> ModuleType:
        if place not in self._done:
            try:
                self._done[place] = self._import(place)
            except BaseException as error:  # noqa: BLE001  # raised below, for each graph in it
                self._done[place] = error
        done = self._done[place]
        if isinstance(done, BaseException):
            raise done
        return done

    def _import(self, place: str) -> ModuleType:
        if "/" in place or "\\" in place or Path(place).suffix in _FILES:
            return modules.import_file(self._root / place, self._root, self._folders)
        return modules.import_name(place)


_FILES = {".py", ".ts", ".js", ".mjs", ".cjs", ".mts"}


def _checked(export: Any, target: str) -> Any:
    """The export, when it is of a kind that can be opened; a factory's parameters included."""
    if isinstance(export, Pregel | StateGraph):
        return export
    if isinstance(export, type) or not callable(export):
        raise WrongExport(f"{target} is {_a(export)}, {_EXPECTED}")
    _arguments(export)
    return export


_EXPECTED = "but expected a compiled graph, a StateGraph, or a function that returns one"


def _compiled(export: Any) -> Compiled:
    if isinstance(export, StateGraph):
        return export.compile()
    if isinstance(export, Pregel):
        return export
    raise WrongExport(f"the graph's factory returned {_a(export)}, {_EXPECTED}")


def _a(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"an object of type {type(value).__name__}"


# Factories


@dataclass(frozen=True, slots=True)
class _Given:
    """What a factory can ask for."""

    config: dict[str, Any]
    store: BaseStore | None
    access: str
    context: Any

    def runtime(self, annotation: Any) -> Any:
        """The SDK's runtime; it has the run's context when the graph is opened for a run."""
        who = (self.config.get("configurable") or {}).get("langgraph_auth_user")
        user = User(who) if isinstance(who, Mapping) else who
        if self.access == RUN:
            return sdk_runtime._ExecutionRuntime(
                access_context=RUN,
                user=user,
                store=self.store,
                context=_as_declared(self.context, annotation),
            )
        return sdk_runtime._ReadRuntime(access_context=self.access, user=user, store=self.store)


async def _made(
    factory: Callable[..., Any], given: _Given, stack: contextlib.AsyncExitStack
) -> Any:
    """What the factory makes; what it opened is closed with ``stack``."""
    arguments = {
        name: given.runtime(annotation) if kind == "runtime" else given.config
        for name, (kind, annotation) in _arguments(factory).items()
    }
    if inspect.isasyncgenfunction(factory):  # a context manager that lacks its decorator
        factory = contextlib.asynccontextmanager(factory)
    call = functools.partial(factory, **arguments)
    # A plain function may block, or call asyncio.run: that is ordinary, so it gets a thread.
    made = call() if _is_async(factory) else await asyncio.to_thread(call)
    if inspect.isawaitable(made):
        made = await made
    if isinstance(made, Pregel | StateGraph):
        return made
    if hasattr(made, "__aenter__"):
        return await stack.enter_async_context(made)
    if hasattr(made, "__enter__"):
        made_inside = await asyncio.to_thread(made.__enter__)
        stack.push_async_exit(functools.partial(asyncio.to_thread, made.__exit__))
        return made_inside
    return made


def _is_async(factory: Callable[..., Any]) -> bool:
    """Whether calling it only makes an object that is awaited or entered."""
    inner = inspect.unwrap(factory)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    return (
        inspect.iscoroutinefunction(inner)
        or inspect.isasyncgenfunction(inner)
        # A generator under @contextmanager runs when it is entered.
        or inspect.isgeneratorfunction(inner)
    )


def _arguments(factory: Callable[..., Any]) -> dict[str, tuple[str, Any]]:
    """Parameter → ("config" or "runtime", its annotation); by annotation, then by name.

    Raises WrongExport for a parameter that must be given and is neither.
    """
    wanted: dict[str, tuple[str, Any]] = {}
    for parameter, annotation in _parameters(factory):
        if _is_runtime(annotation) or (parameter.name == "runtime" and sdk_runtime is not None):
            kind = "runtime"
        elif _is_config(annotation) or parameter.name == "config":
            kind = "config"
        elif parameter.default is parameter.empty:
            # The only parameter of a factory has always been the config, whatever its name.
            kind = "config" if not wanted and annotation is parameter.empty else ""
        else:
            continue
        if not kind:
            raise WrongExport(
                f"the graph's factory wants '{parameter.name}'; a factory may take"
                " 'config: RunnableConfig' and 'runtime: ServerRuntime'"
            )
        wanted[parameter.name] = (kind, annotation)
    return wanted


def _parameters(factory: Callable[..., Any]) -> list[tuple[inspect.Parameter, Any]]:
    signature = inspect.signature(factory)
    function = inspect.unwrap(factory)
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001  # names that exist for type checkers only, or no annotations
        hints = {}
    named = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        (parameter, hints.get(name, parameter.annotation))
        for name, parameter in signature.parameters.items()
        if parameter.kind not in named
    ]


def _is_config(annotation: Any) -> bool:
    return annotation in (RunnableConfig, "RunnableConfig") or RunnableConfig in typing.get_args(
        annotation
    )


def _is_runtime(annotation: Any) -> bool:
    if sdk_runtime is None:
        return False
    if isinstance(annotation, str):
        return annotation.split("[")[0].rpartition(".")[2] == "ServerRuntime"
    ours = (sdk_runtime.ServerRuntime, sdk_runtime._ExecutionRuntime, sdk_runtime._ReadRuntime)
    return annotation in ours or typing.get_origin(annotation) in ours


def _as_declared(context: Any, annotation: Any) -> Any:
    """The run's context as the type in ``ServerRuntime[Context]``; as it came without one."""
    declared = next(iter(typing.get_args(annotation)), None)
    if not isinstance(context, Mapping) or not isinstance(declared, type):
        return context
    if issubclass(declared, BaseModel):
        return declared.model_validate(context)
    if dataclasses.is_dataclass(declared):
        names = {entry.name for entry in dataclasses.fields(declared) if entry.init}
        return declared(**{name: value for name, value in context.items() if name in names})
    return context
