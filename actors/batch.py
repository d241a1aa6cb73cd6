"""Many small requests, few statements: what arrives while one is under way goes with the next."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batch(Generic[Item, Answer]):
    """Clocks itself: an idle one flushes at once, a busy one gathers. No timer, no added delay."""

    def __init__(
        self, flush: Callable[[list[Item]], Awaitable[list[Answer | Exception]]], limit: int = 200
    ) -> None:
        """flush: answers a list of items, one answer each, in order; an exception among them is
        raised for its item. limit: items per flush."""
        self._flush = flush
        self._limit = limit
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._flushing: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Answer:
        """Returns the item's answer. Raises what the flush raised, for all its items alike."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._drain(), name="batch")
        return await answer

    async def _drain(self) -> None:
        while self._waiting:
            count = min(len(self._waiting), self._limit)
            batch = [self._waiting.popleft() for _ in range(count)]
            try:
                answers = await self._flush([item for item, _ in batch])
            except Exception as error:  # noqa: BLE001  # whatever it is, the submitters must get it
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, answer), value in zip(batch, answers, strict=True):
                if answer.done():
                    continue
                if isinstance(value, Exception):
                    answer.set_exception(value)
                else:
                    answer.set_result(value)
