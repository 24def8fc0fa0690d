"""Group commit: combines the acks of all tasks of a collector into ZooKeeper transactions.

Rules
1. A transaction is sent when it is full, or ``GAP_SECONDS`` after the last one; until then it waits
   for the acks of other tasks. So a call after a pause never waits, and many tasks make at most
   eight small transactions a second.
2. The writes of one call are in one transaction, all or none. A failure of one call fails that call
   alone: each call of a failed transaction is retried by itself.
3. When the outcome of a transaction is unknown, its acks are read and compared. An ack with our
   content, at the version that our write gives it, is ours: every claim in between would have
   raised the version, and no call leaves an ack unchanged.
4. The number of transactions in flight is bounded. Calls of one thread follow each other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from flumeng.control.zookeeper import Put, Store, Version, Versioned, Write
from flumeng.control.zookeeper.transaction import REQUEST_BYTES
from flumeng.platform.errors import ConflictError, UnavailableError
from zkschema.records import Record

GAP_SECONDS = 0.125
FULL_ACKS = 200
ACK_BYTES = 200
IN_FLIGHT = 4
SETTLE_SECONDS = 5.0
LOOK_SECONDS = 0.05


@dataclass(eq=False)
class _Call:
    """A waiting ``commit``. ``news``: set when it is settled or must send a transaction."""

    acks: Sequence[Put]
    also: Sequence[Write]
    size_bytes: int
    news: threading.Event = field(default_factory=threading.Event)
    versions: list[Version] | None = None
    error: Exception | None = None

    @property
    def settled(self) -> bool:
        return self.versions is not None or self.error is not None

    @property
    def writes(self) -> list[Write]:
        return [*self.acks, *self.also]


class Publisher:
    """Combines the acks of concurrent calls into transactions. Thread-safe, without a thread of its
    own: the longest waiting call sends the transaction."""

    def __init__(
        self,
        store: Store,
        *,
        gap_seconds: float = GAP_SECONDS,
        settle_seconds: float = SETTLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store: Final = store
        self._gap_seconds: Final = gap_seconds
        self._settle_seconds: Final = settle_seconds
        self._clock: Final = clock
        self._sleep: Final = sleep
        self._lock: Final = threading.Lock()
        self._enough: Final = threading.Event()
        self._in_flight: Final = threading.Semaphore(IN_FLIGHT)
        self._waiting: deque[_Call] = deque()
        self._acks_waiting = 0
        self._led = False
        self.written = (0, 0)
        self._left_at = -gap_seconds

    def commit(self, acks: Sequence[Put], also: Sequence[Write] = ()) -> list[Version]:
        """Overwrite ``acks``, each at a version and with other content, together with ``also``.
        Raises ConflictError after another claim, UnavailableError for an unknown outcome."""
        scale = self._store.scale
        size = sum(scale.weigh_encoded(ack, b"") for ack in acks) + len(acks) * ACK_BYTES
        call = _Call(acks, also, size + sum(map(scale.weigh, also)))
        with self._lock:
            self._waiting.append(call)
            self._acks_waiting += len(acks)
            if self._acks_waiting >= FULL_ACKS:
                self._enough.set()
            leads, self._led = not self._led, True
        if not leads:
            call.news.wait()
        if not call.settled:
            self._lead()
        if call.error is not None:
            raise call.error
        assert call.versions is not None, "the leader check comes first in the transaction"
        return call.versions

    def _lead(self) -> None:
        """Send one transaction; then let the longest waiting call send the next one."""
        self._enough.wait(max(0.0, self._left_at + self._gap_seconds - self._clock()))
        with self._in_flight:
            with self._lock:
                calls = self._take()
                self._left_at = self._clock()
                self._led = bool(self._waiting)
                if self._waiting:
                    self._waiting[0].news.set()
            self._settle(calls)
            written = sum(len(call.acks) for call in calls if call.versions is not None)
            with self._lock:
                acks, transactions = self.written
                self.written = (acks + written, transactions + 1)
            for call in calls:
                call.news.set()

    def _take(self) -> list[_Call]:
        calls: list[_Call] = []
        acks = size_bytes = 0
        while self._waiting and acks < FULL_ACKS:
            size_bytes += self._waiting[0].size_bytes
            if calls and size_bytes > self._store.scale.limit_bytes - REQUEST_BYTES:
                break
            calls.append(self._waiting.popleft())
            acks += len(calls[-1].acks)
        self._acks_waiting -= acks
        if self._acks_waiting < FULL_ACKS:
            self._enough.clear()
        return calls

    def _settle(self, calls: Sequence[_Call]) -> None:
        """Write the calls' acks in one transaction and set the outcome of every call."""
        try:
            versions = self._store.commit([write for call in calls for write in call.writes])
        except UnavailableError as error:
            deadline = self._clock() + self._settle_seconds
            for call in calls:
                self._find_out(call, deadline, error)
        except Exception as error:
            if len(calls) == 1:
                calls[0].error = error
                return
            for call in calls:
                self._settle([call])
        else:
            given = iter(versions)
            for call in calls:
                puts = [next(given) for write in call.writes if isinstance(write, Put)]
                call.versions = puts[: len(call.acks)]

    def _find_out(self, call: _Call, deadline: float, error: Exception) -> None:
        """Read and compare acks of unknown outcome; repeat the write if it was lost."""
        while self._clock() < deadline:
            try:
                acks = self._store.read_many([ack.path for ack in call.acks])
                if all(map(_is_written, call.acks, acks)):
                    call.versions = [_next(ack) for ack in call.acks]
                elif all(map(_is_untouched, call.acks, acks)):
                    call.versions = self._store.commit(call.writes)[: len(call.acks)]
                else:
                    call.error = ConflictError("another owner has claimed a partition, and its ack")
                return
            except ConflictError:
                continue  # a delayed write or a claim has arrived: look again
            except UnavailableError as trouble:
                error = trouble
                self._sleep(LOOK_SECONDS)
            except Exception as trouble:  # an unreadable ack or a too large write
                call.error = trouble
                return
        call.error = error


def _next(ack: Put) -> Version:
    assert isinstance(ack.expect, Version), f"{ack.path}: an ack is published at a version"
    return Version(ack.expect.number + 1)


def _is_written(ack: Put, written: Versioned[Record] | None) -> bool:
    return written is not None and (written.value, written.version) == (ack.value, _next(ack))


def _is_untouched(ack: Put, current: Versioned[Record] | None) -> bool:
    return current is not None and current.version == ack.expect
