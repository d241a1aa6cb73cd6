"""Clients at work, in a thread of their own, until they are told that it is enough."""

import asyncio
import random
import threading
from pathlib import Path

import httpx
from langgraph_sdk import get_client

from tests.soak.ledger import Ledger
from tests.soak.work import Client, Work

_PATIENCE_SECONDS = 180.0
"""Whatever takes a client longer hangs: it is the sum of all that may delay a run here."""


class Load:
    """So many clients, each of which does one random thing after the other."""

    def __init__(
        self,
        url: str,
        ledger: Ledger,
        folder: Path,
        clients: int,
        kinds: dict[Work, int],
        seed: str,
    ) -> None:
        self._url, self._ledger, self._folder = url, ledger, folder
        self._clients, self._kinds, self._seed = clients, kinds, seed
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), name="load")

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Everybody ends what was begun."""
        self._over.set()
        self._thread.join()

    async def _all(self) -> None:
        await asyncio.gather(*(self._work(number) for number in range(self._clients)))

    async def _work(self, number: int) -> None:
        async with (
            get_client(url=self._url) as sdk,
            httpx.AsyncClient(base_url=self._url, timeout=60) as http,
        ):
            draw = random.Random(f"{self._seed} {number}")
            client = Client(sdk, http, draw, self._ledger, self._folder)
            while not self._over.is_set():
                (work,) = draw.choices(list(self._kinds), list(self._kinds.values()))
                await self._do(client, work)

    async def _do(self, client: Client, work: Work) -> None:
        client.kind = work.__name__
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                try:
                    await work(client)
                    self._ledger.meet(client.kind, "done")
                except httpx.HTTPError as error:
                    await client.disturbed(error)
        except TimeoutError:
            self._ledger.fault(f"{client.kind}: hangs")
        except httpx.HTTPStatusError as error:
            answer = f"{error.response.status_code} to {error.request.method}"
            self._ledger.fault(f"{client.kind}: {answer} {error.request.url.path} {error}")
        except Exception as error:  # what nobody foresaw must not end the load
            self._ledger.fault(f"{client.kind}: {type(error).__name__}: {str(error)[:500]}")
