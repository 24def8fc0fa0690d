"""A lease clock: until when a session certainly lives. kazoo reports an expiry only once a server
answers again, and under constant traffic never notices a silent one. So each request is timed.

1. The server keeps a session for its timeout after the last request it received. It received the
   last *answered* request after the client sent it. The time of reading a reply proves nothing: a
   stopped process finds old replies in its socket.
2. Work that needs the session stops two thirds of the timeout after that request was sent. kazoo
   sends at least one request per third, so that a healthy session always has a third left.
3. A connection without an answer for that long is dropped for another server.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.serialization import Connect

SHARE = 2 / 3


class Lease:
    """A session's lease. The connection's thread writes it, any thread reads it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.granted_seconds = 0.0
        """Length of the lease from its last proof; 0 before the session is granted."""
        self._proven_at = clock()
        self._heard_at = clock()
        self._sent: dict[int | None, float] = {}

    @property
    def left_seconds(self) -> float:
        """Time left for work that needs the session; 0 or less once it must have stopped."""
        return self._proven_at + self.granted_seconds - self._clock()

    def patience_seconds(self) -> float:
        """Time left to wait for an answer on this connection; infinite with none pending."""
        if not self._sent or not self.granted_seconds:
            return inf
        since = max(self._heard_at, next(iter(self._sent.values())))
        return since + self.granted_seconds - self._clock()

    def connecting(self) -> None:
        """Called just before a new connection sends its session request."""
        self._sent = {None: self._clock()}

    def granted(self, timeout_seconds: float) -> None:
        """Called when a server accepts the session; with a timeout of 0 the session is over."""
        self.granted_seconds = timeout_seconds * SHARE
        self.answered(None)

    def sent(self, request: int) -> None:
        """Called when a request is sent; of several with one number (pings) the oldest counts."""
        self._sent.setdefault(request, self._clock())

    def answered(self, request: int | None) -> None:
        """Called when a reply (None: to the session request) or an event was read. An event does
        not extend the lease."""
        self._heard_at = self._clock()
        self._proven_at = max(self._proven_at, self._sent.pop(request, self._proven_at))


def observe(client: KazooClient, lease: Lease) -> None:
    """Report the traffic of ``client`` to ``lease``, and drop a silent connection."""
    connection, handler = client._connection, client.handler
    invoke, submit, read_header, select = (
        connection._invoke,
        connection._submit,
        connection._read_header,
        handler.select,
    )

    def invoke_observed(timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return invoke(timeout, request, xid)
        lease.connecting()
        accepted, zxid = invoke(timeout, request, xid)
        lease.granted(accepted.time_out / 1000)
        return accepted, zxid

    def submit_observed(request: Any, timeout: float, xid: int | None = None) -> None:
        if xid is not None:
            lease.sent(xid)
        submit(request, timeout, xid)

    def read_header_observed(timeout: float) -> Any:
        read = read_header(timeout)
        lease.answered(read[0].xid)
        return read

    def select_observed(read: Any, write: Any, exceptional: Any, timeout: float) -> Any:
        patience = lease.patience_seconds()
        if patience <= 0:
            raise ConnectionDropped("no answer for two thirds of the session timeout")
        return select(read, write, exceptional, min(timeout, patience))

    handler.select = select_observed
    connection._invoke = invoke_observed
    connection._submit = submit_observed
    connection._read_header = read_header_observed
