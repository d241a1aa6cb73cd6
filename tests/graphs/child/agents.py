"""Graphs that behave, and graphs that do not: what a graph process must be able to stop."""

import asyncio
import contextlib
import ctypes
import os
import subprocess
import sys
import threading
import time
from typing import Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime

print("agents are imported")


class State(TypedDict, total=False):
    note: str
    seen: list[str]


def _graph(node: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder.compile()


def _at(config: RunnableConfig) -> str:
    """A file that the test waits for: the node has begun."""
    path = str(config["configurable"].get("at", os.devnull))
    with open(path, "a") as file:
        file.write("begun\n")
    return path


def _mark(path: str, word: str) -> None:
    with open(path, "a") as file:
        file.write(f"{word}\n")


# Well-behaved


async def _echo(state: State, config: RunnableConfig) -> State:
    print("echo prints", state.get("note"))
    sys.stdout.write("without an end of line")
    return {"seen": [state.get("note", ""), config["configurable"]["thread_id"]]}


def _sync_echo(state: State) -> State:
    print("a thread prints")
    return {"note": threading.current_thread().name}


async def _store(state: State, runtime: Runtime) -> State:
    assert runtime.store is not None
    await runtime.store.aput(("notes",), "one", {"text": state["note"]})
    found = await runtime.store.aget(("notes",), "one")
    assert found is not None
    return {"note": found.value["text"]}


async def _fail(state: State) -> State:
    raise ValueError("this went wrong")


async def _fails_unspeakably(state: State) -> State:
    raise ValueError("no file \udcff")


async def _grandchildren(state: State) -> State:
    """How many of two grandchildren have the socket to the worker, and what stdin holds."""
    script = "import os, sys; sys.exit(os.path.exists(sys.argv[1]))"
    place = next(path for path in _sockets() if os.readlink(path) == os.environ["WORKER_SOCKET"])
    fork = os.fork()
    if fork == 0:
        os._exit(os.path.exists(place))
    forked = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
    executed = subprocess.call([sys.executable, "-c", script, place], close_fds=False)
    return {"note": f"{forked + executed} {sys.stdin.read()!r}"}


def _sockets() -> list[str]:
    """Links of this process's sockets, by a path that means the same fd in a child."""
    links = [f"/proc/self/fd/{entry}" for entry in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.lexists(link) and "socket" in os.readlink(link)]


echo = _graph(_echo)
sync_echo = _graph(_sync_echo)
store = _graph(_store)
fail = _graph(_fail)
fails_unspeakably = _graph(_fails_unspeakably)
grandchildren = _graph(_grandchildren)


@contextlib.asynccontextmanager
async def user(config: RunnableConfig) -> Any:
    """Built for each run."""
    name = config["configurable"]["langgraph_auth_user_id"]
    yield _graph(lambda state: {"note": name})


# Ill-behaved


async def _awaits(state: State, config: RunnableConfig) -> State:
    path = _at(config)
    try:
        await asyncio.sleep(3600)
    finally:
        _mark(path, "cleaned")
    return {}


def _spins_in_thread(state: State, config: RunnableConfig) -> State:
    path = _at(config)
    try:
        while True:
            pass
    finally:
        _mark(path, "cleaned")


def _keeps_the_interpreter(state: State, config: RunnableConfig) -> State:
    """As native code that does not let go of Python's lock, for four seconds."""
    _at(config)
    time.sleep(0.3)
    ctypes.PyDLL(None).sleep(4)
    return {"note": "kept"}


async def _spins_on_loop(state: State, config: RunnableConfig) -> State:
    path = _at(config)
    try:
        while True:
            pass
    finally:
        _mark(path, "cleaned")


async def _sleeps_on_loop(state: State, config: RunnableConfig) -> State:
    path = _at(config)
    try:
        time.sleep(3600)
    finally:
        _mark(path, "cleaned")
    return {}


async def _swallows_once(state: State, config: RunnableConfig) -> State:
    _at(config)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)
    return {"note": "as if nothing had happened"}


async def _swallows_always(state: State, config: RunnableConfig) -> State:
    path = _at(config)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            _mark(path, "swallowed")


def _swallows_in_thread(state: State, config: RunnableConfig) -> State:
    path = _at(config)
    try:
        while True:
            pass
    except BaseException:
        _mark(path, "swallowed")
    return {"note": "as if nothing had happened"}


def _sleeps_in_thread(state: State, config: RunnableConfig) -> State:
    path = _at(config)
    time.sleep(float(config["configurable"]["seconds"]))
    _mark(path, "slept")
    return {}


def _exits_in_thread(state: State) -> State:
    sys.exit("from a thread")


async def _exits_on_loop(state: State) -> State:
    sys.exit(5)


async def _leaves_things_behind(state: State) -> State:
    threading.Thread(target=time.sleep, args=(3600,)).start()
    return {"note": "left"}


async def _dies(state: State) -> State:
    os._exit(9)


awaits = _graph(_awaits)
spins_in_thread = _graph(_spins_in_thread)
keeps_the_interpreter = _graph(_keeps_the_interpreter)
spins_on_loop = _graph(_spins_on_loop)
sleeps_on_loop = _graph(_sleeps_on_loop)
swallows_once = _graph(_swallows_once)
swallows_always = _graph(_swallows_always)
swallows_in_thread = _graph(_swallows_in_thread)
sleeps_in_thread = _graph(_sleeps_in_thread)
exits_in_thread = _graph(_exits_in_thread)
exits_on_loop = _graph(_exits_on_loop)
leaves_things_behind = _graph(_leaves_things_behind)
dies = _graph(_dies)
