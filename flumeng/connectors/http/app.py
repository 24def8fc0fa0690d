"""The HTTP source as an ASGI application. Status 200 means that the events are durable, delivered
or received, depending on the option ``ack``. Senders repeat a request after any other answer or
none, so its events may be duplicated."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import math
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flumeng.connectors.api.framing import Messages
from flumeng.connectors.api.received_block import LineRules, Origin, ReceivedBlock
from flumeng.connectors.api.source import SourceContext
from flumeng.connectors.http import arrow_body
from flumeng.connectors.http import body as http_body
from flumeng.connectors.http.body import OverBoundError, RefusedError, Share
from flumeng.connectors.http.options import Http
from flumeng.connectors.http.received_body import Limits, Receive, ReceivedBody
from flumeng.connectors.http.senders import Senders
from flumeng.connectors.network.peer_limits import Peer, Peers
from flumeng.connectors.network.peers import Client, UnauthorizedError, address, short
from flumeng.connectors.network.tls import ServerTls
from flumeng.platform.listening import takes_reserve
from flumeng.platform.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

HELD_SECONDS = 1.0
"""When the source was paused for this long by a blocked journal, waiting senders get 429."""

STRANGER_BYTES = 1 << 20
"""Bytes of an unauthorized sender's body that are read and dropped: a sender that is cut off while
sending may not read the answer."""

RETRY_SECONDS = 1
PARSE_THREADS = 2
PARSE_ASIDE_BYTES = 64 << 10
"""Larger bodies, and compressed ones, are parsed in other threads."""

MOST_WAITING = 10_000
_DELIVERY_SLOTS = threading.BoundedSemaphore(MOST_WAITING)

HEALTH_PATH = "/health"
Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True)
class KnownPath:
    """A path with a known protocol (Splunk HEC, Loki). ``status`` and ``answer`` are the reply to
    accepted requests, ``content_type`` replaces the header, ``health`` allows GET and HEAD probes,
    ``options`` OPTIONS probes."""

    status: int = 200
    answer: Mapping[str, object] = field(default_factory=dict)
    content_type: str = ""
    health: bool = False
    options: bool = False


_SUCCESS = {"text": "Success", "code": 0}
_HEALTHY = {"text": "HEC is healthy", "code": 17}
_ANY = KnownPath()
_HEC = "/services/collector"
_KNOWN_PATHS = {
    HEALTH_PATH: KnownPath(health=True),
    "/loki/api/v1/push|/api/prom/push": KnownPath(204),
    rf"{_HEC}/health(/1\.0)?/?": KnownPath(answer=_HEALTHY, health=True),
    rf"{_HEC}(/event)?(/1\.0)?/?": KnownPath(
        answer=_SUCCESS, content_type="application/json", options=True
    ),
    rf"{_HEC}/raw(/1\.0)?/?": KnownPath(answer=_SUCCESS, options=True),
}


def find_path(path: str) -> KnownPath:
    matches = (match for pattern, match in _KNOWN_PATHS.items() if re.fullmatch(pattern, path))
    return next(matches, _ANY)


class Connection(NamedTuple):
    """A connection and its client. ``stranger``: why the client's certificate is rejected."""

    peer: Peer
    client: Client = Client()
    stranger: str = ""


