"""Group commit: many small appends share one sync.

What was submitted while one group is being written and synced makes up the next group, so the
groups grow with the load by themselves; only when nothing waits does a group hold still for a few
milliseconds to gather company. When much waits, the next group is built while the last one is
synced. ``on_durable`` is called after the sync, never before. The thread in here is the journal's
only writer.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from flumeng.errors import FlumengError, UnavailableError
from flumeng.journal.errors import DiskFullError, JournalFailedError
from flumeng.journal.log import Log

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.25
TEND_SECONDS = 1.0
AHEAD_FROM = 4
"""The next group is built early when it has at least this part of a full one."""

Append = tuple[pa.RecordBatch, Mapping[str, object] | None]


class Sized(Protocol):
    """What can be submitted: it knows about how many bytes of memory it holds."""

    @property
    def nbytes(self) -> int: ...


Item = TypeVar("Item", bound=Sized)


class GroupCommit(Generic[Item]):
    """The thread that writes one journal.

    ``build`` turns the items of a group, in the order of their submission, into batches with
    source state; it runs in a thread of ours, a group at a time. ``on_durable(items)`` and
    ``on_failed(error)`` are called in the thread that writes. ``on_pressure(True)`` comes when more
    than ``max_bytes`` wait, ``on_pressure(False)`` when less than half of that does; the calls
    alternate, come from ``submit`` or the thread with the lock held, and must not block.

    A full disk is no failure: the group waits for room and is tried again. Any other error is
    final: nothing after it becomes durable, ``on_failed`` is called once.
    """

    def __init__(
        self,
        journal: Log,
        build: Callable[[list[Item]], Iterable[Append]],
        *,
        on_durable: Callable[[list[Item]], None] = lambda _: None,
        on_pressure: Callable[[bool], None] = lambda _: None,
        on_failed: Callable[[Exception], None] = lambda _: None,
        max_bytes: int = 16 << 20,
        group_bytes: int = 4 << 20,
        max_delay_seconds: float = 0.002,
    ) -> None:
        self._journal = journal
        self._build = build
        self._on_durable = on_durable
        self._on_pressure = on_pressure
        self._on_failed = on_failed
        self._max_bytes = max_bytes
        self.set_group(max_delay_seconds, group_bytes)
        self._changed = threading.Condition()
        self._waiting: collections.deque[Item] = collections.deque()
        self._waiting_bytes = 0
        self._submitted = 0
        self._settled = 0
        self._pending_bytes = 0
        self._pressure = False
        self._ack = 0
        self._trimmed = 0
        self._untrimmed = False
        self._tend_at = 0.0
        self._stopping = False
        self._ended = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"journal {journal.id}", daemon=True)
        self._thread.start()

    @property
    def pending_bytes(self) -> int:
        """Bytes submitted and not durable yet."""
        return self._pending_bytes

    @property
    def failure(self) -> Exception | None:
        return self._failure

    def submit(self, item: Item) -> None:
        """Queue an item; never blocks.

        Raises JournalFailedError after a failure, UnavailableError after ``stop``.
        """
        with self._changed:
            self._require_sound()
            if self._ended:
                raise UnavailableError(f"journal {self._journal.id}: group commit has stopped")
            self._waiting.append(item)
            self._waiting_bytes += item.nbytes
            self._pending_bytes += item.nbytes
            self._submitted += 1
            if len(self._waiting) == 1 or self._waiting_bytes >= self._group_bytes:
                self._changed.notify_all()
            if not self._pressure and self._pending_bytes > self._max_bytes:
                self._pressure = True
                self._on_pressure(True)

    def set_group(self, max_delay_seconds: float, group_bytes: int) -> None:
        """From the next group on. None waits for more than may be pending."""
        self._max_delay_seconds = max_delay_seconds
        self._group_bytes = min(group_bytes, self._max_bytes)

    def trim(self, ack: int) -> None:
        """Ask the thread to drop what lies below ``ack``; never blocks."""
        with self._changed:
            self._ack = max(self._ack, ack)
            self._changed.notify_all()

    def drain(self, timeout_seconds: float | None = None) -> None:
        """Return when everything submitted so far is durable.

        Raises JournalFailedError when it never will be, UnavailableError when time is up.
        """
        with self._changed:
            wanted = self._submitted
            self._changed.wait_for(lambda: self._ended or self._settled >= wanted, timeout_seconds)
            self._require_sound()
            if self._settled < wanted:
                raise UnavailableError(
                    f"journal {self._journal.id}: {self._pending_bytes} bytes are not on disk"
                )

    def stop(self) -> None:
        """End the thread after what was submitted; on a full disk the rest stays undone.

        The journal then belongs to the caller.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _require_sound(self) -> None:
        if self._failure is not None:
            raise JournalFailedError(
                f"journal {self._journal.id} takes nothing more: {self._failure}"
            ) from self._failure

    def _run(self) -> None:
        try:
            with ThreadPoolExecutor(1, f"build {self._journal.id}") as builder:
                self._work(builder)
        except Exception as error:
            log.error(
                "journal %s takes nothing more: %s",
                self._journal.id,
                error,
                exc_info=not isinstance(error, FlumengError),
            )
            self._failure = error
            self._on_failed(error)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _work(self, builder: ThreadPoolExecutor) -> None:
        ahead: tuple[list[Item], Future[list[Append]]] | None = None
        while ahead or self._wait_for_work():
            self._trim()
            group = ahead[0] if ahead else self._take()
            if not group:
                continue
            appends = ahead[1].result() if ahead else self._build(group)
            for append in appends:
                if not self._insist(functools.partial(self._journal.append, *append)):
                    return
            plenty = self._waiting_bytes >= max(1, self._group_bytes // AHEAD_FROM)
            ahead = self._build_ahead(builder) if plenty else None
            if not self._insist(self._journal.sync):
                return
            self._settle(group)

    def _build_ahead(self, builder: ThreadPoolExecutor) -> tuple[list[Item], Future[list[Append]]]:
        group = self._take()
        return group, builder.submit(lambda: list(self._build(group)))

    def _wait_for_work(self) -> bool:
        """Wait until something is to be done; False when all is done and we are to stop."""
        with self._changed:
            idle = not self._waiting
            self._changed.wait_for(
                lambda: self._waiting or self._stopping or self._ack > self._trimmed,
                TEND_SECONDS if self._journal.restless else None,
            )
            if idle and self._waiting and not self._stopping:
                self._changed.wait_for(
                    lambda: self._waiting_bytes >= self._group_bytes or self._stopping,
                    self._max_delay_seconds,
                )
            return bool(self._waiting) or self._ack > self._trimmed or not self._stopping

    def _take(self) -> list[Item]:
        group: list[Item] = []
        with self._changed:
            size = 0
            while self._waiting and size < self._group_bytes:
                group.append(self._waiting.popleft())
                size += group[-1].nbytes
            self._waiting_bytes -= size
        return group

    def _settle(self, group: list[Item]) -> None:
        """The group is durable."""
        self._on_durable(group)
        with self._changed:
            self._settled += len(group)
            self._pending_bytes -= sum(item.nbytes for item in group)
            if self._pressure and self._pending_bytes < self._max_bytes // 2:
                self._pressure = False
                self._on_pressure(False)
            self._changed.notify_all()

    def _insist(self, write: Callable[[], int]) -> bool:
        """Try until the disk has room; trims meanwhile. False when we are to stop instead."""
        told = False
        while True:
            try:
                write()
            except DiskFullError as error:
                if not told:
                    log.warning("%s; waiting for room", error)
                    told = True
            else:
                return True
            # Nobody can ack, and so make room of, what is only appended of this group.
            with contextlib.suppress(DiskFullError):
                self._journal.sync()
            with self._changed:
                if self._changed.wait_for(lambda: self._stopping, RETRY_SECONDS):
                    return False
            self._trim()

    def _trim(self) -> None:
        """Drop what was acked, and what is kept no longer."""
        ack = self._ack
        due = self._journal.restless and time.monotonic() >= self._tend_at
        again = self._untrimmed
        try:
            if ack > self._trimmed or again:
                self._trimmed, self._untrimmed = ack, True
                self._journal.trim(ack)
                self._untrimmed = False
            if due:
                self._tend_at = time.monotonic() + TEND_SECONDS
                self._journal.tend()
        except DiskFullError as error:
            if not again:
                log.warning("%s; trimmed later", error)
