"""Group commit: many small appends share one sync.

Items submitted during a sync form the next group, so groups grow with the load. An idle journal
waits a few milliseconds for more items, longer when many journals are busy. Under load the next
group is built during a sync. ``on_durable`` is never called before the sync.

All journals of a process share a few threads; an idle or waiting journal occupies none. Only its
group commit writes to a journal, in one thread at a time.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from flumeng.journal.log.contract import Appendable, Encoded
from flumeng.journal.log.errors import HeldError, JournalFailedError
from flumeng.journal.log.shared_threads import SharedThreads, Steps
from flumeng.platform.errors import FlumengError, UnavailableError
from flumeng.platform.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

COMMIT_THREADS = 16
BUILD_THREADS = 2
RETRY_SECONDS = 0.25
TEND_SECONDS = 1.0
LOG_AGAIN_SECONDS = 60.0
CONFIRM_SECONDS = 0.25
LONG_SECONDS = 1.0
STOP_SECONDS = 2.0
"""Seconds that ``stop`` waits for replicas; unconfirmed items are never acknowledged."""
REPLICAS_BEHIND = "other replicas do not have it yet"
FEW_JOURNALS = 16
COMMITS_PER_SECOND = 200
MOST_GATHERING_SECONDS = 2.0
GATHERED_BYTES = 128 << 10
"""A group of this size is committed at once, however many journals are busy."""
AHEAD_FROM = 4
"""The next group is built during a sync if 1/AHEAD_FROM of a full group is waiting."""


@functools.cache
def commit_threads() -> SharedThreads:
    return SharedThreads(COMMIT_THREADS, "commit")


@functools.cache
def _builders() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(BUILD_THREADS, "build")


def gathering_seconds(busy: int) -> float:
    """Return how long a group collects items if ``busy`` journals share a rate of commits."""
    if busy <= FEW_JOURNALS:
        return 0.0
    return min(busy / COMMITS_PER_SECOND, MOST_GATHERING_SECONDS)


class Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Item = TypeVar("Item", bound=Sized)


class GroupCommit(Generic[Item]):
    """The writer of one journal.

    ``build`` encodes the items of a group in order and reports items that it leaves out; it runs
    for one group at a time, possibly in another thread. ``on_durable(items, end)`` and
    ``on_failed(error)`` are called in the writing thread; the items' events lie below ``end``.

    ``on_pressure(True)`` is called when more than ``max_bytes`` are pending or the journal accepts
    nothing. ``on_pressure(False)`` follows when the journal accepts events again and less than half
    of that is pending. The calls alternate, with the lock held: the callback must not block.

    After a HeldError (a full disk) the group waits and is retried. Any other error is final:
    nothing becomes durable after it, and ``on_failed`` is called once.
    """

    def __init__(
        self,
        journal: Appendable[Encoded],
        build: Callable[[list[Item]], Iterable[Encoded]],
        *,
        on_durable: Callable[[list[Item], int], None] = lambda *_: None,
        on_pressure: Callable[[bool], None] = lambda _: None,
        on_failed: Callable[[Exception], None] = lambda _: None,
        max_bytes: int = 16 << 20,
        group_bytes: int = 4 << 20,
        max_delay_seconds: float = 0.002,
        threads: SharedThreads | None = None,
    ) -> None:
        self._journal: Appendable[Any] = journal
        self._build: Callable[[list[Item]], Iterable[Any]] = build
        self._on_durable = on_durable
        self._on_pressure = on_pressure
        self._on_failed = on_failed
        self._max_bytes = max_bytes
        self.set_group(max_delay_seconds, group_bytes)
        self._lock = threading.RLock()
        self._waiting: collections.deque[Item] = collections.deque()
        self._waiting_bytes = 0
        self._not_before = -inf
        """The monotonic time before which waiting items are not committed."""
        self._submitted = 0
        self._settled = 0
        self.pending_bytes = 0
        self._behind = False
        self.held_by = ""
        """The reason why commits wait now (a full disk, late replicas), or an empty string."""
        self._pressure = False
        self._logged_cause = ""
        """The logged reason of the current hold."""
        self._logged_at = -inf
        self._ack = 0
        self._trimmed = 0
        self._untrimmed = False
        self._trim_failures = RateLimitedLog(log)
        self._tend_at = 0.0
        self._stopping = False
        self._ended = False
        self.failure: Exception | None = None
        self._on_settled: collections.deque[tuple[int, Callable[[], None]]] = collections.deque()
        self._on_ended: list[Callable[[], None]] = []
        self._threads = threads or commit_threads()
        self._unconfirmed: collections.deque[tuple[list[Item], int]] = collections.deque()
        self._unconfirmed_since = 0.0
        self._job = self._threads.job(self._run(), journal.id)
        journal.on_confirmed(self._job.wake)

    def submit(self, item: Item) -> None:
        """Queue an item; never blocks. Raises JournalFailedError; UnavailableError once ended."""
        with self._lock:
            self.require_sound()
            if self._ended:
                raise UnavailableError(f"journal {self._journal.id} is closing and takes no events")
            self._waiting.append(item)
            self._waiting_bytes += item.nbytes
            self.pending_bytes += item.nbytes
            self._submitted += 1
            self._gather()
            if self.pending_bytes > self._max_bytes:
                self._behind = True
                self._tell_pressure()

    def _gather(self) -> None:
        """Schedule the next commit after an item was added; called with the lock held."""
        delay, enough = self._max_delay_seconds, self._group_bytes
        gathering = gathering_seconds(self._threads.busy)
        crowded = gathering > delay
        if crowded:
            delay, enough = gathering, min(enough, GATHERED_BYTES)
        if self._waiting_bytes >= enough:
            self._not_before = -inf
            self._job.wake()
        elif len(self._waiting) == 1:
            self._not_before = time.monotonic() + delay if crowded else -inf
            self._job.wake(delay)

    def set_group(self, max_delay_seconds: float, group_bytes: int) -> None:
        """Change the delay of later groups, and their size up to ``max_bytes``."""
        self._max_delay_seconds = max_delay_seconds
        self._group_bytes = min(group_bytes, self._max_bytes)

    def trim(self, ack: int) -> None:
        with self._lock:
            if ack != self._ack:
                self._ack = ack
                self._job.wake()

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back once, in any thread, when all items so far are durable, failed or dropped."""
        with self._lock:
            if not (self._ended or self._settled >= self._submitted):
                self._on_settled.append((self._submitted, callback))
                return
        callback()

    def drain(self, timeout_seconds: float | None = None) -> None:
        """Wait until all items submitted so far are durable. Raises JournalFailedError after a
        failure, UnavailableError when some are not durable at the timeout or the end."""
        settled = threading.Event()
        with self._lock:
            submitted = self._submitted
            self.when_settled(settled.set)
        settled.wait(timeout_seconds)
        self.require_sound()
        if self._settled < submitted:
            raise self.not_settled()

    def not_settled(self) -> UnavailableError:
        why = f": {self.held_by}" if self.held_by else ""
        pending = f"{self.pending_bytes} bytes of events are not durable"
        return UnavailableError(f"journal {self._journal.id}: {pending}{why}")

    def stop(self) -> None:
        """Commit the submitted items, then end; blocks. On a full disk the rest is not written."""
        ended = threading.Event()
        self.end(ended.set)
        ended.wait()

    def end(self, callback: Callable[[], None]) -> None:
        """As ``stop``, but return at once; ``callback`` runs in any thread at the end."""
        with self._lock:
            self._stopping = True
            if not self._ended:
                self._on_ended.append(callback)
                self._job.wake()
                return
        callback()

    def require_sound(self) -> None:
        if self.failure is not None:
            raise JournalFailedError(
                f"journal {self._journal.id} takes no more events: {self.failure}"
            ) from self.failure

    def _run(self) -> Steps:
        try:
            yield from self._work()
        except Exception as error:
            log.error(
                "journal %s takes no more events: %s",
                *(self._journal.id, error),
                exc_info=not isinstance(error, FlumengError),
            )
            self.failure = error
            self._on_failed(error)
        finally:
            with self._lock:
                self._ended = True
                callbacks = [callback for _, callback in self._on_settled] + self._on_ended
            for callback in callbacks:
                callback()

    def _work(self) -> Steps:
        ahead: tuple[list[Item], Future[list[Any]]] | None = None
        while True:
            self._trim()
            self._settle_confirmed()
            group = ahead[0] if ahead else self._take()
            if not group:
                if self._stopping and not self._waiting and self._gives_up():
                    return
                yield self._rest_seconds()
                continue
            self._job.has_work()
            for payload in ahead[1].result() if ahead else self._build(group):
                append = functools.partial(self._journal.append_encoded, payload)
                if (yield from self._insist(append)) is None:
                    return
            plenty = self._waiting_bytes >= max(1, self._group_bytes // AHEAD_FROM)
            ahead = self._build_ahead() if plenty else None
            end = yield from self._insist(self._journal.sync)
            if end is None:
                return
            if not self._unconfirmed:
                self._unconfirmed_since = time.monotonic()
            self._unconfirmed.append((group, end))
            self._settle_confirmed()
            self._job.went_on()
            if self._threads.is_crowded:
                yield 0.0

    def _rest_seconds(self) -> float | None:
        """Return the seconds until the next work is due; None when no work is waiting."""
        rests = [TEND_SECONDS] if self._journal.restless else []
        if self._unconfirmed:
            rests.append(CONFIRM_SECONDS)
        if self._waiting:
            rests.append(max(0.0, self._not_before - time.monotonic()))
        return min(rests, default=None)

    def _build_ahead(self) -> tuple[list[Item], Future[list[Any]]] | None:
        group = self._take()
        if not group:
            return None
        return group, _builders().submit(lambda: list(self._build(group)))

    def _take(self) -> list[Item]:
        group: list[Item] = []
        with self._lock:
            if time.monotonic() < self._not_before and not self._stopping:
                return group
            size = 0
            while self._waiting and size < self._group_bytes:
                group.append(self._waiting.popleft())
                size += group[-1].nbytes
            self._waiting_bytes -= size
        return group

    def _settle_confirmed(self) -> None:
        """Settle the groups that all in-sync replicas have; after a long wait set ``held_by``."""
        while self._unconfirmed and self._journal.confirms(self._unconfirmed[0][1]):
            self._settle(*self._unconfirmed.popleft())
            self._unconfirmed_since = time.monotonic()
            if self.held_by == REPLICAS_BEHIND:
                self._set_held_by("")
        waited = time.monotonic() - self._unconfirmed_since
        if self._unconfirmed and waited > LONG_SECONDS and not self.held_by:
            self._set_held_by(REPLICAS_BEHIND)

    def _gives_up(self) -> bool:
        waited = time.monotonic() - self._unconfirmed_since
        return not self._unconfirmed or waited > STOP_SECONDS

    def _settle(self, group: list[Item], end: int) -> None:
        self._on_durable(group, end)
        callbacks = []
        with self._lock:
            self._settled += len(group)
            self.pending_bytes -= sum(item.nbytes for item in group)
            if self.pending_bytes < self._max_bytes // 2:
                self._behind = False
                self._tell_pressure()
            while self._on_settled and self._on_settled[0][0] <= self._settled:
                callbacks.append(self._on_settled.popleft()[1])
        for callback in callbacks:
            callback()

    def _insist(self, write: Callable[[], int]) -> Generator[float | None, None, int | None]:
        """Repeat a write until the journal accepts it, and trim between the attempts. Returns its
        seq, or None when the group commit stops after a rejected attempt."""
        while True:
            try:
                seq = write()
            except HeldError as error:
                self._hold(error)
            else:
                if self.held_by != REPLICAS_BEHIND:
                    self._set_held_by("")
                return seq
            # Unsynced events of this group cannot be acked, and so make no room.
            with contextlib.suppress(HeldError):
                self._journal.sync()
            yield RETRY_SECONDS
            if self._stopping:
                return None
            self._trim()
            self._settle_confirmed()

    def _hold(self, error: HeldError) -> None:
        now = time.monotonic()
        if error.cause != self._logged_cause and now - self._logged_at >= LOG_AGAIN_SECONDS:
            log.warning("%s; the journal takes no events until that changes", error)
            self._logged_cause, self._logged_at = error.cause, now
        self._set_held_by(error.cause)

    def _set_held_by(self, cause: str) -> None:
        if cause != self.held_by:
            if self._logged_cause and not cause:
                log.info("journal %s takes events again", self._journal.id)
                self._logged_cause = ""
            with self._lock:
                self.held_by = cause
                self._tell_pressure()

    def _tell_pressure(self) -> None:
        pressure = self._behind or bool(self.held_by)
        if pressure != self._pressure:
            self._pressure = pressure
            self._on_pressure(pressure)

    def _trim(self) -> None:
        ack = self._ack
        due = self._journal.restless and time.monotonic() >= self._tend_at
        try:
            if ack != self._trimmed or self._untrimmed:
                self._trimmed, self._untrimmed = ack, True
                self._journal.trim(ack)
                self._untrimmed = False
            if due:
                self._tend_at = time.monotonic() + TEND_SECONDS
                self._journal.maintain()
        except HeldError as error:
            self._trim_failures.warning("%s; acked events are deleted once that changes", error)
