"""The requests and answers between a client and a ZooKeeper server, counted from the bytes that
pass."""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

HEAD = struct.Struct(">ii")  # xid, and the kind of a request
WATCH_EVENT, PONG = -1, -2
FIRST, PING, MULTI = 0, 11, 14


@dataclass
class Counts:
    """``requests``: by opcode of ZooKeeper's protocol; the first frame of a connection counts as
    ``FIRST``.

    ``bytes_in`` are bytes to the server. ``round_trips`` of a connection is the length of the
    longest chain of requests in which each was sent after the reply to the one before; the TCP
    handshake is the first. So concurrent requests count once, and pings not at all.
    """

    requests: Counter[int] = field(default_factory=Counter)
    round_trips: int = 0
    events: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def operations(self) -> int:
        return self.requests.total() - self.requests[PING]

    def since(self, before: Counts) -> Counts:
        return Counts(
            self.requests - before.requests,
            self.round_trips - before.round_trips,
            self.events - before.events,
            self.bytes_in - before.bytes_in,
            self.bytes_out - before.bytes_out,
        )


def total(counts: Iterable[Counts]) -> Counts:
    """The sum of several connections; their round trips are added as if they took turns."""
    found = Counts()
    for part in counts:
        found.requests.update(part.requests)
        found.round_trips += part.round_trips
        found.events += part.events
        found.bytes_in += part.bytes_in
        found.bytes_out += part.bytes_out
    return found


class Conversation:
    """Counts one connection: feed it the client's bytes when they leave, and the server's bytes
    when they arrive. ``heard`` is called with each request's opcode."""

    def __init__(self, heard: Callable[[int], None]) -> None:
        self.counts = Counts(round_trips=1)
        self._heard = heard
        self._answered = 1
        self._waiting: deque[int] = deque()
        """For each request without a reply its position in its chain; a server answers in order."""
        self._requests = Frames(self._on_request)
        self._replies = Frames(self._on_reply)

    @property
    def replies(self) -> int:
        """How many requests other than pings have been answered."""
        return self.counts.operations - len(self._waiting)

    def ask(self, data: bytes) -> None:
        self.counts.bytes_in += len(data)
        self._requests.feed(data)

    def answer(self, data: bytes) -> None:
        self.counts.bytes_out += len(data)
        self._replies.feed(data)

    def _on_request(self, _xid: int, kind: int, first: bool) -> None:
        kind = FIRST if first else kind
        self.counts.requests[kind] += 1
        if kind != PING:
            self._waiting.append(self._answered + 1)
            self.counts.round_trips = max(self.counts.round_trips, self._answered + 1)
        self._heard(kind)

    def _on_reply(self, xid: int, _high: int, first: bool) -> None:
        if xid == WATCH_EVENT and not first:
            self.counts.events += 1
        elif (xid != PONG or first) and self._waiting:
            self._answered = max(self._answered, self._waiting.popleft())


class Frames:
    """Cuts a stream into its length-prefixed frames; ``heard`` is called with the first two numbers
    of each, and whether it is the stream's first."""

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
