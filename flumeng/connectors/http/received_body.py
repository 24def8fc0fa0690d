"""A request body during receipt: limited in bytes and time, checked for its announced length."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

from flumeng.connectors.http.body import MemoryBound, RefusedError, Share, too_large

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


BODIES = MemoryBound(64 << 20)


class Limits(NamedTuple):
    """Limits of requests. ``bodies``: the memory of all requests of this process, until their
    events are durable. ``settle_seconds``: time limit of the requests under way at a stop."""

    bodies: MemoryBound = BODIES
    head_seconds: float = 10.0
    body_seconds: float = 60.0
    drain_seconds: float = 2.0
    durable_seconds: float = 30.0
    settle_seconds: float = 2.0


class ReceivedBody:
    """The body of one request. It can be read once; ``received_bytes`` grows meanwhile."""

    def __init__(self, receive: Receive, headers: Mapping[bytes, bytes], limits: Limits) -> None:
        self._limits = limits
        self._receive = receive
        self._length = headers.get(b"content-length", b"")
        self._coding = headers.get(b"transfer-encoding", b"").decode("latin-1").strip().lower()
        self._waits_for_us = b"expect" in headers
        self._more = True
        self.received_bytes = 0

    async def read(self, most_bytes: int, memory: Share) -> bytes:
        """Read the body and check its announced length. Raises RefusedError, OverBoundError."""
        if not self._length and not self._coding:
            raise RefusedError(
                411, "missing header: send Content-Length or Transfer-Encoding: chunked"
            )
        if self._coding not in ("", "chunked"):
            raise RefusedError(
                501, f"Transfer-Encoding {self._coding}: send chunked, compress by Content-Encoding"
            )
        if self._length.isdigit() and int(self._length) > most_bytes:
            raise too_large(most_bytes)
        parts: list[bytes] = []
        size, seconds = 0, self._limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                while self._more:
                    part = await self._next()
                    size += len(part)
                    memory.take(len(part))
                    if size > most_bytes:
                        raise too_large(most_bytes)
                    parts.append(part)
        except TimeoutError as error:
            raise RefusedError(408, f"the body took longer than {seconds:.0f} s") from error
        if size != (int(self._length) if self._length else max(size, 1)):
            announced = self._length.decode() or "chunked"
            raise RefusedError(400, f"the body has {size} bytes, but {announced} were announced")
        return b"".join(parts)

    async def is_read_to_its_end(self, most_bytes: int) -> bool:
        """Drop the remaining body, briefly, so that the answer is read. Return whether it ended."""
        if self._waits_for_us:
            return not self._more
        left = most_bytes
        try:
            async with asyncio.timeout(self._limits.drain_seconds):
                while self._more and left > 0:
                    left -= len(await self._next())
        except (TimeoutError, RefusedError):
            return False
        return not self._more

    async def _next(self) -> bytes:
        event = await self._receive()
        if event["type"] == "http.disconnect":
            self._more = False
            raise RefusedError(400, "the connection was closed before the end of the body")
        self._more = event.get("more_body", False)
        part: bytes = event.get("body", b"")
        self.received_bytes += len(part)
        return part
