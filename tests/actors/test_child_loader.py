"""Graphs in every form a project may export them in, and what is said of broken ones."""

import pickle
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.pregel import Pregel
from langgraph.store.memory import InMemoryStore

from actors.child import modules
from actors.child.loader import Graphs, GraphUnavailable

BUILDER = """
import contextlib
from typing import TypedDict
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    by: str

def build(by: str = "nobody") -> StateGraph:
    builder = StateGraph(State)
    builder.add_node("only", lambda state: {"by": by})
    builder.add_edge(START, "only")
    return builder
"""


@pytest.fixture(autouse=True)
def _clean_imports() -> Iterator[None]:
    """What a test imports is gone after it."""
    before, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], None]:
    """Writes a file of the project."""

    def write(name: str, text: str) -> None:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))

    return write


def load(root: Path, *dependencies: Path, **graphs: str) -> Graphs:
    return Graphs.import_all(
        {"root": str(root), "graphs": graphs, "dependencies": [str(d) for d in dependencies]}
    )


async def by(graphs: Graphs, graph_id: str = "g", **options: Any) -> str:
    """Who the graph says built it."""
    async with graphs.open(graph_id, **options) as graph:
        assert isinstance(graph, Pregel)
        return str((await graph.ainvoke({}))["by"])


EXPORTS = {
    "compiled": "g = build('compiled').compile()",
    "builder": "g = build('builder')",
    "function": "def g(): return build('function').compile()",
    "function_of_builder": "def g(): return build('function_of_builder')",
    "coroutine": "async def g(): return build('coroutine').compile()",
    "context_manager": """
        @contextlib.contextmanager
        def g():
            yield build('context_manager').compile()
        """,
    "async_context_manager": """
        @contextlib.asynccontextmanager
        async def g():
            yield build('async_context_manager').compile()
        """,
    "async_generator": """
        async def g():
            yield build('async_generator').compile()
        """,
    "callable": """
        class Maker:
            async def __call__(self, config: RunnableConfig):
                return build('callable').compile()
        g = Maker()
        """,
}


@pytest.mark.parametrize("form", EXPORTS)
async def test_every_form_opens(form: str, tmp_path: Path, write: Callable[..., None]) -> None:
    write("agent.py", BUILDER + textwrap.dedent(EXPORTS[form]))
    graphs = load(tmp_path, g="./agent.py:g")
    assert graphs.broken == {}
    assert await by(graphs) == form


PARAMETERS = {
    "config by annotation": "def g(anything: RunnableConfig): return build(name(anything))",
    "config by name": "def g(config): return build(name(config))",
    "config as text": "def g(settings: 'RunnableConfig'): return build(name(settings))",
    "config or none": "def g(config: RunnableConfig | None = None): return build(name(config))",
    "config of any name": "def g(whatever): return build(name(whatever))",
    "runtime": "def g(runtime: ServerRuntime): return build(runtime.ensure_user().identity)",
    "runtime by name": "async def g(runtime): return build(runtime.user['identity'])",
    "runtime's context": """
        @dataclass
        class Context:
            who: str
        def g(runtime: ServerRuntime[Context]):
            return build(runtime.execution_runtime.context.who)
        """,
    "both": """
        def g(config: RunnableConfig, runtime: ServerRuntime, unknown: int = 1):
            assert runtime.user.display_name == name(config)
            return build(name(config))
        """,
}


@pytest.mark.parametrize("form", PARAMETERS)
async def test_factories_get_what_they_ask_for(
    form: str, tmp_path: Path, write: Callable[..., None]
) -> None:
    write(
        "agent.py",
        BUILDER
        + "from dataclasses import dataclass\n"
        + "from langgraph_sdk.runtime import ServerRuntime\n"
        + "def name(config): return config['configurable']['langgraph_auth_user']['identity']\n"
        + textwrap.dedent(PARAMETERS[form]),
    )
    graphs = load(tmp_path, g="./agent.py:g")
    graphs.store = InMemoryStore()
    assert graphs.broken == {}
    for user in ("ada", "bob"):
        config = {"configurable": {"langgraph_auth_user": {"identity": user}}}
        assert await by(graphs, config=config, context={"who": user, "more": 1}) == user


