"""A TCP proxy in front of a ZooKeeper server that counts what passes: requests by kind, watch
events, bytes. It runs in a thread of its own."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

HOST = "127.0.0.1"
HEAD = struct.Struct(">ii")  # xid, and the kind of a request
WATCH_EVENT, PING = -1, 11
CHUNK_BYTES = 1 << 16


@dataclass
class Counts:
    """``requests``: by opcode of ZooKeeper's protocol; the first frame of a session counts as 0."""

    requests: Counter[int] = field(default_factory=Counter)
    events: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def operations(self) -> int:
        return self.requests.total() - self.requests[PING]

    def copy(self) -> Counts:
        return Counts(Counter(self.requests), self.events, self.bytes_in, self.bytes_out)

    def since(self, before: Counts) -> Counts:
        return Counts(
            self.requests - before.requests,
            self.events - before.events,
            self.bytes_in - before.bytes_in,
            self.bytes_out - before.bytes_out,
        )


class CountingProxy:
    """``counts`` grow while it runs; ``in`` is towards the server."""

    def __init__(self, port: int) -> None:
        self.counts = Counts()
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self.address = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._listening.wait(10), "the proxy does not listen"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = asyncio.start_server(self._serve, HOST, 0, backlog=1000)
        server = self._loop.run_until_complete(listening)
        self.address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
        self._listening.set()
        self._loop.run_forever()
        serving = asyncio.all_tasks(self._loop)
        for task in serving:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*serving, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(HOST, self._port)
            await asyncio.gather(
                _pump(reader, back, self._on_bytes_in, Frames(self._on_request)),
                _pump(there, writer, self._on_bytes_out, Frames(self._on_reply)),
            )
        except (OSError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    def _on_bytes_in(self, count: int) -> None:
        self.counts.bytes_in += count

    def _on_bytes_out(self, count: int) -> None:
        self.counts.bytes_out += count

    def _on_request(self, _xid: int, kind: int, first: bool) -> None:
        self.counts.requests[0 if first else kind] += 1

    def _on_reply(self, xid: int, _high: int, first: bool) -> None:
        if xid == WATCH_EVENT and not first:
            self.counts.events += 1


class Frames:
    """Finds the frames in a stream, each after its length; ``heard`` gets the first two numbers of
    each, and whether it is the stream's first."""

    def __init__(self, heard: Callable[[int, int, bool], None]) -> None:
        self._heard = heard
        self._buffer = b""
        self._skip = 0
        self._first = True

    def feed(self, data: bytes) -> None:
        data = self._buffer + data
        at = 0
        while True:
            step = min(self._skip, len(data) - at)
            at, self._skip = at + step, self._skip - step
            if self._skip or len(data) - at < 4 + HEAD.size:
                break
            first, second = HEAD.unpack_from(data, at + 4)
            self._heard(first, second, self._first)
            self._first = False
            self._skip = 4 + int.from_bytes(data[at : at + 4], "big")
        self._buffer = data[at:]


async def _pump(
    source: asyncio.StreamReader,
    target: asyncio.StreamWriter,
    count: Callable[[int], None],
    frames: Frames,
) -> None:
    while data := await source.read(CHUNK_BYTES):
        count(len(data))
        frames.feed(data)
        target.write(data)
        await target.drain()
    target.close()
