"""Receives messages over TCP.

All connections share one receive buffer. Only unfinished messages are kept, so idle connections
cost almost nothing. The event loop cuts after the last whole message, copies once and queues. Above
``HELD_BYTES`` of unfinished messages, the connection with most of them is closed. A connection that
exceeds its address's rate is paused.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass

from flumeng.connectors.api.framing import Cutter, Messages
from flumeng.connectors.api.received_block import Origin, ReceivedBlock
from flumeng.connectors.network.handshakes import Handshakes
from flumeng.connectors.network.peer_limits import Peer, Peers
from flumeng.connectors.network.peers import Client, Reception, UnauthorizedError, address
from flumeng.connectors.network.senders import NO_LIMITS, PeerLimits
from flumeng.connectors.network.tls import ServerTls
from flumeng.platform.listening import BACKLOG, takes_reserve
from flumeng.platform.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

RECEIVE_BYTES = 1 << 20
LAST_BYTES_SECONDS = 0.5
QUIET_SECONDS = 0.02
HELD_BYTES = 32 << 20

_buffer = bytearray(RECEIVE_BYTES)
"""Receive buffer of all connections: its content is cut before anything else is read."""


@dataclass(frozen=True)
class Limits:
    """Limits per worker. Without ``idle_seconds`` no idle connection is closed."""

    connections: int = 10_000
    idle_seconds: float | None = None
    per_peer: PeerLimits = NO_LIMITS


class Streams:
    def __init__(self, reception: Reception, limits: Limits, tls: ServerTls | None = None) -> None:
        self.reception = reception
        self.limits = limits
        self.tls = tls
        self.clock = asyncio.get_running_loop().time
        self.peers = Peers(limits.per_peer, self.clock)
        self.held_bytes = 0
        self._all_active_at = self.clock()
        self._idle_timer: asyncio.TimerHandle | None = None
        self.buffer = _buffer
        self.view = memoryview(_buffer)[: self.peers.quantum_bytes(RECEIVE_BYTES)]
        self.received_bytes = 0
        self.connections: set[_Connection] = set()
        self.paused = False
        self.stopped = False
        self._server: asyncio.Server | Handshakes | None = None
        self._broken = RateLimitedLog(log)
        self._overfull = RateLimitedLog(log)
        self.malformed = RateLimitedLog(log)
        self._strangers = RateLimitedLog(log)

    async def start(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        if self.tls is None:
            self._server = await loop.create_server(
                lambda: _Connection(self), sock=listener, backlog=BACKLOG
            )
        else:
            counters = self.reception.context.counters
            self._server = Handshakes(listener, self.tls, lambda: _Connection(self), counters)
        self._close_idle()

    async def stop(self) -> None:
        if self._server is None:
            return
        await self._read_what_was_sent()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self.stopped = True
        self._server.close()
        for connection in list(self.connections):
            connection.abort()
        await self._server.wait_closed()
        self._server = None

    async def _read_what_was_sent(self) -> None:
        """Wait for bytes that the kernel has acknowledged, also on connections not accepted yet."""
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
        self._all_active_at = self.clock()
        for connection in self.connections:
            connection.resume()

    def client(self, transport: asyncio.BaseTransport, peer: str) -> Client | None:
        """Return the client of a connection; None when it is not admitted."""
        if self.tls is None:
            return Client()
        try:
            return self.tls.client(transport)
        except UnauthorizedError as error:
            self.reception.context.counters.unauthorized += 1
            self._strangers.warning("sender %s is rejected: %s", peer, error)
            return None

    def close_revoked(self) -> None:
        assert self.tls is not None
        for connection in list(self.connections):
            if self.tls.is_revoked(connection.certificate):
                self.reception.context.counters.unauthorized += 1
                log.warning("closing sender %s: its certificate is revoked", connection.peer)
                connection.abort()

    def hold(self, nbytes: int) -> None:
        self.held_bytes += nbytes
        if nbytes > 0 and self.held_bytes > HELD_BYTES:
            greediest = max(self.connections, key=lambda connection: connection.held_bytes)
            self.reception.context.counters.overfull += 1
            self._overfull.warning(
                "unfinished messages take %d bytes of memory: closing sender %s, which has most",
                *(self.held_bytes, greediest.peer),
            )
            greediest.abort()

    def discard(self, nbytes: int, peer: str) -> None:
        counters = self.reception.context.counters
        counters.discarded_bytes += nbytes
        self._broken.warning(
            "the connection of sender %s ended within a message: %d bytes discarded, %d bytes of "
            "this source so far",
            peer,
            nbytes,
            counters.discarded_bytes,
        )

    def _close_idle(self) -> None:
        """Close idle connections; while reading is paused none counts as idle."""
        if self.limits.idle_seconds is None:
            return
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(self.limits.idle_seconds / 4, self._close_idle)
        before = self.clock() - self.limits.idle_seconds
        if self.paused or self._all_active_at > before:
            return
        for connection in [c for c in self.connections if c.is_idle(before)]:
            self.reception.context.counters.idle += 1
            connection.eof_received()
            connection.abort()


class _Connection(asyncio.BufferedProtocol):
    """A sender's connection. A message cut off by a broken connection is discarded."""

    __slots__ = (
        "_account",
        "_client",
        "_cutter",
        "_origin",
        "_peer",
        "_streams",
        "_transport",
        "_waiting",
        "active_at",
        "certificate",
        "held_bytes",
    )

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.active_at = streams.clock()
        self.held_bytes = 0
        self.certificate = b""
        self._cutter: Cutter | None = None
        self._account: Peer | None = None
        self._client = ""
        self._waiting: asyncio.TimerHandle | None = None
        self._origin: Origin
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._peer = transport.get_extra_info("peername") or ("unknown", 0)
        streams = self._streams
        client = streams.client(transport, self.peer)
        if client is None or streams.stopped:
            self._transport.abort()
            return
        many = len(streams.connections) >= streams.limits.connections
        if not many and not takes_reserve(transport):
            self._account = streams.peers.enter(self._peer[0])
        if self._account is None:
            streams.reception.context.counters.refused += 1
            self._transport.abort()
            return
        self._client, _, self.certificate = client
        streams.connections.add(self)

    @property
    def peer(self) -> str:
        return address(self._peer)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the buffer, but one byte of it for a new connection while paused: it can be paused
        only after one read."""
        view = self._streams.view
        return view[:1] if self._streams.paused else view

    def buffer_updated(self, nbytes: int) -> None:
        streams = self._streams
        streams.received_bytes += nbytes
        self.active_at = streams.clock()
        if streams.paused:  # a new connection; uvloop starts to read after connection_made
            self.pause()
        if self._cutter is None:
            assert streams.reception.cutter is not None
            self._cutter = streams.reception.cutter()
            self._origin = streams.reception.origin(self._peer, self._client)
        cutter = self._cutter
        sound, skipped = not cutter.malformed, cutter.skipped
        events = 0
        for messages in cutter.feed(streams.buffer, nbytes):
            self._submit(messages)
            if streams.peers.counts_events:
                events += messages.events
        if streams.peers.limits_rate:
            self._wait_for_rate(nbytes, events)
        if cutter.held != self.held_bytes:
            self._hold(cutter.held)
        if cutter.skipped != skipped:
            streams.reception.context.counters.discarded_bytes += cutter.skipped - skipped
        if sound and cutter.malformed:
            streams.reception.context.counters.malformed += 1
            streams.malformed.warning("sender %s sent %s", self.peer, cutter.complaint)
            if cutter.hopeless:
                self.abort()

    def eof_received(self) -> bool:
        if self._cutter is not None:
            skipped = self._cutter.skipped
            for messages in self._cutter.end():
                self._submit(messages)
            self._streams.reception.context.counters.discarded_bytes += (
                self._cutter.skipped - skipped
            )
            self._hold(0)
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self._streams.connections.discard(self)
        if self._account is not None:
            self._streams.peers.leave(self._account)
        self._let_go()

    def _hold(self, held_bytes: int) -> None:
        more, self.held_bytes = held_bytes - self.held_bytes, held_bytes
        self._streams.hold(more)

    def _submit(self, messages: Messages) -> None:
        context, sender = self._streams.reception.context, self._origin
        if messages.incomplete:
            sender = self._streams.reception.origin(self._peer, self._client, truncated="true")
        context.submit(ReceivedBlock(messages.data, sender, context.clock_us(), messages.bounds))

    def pause(self) -> None:
        self._transport.pause_reading()

    def resume(self) -> None:
        if self._waiting is None:
            self._transport.resume_reading()

    def _wait_for_rate(self, nbytes: int, events: int) -> None:
        assert self._account is not None
        seconds = self._account.take(nbytes, events)
        if seconds:
            self.pause()
            if self._waiting is not None:  # TLS had more data in its buffer
                self._waiting.cancel()
            loop = asyncio.get_running_loop()
            self._waiting = loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._waiting = None
        self.active_at = self._streams.clock()
        if not self._streams.paused:
            self.resume()

    def is_idle(self, before: float) -> bool:
        return self.active_at <= before and self._waiting is None

    def abort(self) -> None:
        self._let_go()
        self._transport.abort()

    def _let_go(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        if self.held_bytes:
            self._streams.discard(self.held_bytes, self.peer)
            self._hold(0)
