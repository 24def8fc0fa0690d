"""A link between sites in user space: TCP proxies that are cut, frozen and throttled together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TypeVar

HOST = "127.0.0.1"
ANSWER_SECONDS = 10.0
CHUNK_BYTES = 1 << 16
WAIT_SECONDS = 0.05

T = TypeVar("T")


class WideLink:
    """A proxy before each of ``addresses``. ``proxies`` are their addresses, which never change.
    ``carried``: bytes that have passed. Close it in any case."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.carried = 0
        self._frozen = [False, False]
        self._refuses = False
        self._bytes_per_second = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="wide link", daemon=True).start()
        self.proxies = [self._wait(self._listen(address)) for address in addresses]

    def cut(self) -> None:
        """End all connections, and refuse new ones until ``heal``."""
        self._refuses = True
        self.reset()

    def reset(self) -> None:
        """End all connections; new ones work."""
        self._call(self._end_all)

    def freeze(self, *, answers_only: bool = False) -> None:
        """Hold all bytes back until ``heal``; or only those of answers."""
        self._frozen = [not answers_only, True]

    def throttle(self, bytes_per_second: float) -> None:
        """Limit each direction of each connection until ``heal``."""
        self._bytes_per_second = bytes_per_second

    def heal(self) -> None:
        self._refuses, self._frozen, self._bytes_per_second = False, [False, False], 0.0

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _listen(self, address: str) -> str:
        host, _, port = address.rpartition(":")

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._carry(reader, writer, host, int(port))

        server = await asyncio.start_server(serve, HOST, 0)
        return f"{HOST}:{server.sockets[0].getsockname()[1]}"

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
    ) -> None:
        self._writers.add(writer)
        with suppress(OSError):
            if not self._refuses:
                far_reader, far_writer = await asyncio.open_connection(host, port)
                self._writers.add(far_writer)
                await asyncio.gather(
                    self._pump(reader, far_writer, 0), self._pump(far_reader, writer, 1)
                )
                self._writers.discard(far_writer)
        writer.close()
        self._writers.discard(writer)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: int
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                while self._frozen[way]:
                    await asyncio.sleep(WAIT_SECONDS)
                if self._bytes_per_second:
                    await asyncio.sleep(len(data) / self._bytes_per_second)
                writer.write(data)
                await writer.drain()
                self.carried += len(data)
        writer.close()

    def _end_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _call(self, act: Callable[[], object]) -> None:
        async def acted() -> None:
            act()

        self._wait(acted())

    def _wait(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_SECONDS)
