"""Fetches the frames of a range over a wide link: pieces of it at once, each over a connection of
its own, since a TCP connection keeps at most its buffers in flight.

A piece begins where a frame begins, so that no frame crosses the link twice. A process has at most
``CONNECTIONS`` to a site, and keeps them: a new one needs many round trips to become fast.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from flumeng.journal.log.errors import ThrottledError
from flumeng.journal.log.frame import BadFrameError, FrameHeader, identity
from flumeng.journal.serving import wire
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.proof import Proof
from flumeng.journal.serving.wire import NO_CHOKE, Choke
from flumeng.platform.connection_pool import ConnectionPool
from flumeng.platform.errors import CorruptError, UnavailableError

READ_SECONDS = 30.0
CONNECTIONS = 8
PIECES = 12
"""Pieces of a range that are fetched or wait to be read."""
PIECE_SECONDS = 0.6
"""Some round trips. A longer piece would delay the end of a range, when few are left."""
LEAST_PIECE_BYTES, PIECE_BYTES = 2 << 20, 4 << 20
"""Frames have up to about 1 MB: a smaller piece may have none."""
ROUNDS, PAUSE_SECONDS = 3, 0.3
"""How often all gateways are tried, one after the other, and the pause between."""
FIRST_EVENTS = 2000
"""Events of a piece while the size of the journal's events is unknown."""
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.lookahead_bytes", PIECE_BYTES),
    ("grpc.http2.max_frame_size", 1 << 20),
)
"""A connection for each client, which never waits for its window within a piece."""

_idle: ConnectionPool[tuple[str, Proof | None], JournalClient] = ConnectionPool(each=CONNECTIONS)
_events: dict[str, int] = {}
"""By journal, the number of events for the next piece."""


@dataclass(frozen=True)
class Place:
    """Gateways of a site, as ``host:port``, with the proof and the reader's limits for them."""

    gateways: tuple[str, ...]
    proof: Proof | None
    choke: Choke = NO_CHOKE


class _Threads:
    """The threads of this process that fetch; they are made at the first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, place: Place, piece: wire.Ticket, number: int) -> Future[list[pa.Buffer]]:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(CONNECTIONS, "fetch")
            return self._pool.submit(_fetch, place, piece, number)


_threads = _Threads()


def frames(place: Place, journal: str, start: int, end: int) -> Iterator[pa.Buffer]:
    """Yield the frames of [start, end) in order, as stored. When a gateway fails, the next one
    continues. Raises as ``JournalClient.read``."""
    fetched: deque[Future[list[pa.Buffer]]] = deque()
    seq, number = start, 0
    try:
        while fetched or seq < end:
            while seq < end and len(fetched) < PIECES:
                until = min(end, seq + _events.get(journal, FIRST_EVENTS))
                piece = wire.Ticket(journal, seq, until, aligned=seq > start)
                fetched.append(_threads.submit(place, piece, number))
                seq, number = until, number + 1
                if journal not in _events:
                    break
            yield from fetched.popleft().result()
    finally:
        for future in fetched:
            future.cancel()


def _fetch(place: Place, piece: wire.Ticket, number: int) -> list[pa.Buffer]:
    gateways, first = place.gateways, 0 if place.choke.limited else number
    found: list[pa.Buffer] = []
    seq, aligned, failures = piece.start, piece.aligned, 0
    asked = time.monotonic()
    while seq < piece.end:
        began = seq
        try:
            with client(gateways[(first + failures) % len(gateways)], place.proof) as connected:
                for frame in connected.frames(
                    piece.journal, seq, piece.end, aligned=aligned, choke=place.choke
                ):
                    found.append(frame)
                    seq, aligned = max(seq, _end(frame, piece.journal)), True
            break
        except ThrottledError:  # after a wait at the gateway: no fault, and nowhere else faster
            continue
        except UnavailableError:
            failures = failures + 1 if seq == began else 1
            if seq == began and failures % len(gateways) == 0:
                if failures >= ROUNDS * len(gateways):
                    raise
                time.sleep(PAUSE_SECONDS)
    if found:
        size = sum(frame.size for frame in found)
        wanted = size * PIECE_SECONDS / max(time.monotonic() - asked, 1e-3)
        wanted = min(max(wanted, LEAST_PIECE_BYTES), PIECE_BYTES)
        each = size / max(1, seq - piece.start)
        _events[piece.journal] = max(1, int(wanted / each))
    return found


def _end(frame: pa.Buffer, journal: str) -> int:
    try:
        return FrameHeader.unpack(frame, 0, identity(journal)).end
    except BadFrameError as error:
        raise CorruptError(f"journal {journal}: {error}") from error


@contextmanager
def client(address: str, proof: Proof | None) -> Iterator[JournalClient]:
    """Provide a client of the gateway; it is reused unless this read fails."""
    key = address, proof
    found = _idle.take(key) or JournalClient(
        address, READ_SECONDS, prove=lambda: proof, options=OPTIONS
    )
    try:
        yield found
    except BaseException:
        found.close()
        raise
    _idle.keep(key, found)