async def test_a_reader_gets_no_execution_runtime(
    tmp_path: Path, write: Callable[..., None]
) -> None:
    write(
        "agent.py",
        BUILDER + "def g(runtime): return build(str(runtime.execution_runtime) +"
        " runtime.access_context)",
    )
    assert await by(load(tmp_path, g="./agent.py:g"), access="threads.read") == "Nonethreads.read"


async def test_factories_run_for_each_use_and_are_closed(
    tmp_path: Path, write: Callable[..., None]
) -> None:
    write(
        "agent.py",
        BUILDER
        + textwrap.dedent("""
            seen = []
            @contextlib.asynccontextmanager
            async def g():
                seen.append("open")
                yield build()
                seen.append("close")
            """),
    )
    graphs = load(tmp_path, g="./agent.py:g")
    seen = sys.modules["agent"].seen
    assert seen == []
    await by(graphs)
    assert seen == ["open", "close"]
    with pytest.raises(ZeroDivisionError):
        async with graphs.open("g"):
            raise ZeroDivisionError
    assert seen[:3] == ["open", "close", "open"]


async def test_a_sync_factory_may_block_or_turn_a_loop_of_its_own(
    tmp_path: Path, write: Callable[..., None]
) -> None:
    write(
        "agent.py",
        BUILDER + "import asyncio\ndef g():\n    return asyncio.run(later())\n"
        "async def later():\n    return build('own loop')\n",
    )
    assert await by(load(tmp_path, g="./agent.py:g")) == "own loop"


async def test_what_is_opened_belongs_to_the_caller(
    tmp_path: Path, write: Callable[..., None]
) -> None:
    write(
        "agent.py",
        BUILDER
        + "from langgraph.checkpoint.memory import InMemorySaver\n"
        + "g = build().compile(checkpointer=InMemorySaver())",
    )
    graphs = load(tmp_path, g="./agent.py:g")
    graphs.store = store = InMemoryStore()
    async with graphs.open("g") as one, graphs.open("g") as other:
        assert one.checkpointer is None
        assert one.store is store
        one.checkpointer = False
        assert other.checkpointer is None
    assert sys.modules["agent"].g.checkpointer is not None


BROKEN = {
    "import error": ("import no_such_module\ng = 1", "No module named 'no_such_module' (bad.py:1)"),
    "syntax error": ("x = 1\ng = = 2", "(bad.py:2)"),
    "exit": ("import sys\n\nsys.exit(7)", "it called sys.exit(7) while it was imported (bad.py:3)"),
    "missing": ("x = 1", "bad.py has no variable 'g'"),
    "wrong type": ("g = 42", "bad.py:g is an object of type int, but expected a compiled graph"),
    "class": ("class g: pass", "is the class g, but expected"),
    "parameters": ("def g(config, database): pass", "wants 'database'"),
    "deep": (
        "def f():\n    return {}['key']\nf()",
        "KeyError: 'key' (bad.py:2)",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_graph_is_named_and_the_others_serve(
    kind: str, tmp_path: Path, write: Callable[..., None]
) -> None:
    text, reason = BROKEN[kind]
    write("bad.py", text)
    write("good.py", BUILDER + "g = build('good')")
    graphs = load(tmp_path, bad="./bad.py:g", good="./good.py:g")
    assert graphs.ids == ["good"]
    assert reason in graphs.broken["bad"]
    assert "\n" not in graphs.broken["bad"]
    assert await by(graphs, "good") == "good"
    with pytest.raises(GraphUnavailable) as refused:
        await by(graphs, "bad")
    assert refused.value.reason == f"Graph 'bad' could not be loaded: {graphs.broken['bad']}"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("./nowhere.py:g", "there is no file nowhere.py"),
        ("./agent.ts:g", "agent.ts is not a Python file"),
        ("agent", "does not name a graph"),
        ("no.such:g", "No module named 'no'"),
    ],
)
def test_targets_that_lead_nowhere(
    target: str, reason: str, tmp_path: Path, write: Callable[..., None]
) -> None:
    write("agent.ts", "export const g = 1")
    assert reason in load(tmp_path, g=target).broken["g"]


async def test_an_unknown_graph(tmp_path: Path, write: Callable[..., None]) -> None:
    write("agent.py", BUILDER + "g = build()")
    with pytest.raises(GraphUnavailable, match=r"no graph named 'h' here \(there are: g\)"):
        await by(load(tmp_path, g="./agent.py:g"), "h")


