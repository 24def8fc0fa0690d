"""An HTTP source on a loopback socket, before a journal in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from flumeng.agent.ingest import batch
from flumeng.connectors.api.received_block import ReceivedBlock
from flumeng.connectors.api.source import SourceContext
from flumeng.connectors.http.options import Http
from flumeng.connectors.http.received_body import Limits
from flumeng.connectors.http.source import HttpSource
from tests.testkit.waiting import PATIENCE_SECONDS


class Journal:
    """Takes the blocks of a source; makes them durable at once, or on request."""

    def __init__(self, *, durable: bool = True) -> None:
        self.blocks: list[ReceivedBlock] = []
        self.durable = durable
        self.context = SourceContext("me", {}, self._submit, lambda _: None, lambda: None)

    def _submit(self, block: ReceivedBlock) -> None:
        self.blocks.append(block)
        if self.durable and block.on_durable is not None:
            asyncio.get_running_loop().call_soon(block.on_durable, 0)

    def make_durable(self, end: int = 0) -> None:
        for block in self.blocks:
            if block.on_durable is not None:
                block.on_durable(end)

    def bodies(self) -> list[bytes]:
        return [
            event["body"]
            for frame, _ in batch.build(self.blocks, lambda _: None)
            for event in frame.to_pylist()
        ]


class Client:
    """One connection for raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)

    def post(self, body: bytes, *headers: str) -> None:
        lines = ["POST /x HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers, "", ""]
        self.send("\r\n".join(lines).encode(), body)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:-2])
            body = await self.reader.readexactly(int(headers["content-length"]))
        is_json = headers["content-type"] == "application/json"
        return int(head[0].split()[1]), headers, json.loads(body) if is_json and body else body

    async def status(self) -> int:
        return (await self.answer())[0]

    async def closed(self) -> None:
        """Wait until the other side has closed; earlier bytes are ignored."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65_536):
                    pass


@asynccontextmanager
async def serving(
    journal: Journal, limits: Limits = Limits(), **options: Any
) -> AsyncIterator[tuple[HttpSource, Callable[[], Coroutine[Any, Any, Client]]]]:
    source = HttpSource(Http(**{"listen": "127.0.0.1:0", **options}), journal.context, limits)
    clients: list[Client] = []
    try:
        await source.start()
        port = int(source.addresses[0].rpartition(":")[2])

        async def connect() -> Client:
            client = Client(*await asyncio.open_connection("127.0.0.1", port))
            clients.append(client)
            return client

        yield source, connect
    finally:
        await source.stop()
        for client in clients:
            client.writer.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(test())


async def silent(client: Client) -> None:
    """Require that no answer comes now."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.readline(), 0.2)
