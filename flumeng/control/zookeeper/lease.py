"""Until when a session certainly lives: a clock of our own, since kazoo has none.

kazoo tells of an expiry only once a server answers again, and while requests are sent without a
pause it never even notices that none of them is answered. So every request is timed here.

Rules
1. The server keeps a session for its timeout, counted from when it last heard of it. That moment is
   not before the one at which the last *answered* request was sent. When its reply is read says
   nothing: a process that was stopped finds replies of long ago in its socket.
2. Owned work stops two thirds of the timeout after that moment, whatever kazoo believes. kazoo
   sends something at least once in a third of it, so in health a third is left at any time.
3. A connection on which nothing is answered for as long is given up for another server.
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
    """Written by the connection's thread, read by any; ``clock`` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = 0.0
        self._proven_at = clock()
        self._heard_at = clock()
        self._sent: dict[int | None, float] = {}

    @property
    def granted_seconds(self) -> float:
        """How long after its last proof the session is used; 0 before it was granted."""
        return self._seconds

    @property
    def left_seconds(self) -> float:
        """How long owned work may go on; not positive once it must have stopped."""
        return self._proven_at + self._seconds - self._clock()

    def patience_seconds(self) -> float:
        """How long to wait on this connection for an answer."""
        if not self._sent or not self._seconds:
            return inf
        since = max(self._heard_at, next(iter(self._sent.values())))
        return since + self._seconds - self._clock()

    def connecting(self) -> None:
        """The session request of a new connection is about to be sent."""
        self._sent = {None: self._clock()}

    def granted(self, timeout_seconds: float) -> None:
        """A server accepted the session for so many seconds; 0 when it is over."""
        self._seconds = timeout_seconds * SHARE
        self.answered(None)

    def sent(self, request: int) -> None:
        """Of several requests with one number (pings) the oldest counts."""
        self._sent.setdefault(request, self._clock())

    def answered(self, request: int | None) -> None:
        """The reply to ``request`` was read, or an event, which proves nothing."""
        self._heard_at = self._clock()
        self._proven_at = max(self._proven_at, self._sent.pop(request, self._proven_at))


def observe(client: KazooClient, lease: Lease) -> None:
    """Reports traffic of ``client`` to ``lease``; drops a deserted connection."""
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
            raise ConnectionDropped("nothing was answered for two thirds of the timeout")
        return select(read, write, exceptional, min(timeout, patience))

    handler.select = select_observed
    connection._invoke = invoke_observed
    connection._submit = submit_observed
    connection._read_header = read_header_observed
