"""Messages over TCP.

All connections share one receive buffer and of each only its unfinished message is kept, so idle
connections cost next to nothing. The event loop cuts after the last whole message, copies once and
queues; everything else happens in the commit thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

from flumeng.ingest.chunk import Chunk, Origin
from flumeng.ingest.framing import Cutter, Messages
from flumeng.ingest.listening import BACKLOG
from flumeng.ingest.peers import Reception, address
from flumeng.ingest.tls import HANDSHAKE_SECONDS

log = logging.getLogger(__name__)

RECEIVE_BYTES = 1 << 20
LAST_BYTES_SECONDS = 0.5
QUIET_SECONDS = 0.02


class Streams:
    """A listening socket and its connections."""

    def __init__(self, reception: Reception) -> None:
        self.reception = reception
        self.buffer = bytearray(RECEIVE_BYTES)
        self.received_bytes = 0
        self.connections: set[_Connection] = set()
        self.paused = False
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self),
            sock=listener,
            backlog=BACKLOG,
            ssl=tls,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if tls else None,
        )

    async def stop(self) -> None:
        if self._server is None:
            return
        await self._read_what_was_sent()
        self._server.close()
        for connection in list(self.connections):
            connection.abort()
        await self._server.wait_closed()
        self._server = None

    async def _read_what_was_sent(self) -> None:
        """The kernel has told the senders that it took these bytes; nobody sends them again. That
        goes for connections too that are not accepted yet."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LAST_BYTES_SECONDS
        before = -1
        while self.received_bytes != before and loop.time() < deadline:
            before = self.received_bytes
            await asyncio.sleep(QUIET_SECONDS)

    def pause(self) -> None:
        self.paused = True
        for connection in self.connections:
            connection.pause()

    def resume(self) -> None:
        self.paused = False
        for connection in self.connections:
            connection.resume()


class _Connection(asyncio.BufferedProtocol):
    """One sender. A message cut off by a broken connection was never whole and is not taken."""

    __slots__ = ("_cutter", "_origin", "_peer", "_streams", "_transport")

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._cutter: Cutter | None = None
        self._origin: Origin
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._peer = transport.get_extra_info("peername") or ("unknown", 0)
        self._streams.connections.add(self)

    def get_buffer(self, _sizehint: int) -> bytearray:
        return self._streams.buffer

    def buffer_updated(self, nbytes: int) -> None:
        streams = self._streams
        streams.received_bytes += nbytes
        if streams.paused:  # a new connection; uvloop starts to read after connection_made
            self.pause()
        if self._cutter is None:
            assert streams.reception.cutter is not None
            self._cutter = streams.reception.cutter()
            self._origin = streams.reception.origin(self._peer)
        cutter = self._cutter
        sound = not cutter.malformed
        for messages in cutter.feed(streams.buffer, nbytes):
            self._submit(messages)
        if sound and cutter.malformed:
            log.warning("%s sent %s", address(self._peer), cutter.complaint)
            if cutter.hopeless:
                self.abort()

    def eof_received(self) -> bool:
        if self._cutter is not None:
            for messages in self._cutter.end():
                self._submit(messages)
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self._streams.connections.discard(self)

    def _submit(self, messages: Messages) -> None:
        inlet, sender = self._streams.reception.inlet, self._origin
        if messages.incomplete:
            sender = self._streams.reception.origin(self._peer, truncated="true")
        inlet.submit(Chunk(messages.data, sender, inlet.clock_us(), messages.bounds))

    def pause(self) -> None:
        self._transport.pause_reading()

    def resume(self) -> None:
        self._transport.resume_reading()

    def abort(self) -> None:
        self._transport.abort()
