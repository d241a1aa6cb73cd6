"""What runs stream that were made for the thread protocol."""

import asyncio
import json
import operator
import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolCallTransformer, ToolNode
from langgraph.stream import ProtocolEvent, StreamChannel, StreamTransformer
from langgraph.types import Command, interrupt

from actors.child import runner
from actors.child.serialize import dumps_brief


class Model(BaseChatModel):
    """Says a word and calls a tool, in pieces."""

    @property
    def _llm_type(self) -> str:
        return "pieces"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("whole"))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        usage: Any = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
        first = AIMessageChunk(content="calling", usage_metadata=usage)
        yield ChatGenerationChunk(message=first)
        for name, args, call_id in (("add", '{"a": 1,', "c1"), (None, '"b": 2}', None)):
            part = tool_call_chunk(name=name, args=args, id=call_id, index=0)
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[part]))


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
def in_blocks(a: int, b: int) -> list[dict[str, str]]:
    """Answers in content blocks."""
    return [{"type": "text", "text": "one"}]


@tool
def refuse(a: int, b: int) -> str:
    """Fails in a way that the model is to hear of."""
    raise ToolException("no")


refuse.handle_tool_error = True


@tool
def command(a: int, b: int) -> Command[Any]:
    """Writes the state itself."""
    return Command(update={"messages": [ToolMessage("done", tool_call_id="c1")]})


async def _call(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await Model().ainvoke(state["messages"])]}


def chat() -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("model", _call)
    builder.add_node("tools", ToolNode([add]))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    return builder.compile()


def using(used: BaseTool) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("use", ToolNode([used]))
    builder.add_edge(START, "use")
    return builder.compile()


def asking_for(used: BaseTool) -> dict[str, Any]:
    """A conversation in which the model has called the tool."""
    call = {"name": used.name, "args": {"a": 1, "b": 2}, "id": "c1"}
    return {"messages": [{"type": "ai", "content": "", "tool_calls": [call]}]}


class Trail(TypedDict, total=False):
    """Who has been there, in order."""

    trail: Annotated[list[str], operator.add]


def nested(inside: Any, state: Any = Trail, **compiled: Any) -> Any:
    builder = StateGraph(state)
    builder.add_node("sub", inside)
    builder.add_edge(START, "sub")
    return builder.compile(**compiled)


def single(node: Any) -> Any:
    builder = StateGraph(Trail)
    builder.add_node("inner", node)
    builder.add_edge(START, "inner")
    return builder.compile()


def _write(state: Trail) -> Trail:
    get_stream_writer()({"name": "progress", "done": 1})
    return {"trail": ["inner"]}


def _ask(state: Trail) -> Trail:
    return {"trail": [interrupt("go on?")]}


def _fail(state: Trail) -> Trail:
    raise ValueError("broken")


class Executed:
    """Runs of one thread, made for the thread protocol."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.saver = InMemorySaver()
        self.thread_id = str(uuid.uuid4())
        self.result: runner.Result | None = None
        self.events: list[tuple[str, Any]] = []

    async def run(self, **kwargs: Any) -> list[tuple[str, Any]]:
        """The run's events; ``@`` stands for the ids of tasks."""
        self.events = []

        async def emit(name: str, data: bytes) -> None:
            mode, *namespace = name.split("|")
            shown = "|".join([mode, *(part.partition(":")[0] + ":@" for part in namespace)])
            self.events.append((shown, json.loads(data)))

        configurable = {"__event_streaming_v2": True}
        start = runner.Start(
            run_id=str(uuid.uuid4()),
            thread_id=self.thread_id,
            assistant_id=str(uuid.uuid4()),
            graph_id="agent",
            attempt=1,
            kwargs={**kwargs, "config": {"configurable": configurable}, "subgraphs": True},
        )
        self.result = await runner.run(start, self.graph, self.saver, None, emit)
        return self.events

    def of(self, *modes: str) -> list[tuple[str, Any]]:
        """The events of some modes, at any depth."""
        return [(name, data) for name, data in self.events if name.partition("|")[0] in modes]


