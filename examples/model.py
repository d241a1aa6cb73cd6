"""A chat model that needs no key: it answers by rules, streams word by word, and calls tools."""

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool

SUM = re.compile(r"\d[\d\s.+*/()-]*[+*/-][\d\s.+*/()-]*\d")
ORDER = re.compile(r"\b(?:order|buy)\s+(\d+)\s+(\w+)", re.IGNORECASE)


class RuleModel(BaseChatModel):
    """Calculates sums and places orders by tools; says what the tools said; else makes talk."""

    seconds_per_word: float = 0.03

    @property
    def _llm_type(self) -> str:
        return "rules"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The rules know the tools already; every model that calls tools has this method."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=answer(messages))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in chunks(answer(messages)):
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk
            time.sleep(self.seconds_per_word)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in chunks(answer(messages)):
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk
            await asyncio.sleep(self.seconds_per_word)


def answer(messages: list[BaseMessage]) -> AIMessage:
    """What the rules make of a conversation."""
    last = messages[-1] if messages else None
    text = last.text if last else ""
    if isinstance(last, ToolMessage):
        return AIMessage(f"The tool {last.name} says: {text}")
    if order := ORDER.search(text):
        arguments = {"amount": int(order[1]), "item": order[2]}
        return AIMessage("", tool_calls=[call("place_order", arguments)])
    if sum_ := SUM.search(text):
        return AIMessage("", tool_calls=[call("calculate", {"expression": sum_[0]})])
    return AIMessage(
        f"You said: {text}. I can calculate (try 17 * 23) and place orders (try: order 3 lamps), "
        "and I ask before I order."
    )


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A call of a tool, as messages carry it."""
    return {"name": name, "args": arguments, "id": f"call-{uuid.uuid4()}", "type": "tool_call"}


def chunks(message: AIMessage) -> Iterator[ChatGenerationChunk]:
    """The message in pieces: its words, then its calls of tools."""
    for word in re.findall(r"\S+\s*", message.text):
        yield ChatGenerationChunk(message=AIMessageChunk(content=word))
    for index, one in enumerate(message.tool_calls):
        part = tool_call_chunk(
            name=one["name"], args=json.dumps(one["args"]), id=one["id"], index=index
        )
        yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[part]))