class HttpApp:
    """The ASGI application of one source. Accepts no events while paused."""

    def __init__(
        self,
        options: Http,
        context: SourceContext,
        tls: ServerTls | None = None,
        senders: Senders | None = None,
        limits: Limits = Limits(),
    ) -> None:
        self.limits = limits
        self.peers = Peers(options.per_peer, asyncio.get_running_loop().time)
        self._tls = tls
        self._senders = senders
        self._paused = False
        self._turning_away: asyncio.TimerHandle | None = None
        self._options = options
        self._context = context
        self._rules = LineRules(options.max_line_bytes, b"\r", keep_empty=False)
        self._stopping = False
        self._strangers, self._memory_shortage = RateLimitedLog(log), RateLimitedLog(log)
        self._undecided: set[asyncio.Future[int]] = set()
        self._undelivered: set[asyncio.Future[bool]] = set()
        """Futures of requests that wait for delivery: True when delivered in time."""

    def connected(self, transport: asyncio.Transport, host: str) -> Connection | None:
        """Register a connection until ``disconnected``. Above the limits, abort it and return None.
        Requests of a client whose certificate is rejected are answered with 403."""
        peer = None if takes_reserve(transport) else self.peers.enter(host)
        if peer is None:
            self._context.counters.refused += 1
            transport.abort()
            return None
        try:
            client = self._tls.client(transport) if self._tls is not None else Client()
        except UnauthorizedError as error:
            return Connection(peer, stranger=f"this client is rejected: {error}")
        return Connection(peer, client)

    def disconnected(self, connection: Connection) -> None:
        self.peers.leave(connection.peer)

    def is_revoked(self, connection: Connection) -> bool:
        """Return whether the connection's client certificate has been revoked."""
        return self._tls is not None and self._tls.is_revoked(connection.client.certificate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        body = ReceivedBody(receive, headers, self.limits)
        answer: Mapping[str, object]
        more: list[tuple[bytes, bytes]] = []
        try:
            await self._take(scope, headers, body)
            path = find_path(scope["path"])
            status, answer = path.status, path.answer
        except RefusedError as refused:  # and with it the received part of the body is freed
            status, answer, more = refused.status, {"error": str(refused)}, [*refused.headers]
        if status in (400, 404, 405, 411, 413, 415, 501):
            self._context.counters.malformed += 1
        if status == 504:
            self._context.counters.undelivered += 1
        if status in (429, 503):
            self._context.counters.refused += 1
            more = more or [(b"retry-after", b"%d" % RETRY_SECONDS)]
        if status == 405:
            more = [(b"allow", b"POST, PUT")]
        stranger = status in (401, 403)
        if stranger:
            self._context.counters.unauthorized += 1
            client = address(scope["client"])
            self._strangers.warning("client %s is rejected: %s", client, answer["error"])
        if stranger or (
            status >= 400 and not await body.is_read_to_its_end(self._options.max_body_bytes)
        ):
            more.append((b"connection", b"close"))
        text = b"" if status == 204 else json.dumps(answer).encode() + b"\n"
        answer_headers = more
        if text:
            length = (b"content-length", b"%d" % len(text))
            answer_headers = [(b"content-type", b"application/json"), length, *more]
        await send({"type": "http.response.start", "status": status, "headers": answer_headers})
        await send({"type": "http.response.body", "body": text, "more_body": stranger})
        if stranger:
            await body.is_read_to_its_end(STRANGER_BYTES)
            await send({"type": "http.response.body", "body": b""})

    def stop(self) -> None:
        """Answer all waiting requests with a request to retry."""
        self._stopping = True
        self.resume()
        for future in self._undecided:
            if not future.done():
                future.set_exception(_stopping())
        for waiting in self._undelivered:
            if not waiting.done():
                waiting.set_exception(
                    _stopping("the events are journaled, their delivery is not confirmed")
                )

    def pause(self) -> None:
        self._paused = True
        if self._turning_away is None:
            loop = asyncio.get_running_loop()
            self._turning_away = loop.call_later(HELD_SECONDS, self._turn_away)

    def resume(self) -> None:
        self._paused = False
        if self._turning_away is not None:
            self._turning_away.cancel()
            self._turning_away = None

    def _turn_away(self) -> None:
        """Ask waiting senders to retry while the journal accepts nothing. Their events are
        duplicated if journaled later."""
        loop = asyncio.get_running_loop()
        self._turning_away = loop.call_later(HELD_SECONDS, self._turn_away)
        if self._context.held_by():
            for future in self._undecided:
                if not future.done():
                    future.set_exception(self._later())

    def _later(self) -> RefusedError:
        cause = (
            self._context.held_by() or "the flow's rate limit is reached, or its journal is behind"
        )
        return RefusedError(429, f"{cause}: retry later")

    async def settle(self) -> None:
        """Refuse new requests, and wait until all others are answered or the time is over."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limits.settle_seconds):
                while waiting := self._undecided | self._undelivered:
                    await asyncio.wait(waiting)

    async def _take(self, scope: Scope, headers: Mapping[bytes, bytes], body: ReceivedBody) -> None:
        """Process a request until its events are in the state of ``ack``. Raises RefusedError."""
        method, path = scope["method"], find_path(scope["path"])
        reading = method in ("GET", "HEAD")
        if reading and not path.health:
            raise RefusedError(404, f"send events with POST; GET {HEALTH_PATH} returns the health")
        probing = reading or (method == "OPTIONS" and path.options)
        if not probing and method not in ("POST", "PUT"):
            raise RefusedError(405, "send events with POST")
        if probing:
            self._require_ready()
            return
        client = self._require_sender(scope, headers)
        self._require_rate(scope)
        self._require_ready()
        if self._options.ack != "delivered":
            await self._accept(scope, headers, body, client)
            return
        with _delivery_slot():
            end = await self._accept(scope, headers, body, client)
            await self._until_delivered(end)

    def _require_sender(self, scope: Scope, headers: Mapping[bytes, bytes]) -> str:
        """Return the authenticated sender, before the body is read. Raises RefusedError."""
        connection = _connection(scope)
        if connection.stranger:
            raise RefusedError(403, connection.stranger)
        if self._senders is None:
            return connection.client.name
        authorization = headers.get(b"authorization", b"")
        return self._senders.require(scope["path"], authorization, connection.client)

    def _require_rate(self, scope: Scope) -> None:
        wait = _connection(scope).peer.wait_seconds
        if wait:
            seconds = math.ceil(wait)
            raise RefusedError(
                429,
                f"rate limit of your address exceeded: retry in {seconds} s",
                [(b"retry-after", b"%d" % seconds)],
            )

    async def _accept(
        self, scope: Scope, headers: Mapping[bytes, bytes], body: ReceivedBody, client: str
    ) -> int:
        """Submit a request's events, and wait until they are durable unless ``ack`` is
        ``received``. Return the sequence number below which events are durable, or 0."""
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        try:
            with self.limits.bodies.share() as memory:
                try:
                    kind = find_path(scope["path"]).content_type or content_type
                    pieces = await self._pieces(headers, kind, body, memory)
                finally:
                    _connection(scope).peer.take(body.received_bytes, 0)
                if self.peers.counts_events:
                    events = sum(piece.events for piece in pieces)
                    _connection(scope).peer.take(0, events)
                memory.give_back_to(sum(piece.nbytes for piece in pieces))
                self._require_ready()
                if not pieces:
                    return 0
                if pieces[0].columns is not None:  # the type of the bodies of events is not known
                    content_type = ""
                durable = self._submit(pieces, self._origin(scope, content_type, client))
                if self._options.ack == "received":
                    durable.cancel()
                    return 0
                return await self._until_durable(durable)
        except OverBoundError as error:
            raise RefusedError(429, "too many bytes in flight: retry later") from error
        except MemoryError as error:
            self._memory_shortage.warning(
                "http: requests are refused, since this node is out of memory or threads"
            )
            raise RefusedError(503, "this node is out of memory or threads: retry later") from error

    async def _pieces(
        self, headers: Mapping[bytes, bytes], content_type: str, body: ReceivedBody, memory: Share
    ) -> list[Messages]:
        """Read the body and return its events in pieces; the body's memory is freed on return."""
        http_body.require_text(content_type)
        limit = self._options.max_body_bytes
        data = await body.read(limit, memory)
        encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        parse = functools.partial(http_body.pieces, data, encoding, content_type, limit, memory)
        if http_body.kind_of(content_type) == arrow_body.CONTENT_TYPE:
            longest = self._options.max_line_bytes
            parse = functools.partial(
                arrow_body.pieces, data, encoding, limit, memory, longest=longest
            )
        if encoding in ("", "identity") and len(data) <= PARSE_ASIDE_BYTES:
            return parse()
        try:
            parsed = asyncio.get_running_loop().run_in_executor(_parsers(), parse)
        except RuntimeError as error:  # no new thread
            raise MemoryError(str(error)) from error
        try:
            return await parsed
        finally:
            del parsed  # else a failed one and this frame keep each other, with the whole body

    def _require_ready(self) -> None:
        if self._stopping:
            raise _stopping()
        if self._paused:
            raise self._later()

    def _submit(self, pieces: list[Messages], origin: Origin) -> asyncio.Future[int]:
        """Submit the pieces in order. Return a future of a sequence number above all their events,
        which resolves once all are durable, and fails if a piece cannot be stored."""
        durable: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def tell(end: int) -> None:
            if not durable.done():
                durable.set_result(end)

        def refuse(reason: str) -> None:
            if not durable.done():
                durable.set_exception(RefusedError(400, f"the events cannot be stored: {reason}"))

        received_us = self._context.clock_us()
        for index, (data, bounds, _, columns) in enumerate(pieces, 1):
            on_durable = tell if index == len(pieces) else None
            self._context.submit(
                ReceivedBlock(
                    *(data, origin, received_us, bounds),
                    on_durable=on_durable,
                    on_unfit=refuse,
                    columns=columns,
                )
            )
        return durable

    async def _until_durable(self, durable: asyncio.Future[int]) -> int:
        self._undecided.add(durable)
        seconds = self.limits.durable_seconds
        try:
            return await asyncio.wait_for(durable, seconds)
        except TimeoutError as error:
            why = f"the events are not durable within {seconds:.0f} s: retry"
            raise RefusedError(503, why) from error
        finally:
            self._undecided.discard(durable)

    async def _until_delivered(self, end: int) -> None:
        seconds = self._options.ack_timeout_seconds
        delivered = self._context.deliveries.wait(end, seconds)
        self._undelivered.add(delivered)
        try:
            in_time = await delivered
        finally:
            self._undelivered.discard(delivered)
        if not in_time:
            raise RefusedError(
                504,
                f"the events are journaled, but not delivered within {seconds:g} s: a retry would "
                "duplicate the events",
            )

    def _origin(self, scope: Scope, content_type: str, client: str) -> Origin:
        peer = scope.get("client") or ("unknown", 0)
        attrs = [("source", "http"), ("peer", address(peer))]
        optional = {"client": client, "path": scope["path"], "content_type": content_type}
        attrs += [(name, short(value)) for name, value in optional.items() if value]
        return Origin(peer[0], tuple(attrs), self._rules)


def _connection(scope: Scope) -> Connection:
    connection = scope["state"]["connection"]
    assert isinstance(connection, Connection)
    return connection


@functools.cache
def _parsers() -> ThreadPoolExecutor:
    """Return this process's threads that parse large bodies; their number limits the memory."""
    return ThreadPoolExecutor(PARSE_THREADS, "http")


@contextlib.contextmanager
def _delivery_slot() -> Iterator[None]:
    """Occupy a slot for a request that waits for delivery. Raises RefusedError if none is free."""
    if not _DELIVERY_SLOTS.acquire(blocking=False):
        raise RefusedError(429, f"{MOST_WAITING} requests wait for their delivery: retry later")
    try:
        yield
    finally:
        _DELIVERY_SLOTS.release()


def _stopping(also: str = "") -> RefusedError:
    then = f" ({also})" if also else ""
    return RefusedError(503, f"this node is stopping: retry here or at another node{then}")