async def test_a_chat_model_streams_content_blocks() -> None:
    run = Executed(chat())
    await run.run(input={"messages": [{"role": "user", "content": "hi"}]})
    told = [data for name, data in run.of("messages") if name == "messages"]
    message_id = told[0].pop("id")
    assert told == [
        {"event": "message-start", "role": "ai"},
        {"event": "content-block-start", "index": 0, "content": {"type": "text", "text": ""}},
        {
            "event": "content-block-delta",
            "index": 0,
            "delta": {"type": "text-delta", "text": "calling"},
        },
        {
            "event": "content-block-start",
            "index": 1,
            "content": {
                "type": "tool_call_chunk",
                "id": "c1",
                "name": "add",
                "args": "",
                "index": 0,
            },
        },
        *(
            {
                "event": "content-block-delta",
                "index": 1,
                "delta": {"type": "tool-call-delta", "args": args},
            }
            for args in ('{"a": 1,', '"b": 2}')
        ),
        {
            "event": "content-block-finish",
            "index": 0,
            "content": {"type": "text", "text": "calling"},
        },
        {
            "event": "content-block-finish",
            "index": 1,
            "content": {
                "type": "tool_call",
                "id": "c1",
                "name": "add",
                "args": {"a": 1, "b": 2},
            },
        },
        {
            "event": "message-finish",
            "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        },
    ]
    final = run.of("values")[-1][1]["messages"]
    assert [message["type"] for message in final] == ["human", "ai", "tool"]
    assert set(final[0]) == {"type", "content", "id"}, "no field that is empty"
    assert final[1]["id"] == message_id, "the streamed message is the one in the state"
    assert [block["type"] for block in final[1]["content"]] == ["text", "tool_call"]
    assert final[2]["artifact"] is None
    tools = [data for _, data in run.of("tools")]
    assert [one["event"] for one in tools] == ["tool-started", "tool-finished"]
    assert tools[0]["input"] == {"a": 1, "b": 2}
    assert run.result is not None
    stored = json.loads(run.result.parts["values"])["messages"]
    assert stored[0]["additional_kwargs"] == {}, "rows have the whole form"


@pytest.mark.parametrize(
    ("used", "text"),
    [
        (add, "3"),
        (in_blocks, '[{"type":"text","text":"one"}]'),
        (refuse, "no"),
        (command, ""),
    ],
    ids=lambda used: getattr(used, "name", None),
)
async def test_what_a_tool_returns_is_a_message_of_its_call(used: BaseTool, text: str) -> None:
    run = Executed(nested(using(used), MessagesState, transformers=[ToolCallTransformer]))
    await run.run(input=asking_for(used))
    told = run.of("tools", "messages")
    assert [name for name, _ in told] == ["tools|sub:@"] * 2 + ["messages|sub:@|tools:@"] * 5
    assert run.result is not None
    stored = json.loads(run.result.parts["values"])["messages"][-1]
    message_id = "tool-c1" if used is command else stored["id"]
    assert [data for _, data in told[2:]] == [
        {"event": "message-start", "role": "tool", "id": message_id, "tool_call_id": "c1"},
        {"event": "content-block-start", "index": 0, "content": {"type": "text", "text": ""}},
        {"event": "content-block-delta", "index": 0, "delta": {"type": "text-delta", "text": text}},
        {"event": "content-block-finish", "index": 0, "content": {"type": "text", "text": text}},
        {"event": "message-finish", "metadata": {}},
    ]
    if used is not command:
        assert told[1][1]["output"]["id"] == stored["id"], "told as it is found in the state"


async def test_a_tool_says_nothing_where_the_graph_does_not_want_it_told_of() -> None:
    run = Executed(using(add))
    await run.run(input=asking_for(add))
    assert [data["event"] for _, data in run.of("tools")] == ["tool-started", "tool-finished"]
    assert run.of("messages") == []


async def test_each_checkpoint_comes_before_its_values() -> None:
    run = Executed(nested(single(_write)))
    events = await run.run(input={"trail": ["start"]})
    places = [(name, data) for name, data in events if name.startswith(("values", "checkpoints"))]
    for at, (name, _) in enumerate(places):
        if name.startswith("values"):
            assert places[at - 1][0] == name.replace("values", "checkpoints")
    root = [data for name, data in places if name == "checkpoints"]
    assert [data["step"] for data in root] == [-1, 0, 1]
    assert [data["source"] for data in root] == ["input", "loop", "loop"]
    assert [data.get("parent_id") for data in root[1:]] == [data["id"] for data in root[:-1]]


async def test_everything_else_comes_from_plain_graphs_too() -> None:
    run = Executed(nested(single(_write)))
    await run.run(input={"trail": []})
    assert run.of("custom") == [("custom|sub:@", {"name": "progress", "done": 1})]
    assert run.of("updates") == [
        ("updates|sub:@", {"inner": {"trail": ["inner"]}}),
        ("updates", {"sub": {"trail": ["inner"]}}),
    ]
    assert [(name, data["name"], "result" in data) for name, data in run.of("tasks")] == [
        ("tasks", "sub", False),
        ("tasks|sub:@", "inner", False),
        ("tasks|sub:@", "inner", True),
        ("tasks", "sub", True),
    ]


@pytest.mark.parametrize(
    ("node", "end"), [(_write, "completed"), (_ask, "interrupted"), (_fail, "failed")]
)
async def test_subgraphs_begin_and_end(node: Any, end: str) -> None:
    run = Executed(nested(single(node)))
    await run.run(input={"trail": []})
    (first, started), (last, ended) = run.of("lifecycle")
    assert first == last == "lifecycle|sub:@"
    assert started["event"] == "started"
    assert started["graph_name"] == "sub"
    assert started["namespace"] == [f"sub:{started['trigger_call_id']}"]
    assert (ended["event"], ended["graph_name"]) == (end, "sub")


async def test_an_interrupted_run_tells_its_questions_and_goes_on() -> None:
    run = Executed(nested(single(_ask)))
    await run.run(input={"trail": []})
    asked = [(name, data["__interrupt__"]) for name, data in run.of("updates")]
    assert [name for name, _ in asked] == ["updates|sub:@", "updates"]
    assert asked[0][1][0]["value"] == "go on?"
    assert run.result is not None
    assert list(run.result.next) == ["sub"]
    await run.run(command={"resume": {asked[0][1][0]["id"]: "yes"}})
    assert run.of("values")[-1][1] == {"trail": ["yes"]}
    assert not run.result.next


async def test_the_transformers_of_a_graph_are_heard() -> None:
    class Seen(StreamTransformer):
        """Tells which nodes were updated, on a channel of its own."""

        required_stream_modes = ("updates",)

        def __init__(self, scope: tuple[str, ...] = ()) -> None:
            super().__init__(scope)
            self._channel: StreamChannel[Any] = StreamChannel("seen")

        def init(self) -> dict[str, Any]:
            return {"seen": self._channel}

        def process(self, event: ProtocolEvent) -> bool:
            if event["method"] == "updates":
                self._channel.push(list(event["params"]["data"]))
            return True

    run = Executed(nested(single(_write), transformers=[Seen]))
    await run.run(input={"trail": []})
    assert run.of("custom")[1:] == [
        ("custom", {"name": "seen", "payload": ["inner"]}),
        ("custom", {"name": "seen", "payload": ["sub"]}),
    ]
    assert run.result is not None
    assert json.loads(run.result.parts["values"]) == {"trail": ["inner"]}


async def test_a_run_that_is_stopped_leaves_nothing_running() -> None:
    begun = asyncio.Event()

    async def wait(state: Trail) -> Trail:
        begun.set()
        await asyncio.sleep(1000)
        return {}

    run = Executed(nested(single(wait)))
    running = asyncio.create_task(run.run(input={"trail": ["kept"]}))
    async with asyncio.timeout(60):
        await begun.wait()
        others = asyncio.all_tasks()
        running.cancel()
        await running
    assert run.result is not None
    assert run.result.end == "cancelled"
    assert json.loads(run.result.parts["values"]) == {"trail": ["kept"]}
    async with asyncio.timeout(60):
        await asyncio.wait(others - {running, asyncio.current_task()} or {running})


def test_brief_messages() -> None:
    message = AIMessage("", id="1", additional_kwargs={"kept": 1}, tool_calls=[])
    assert json.loads(dumps_brief({"m": [HumanMessage("x"), message]})) == {
        "m": [
            {"type": "human", "content": "x"},
            {"type": "ai", "content": "", "id": "1", "additional_kwargs": {"kept": 1}},
        ]
    }
    assert json.loads(dumps_brief({"n": 2**70, "m": HumanMessage("x")}))["n"] == 2**70