async def test_a_factory_that_makes_no_graph(tmp_path: Path, write: Callable[..., None]) -> None:
    write("agent.py", "def g(): return 42")
    graphs = load(tmp_path, g="./agent.py:g")
    with pytest.raises(TypeError, match="the graph's factory returned an object of type int"):
        await by(graphs)


def test_one_file_is_one_module(tmp_path: Path, write: Callable[..., None]) -> None:
    write("agent.py", BUILDER + "print('imported')\ng = build()\nh = build()")
    write("other.py", "from agent import State, g")
    graphs = load(tmp_path, a="./agent.py:g", b="agent.py:h", c="agent:g", d="./other.py:g")
    assert graphs.broken == {}
    assert sys.modules["other"].State is sys.modules["agent"].State


def test_a_failing_file_is_imported_once(
    tmp_path: Path, write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write("bad.py", "print('imported')\nraise ValueError('no')")
    graphs = load(tmp_path, a="./bad.py:g", b="./bad.py:h")
    assert graphs.broken.keys() == {"a", "b"}
    assert capsys.readouterr().out == "imported\n"


@pytest.mark.parametrize(
    ("file", "dependencies", "name"),
    [
        ("agent.py", (), "agent"),
        ("pack/graph.py", (), "pack.graph"),
        ("src/pack/graph.py", ("src",), "pack.graph"),
        ("src/flat/graph.py", ("src",), "flat.graph"),
        ("json.py", (), "callboard_graph_json_"),
        ("my-graphs/agent.py", (), "callboard_graph_my_graphs_agent_"),
    ],
)
def test_files_have_the_names_their_users_know_them_by(
    file: str, dependencies: tuple[str, ...], name: str, tmp_path: Path, write: Callable[..., None]
) -> None:
    if "/pack/" in f"/{file}":
        write(str(Path(file).parent / "__init__.py"), "")
        write(str(Path(file).parent / "near.py"), "x = 1")
        text = "from .near import x\n"
    else:
        text = ""
    write(file, BUILDER + text + "from dataclasses import dataclass\n@dataclass\nclass D: x: int\n")
    write(file, (tmp_path / file).read_text() + "g = build()")
    graphs = load(tmp_path, *(tmp_path / folder for folder in dependencies), g=f"./{file}:g")
    assert graphs.broken == {}
    [module] = [
        m for m in list(sys.modules.values()) if getattr(m, "__file__", "") == str(tmp_path / file)
    ]
    assert module.__name__.startswith(name)
    thing = module.D(1)
    assert pickle.loads(pickle.dumps(thing)) == thing


def test_names_are_the_same_wherever_the_project_lies(
    tmp_path: Path, write: Callable[..., None]
) -> None:
    places = [tmp_path / "here", tmp_path / "there"]
    assert len({modules._made_name(root / "a-b" / "g.py", root) for root in places}) == 1
    assert modules._made_name(tmp_path / "a/b_c.py", tmp_path) != modules._made_name(
        tmp_path / "a_b/c.py", tmp_path
    )


def test_the_users_modules_come_first(tmp_path: Path, write: Callable[..., None]) -> None:
    write("persistence.py", "mine = True")
    write("agent.py", BUILDER + "import persistence\nassert persistence.mine\ng = build()")
    taken = {
        name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("persist")
    }
    try:
        assert load(tmp_path, g="./agent.py:g").broken == {}
    finally:
        sys.modules.update(taken)


@pytest.mark.parametrize("name", ["actors/__init__.py", "actors/deep/thing.py", "actors.py"])
def test_a_project_with_actors_of_its_own_is_refused(
    name: str, tmp_path: Path, write: Callable[..., None]
) -> None:
    write(name, "")
    write("agent.py", BUILDER + "g = build()")
    assert "named 'actors'" in load(tmp_path, g="./agent.py:g").broken["g"]


def test_loading_may_turn_a_loop(tmp_path: Path, write: Callable[..., None]) -> None:
    write("agent.py", BUILDER + "import asyncio\nasyncio.run(asyncio.sleep(0))\ng = build()")
    assert load(tmp_path, g="./agent.py:g").broken == {}
