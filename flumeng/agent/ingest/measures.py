"""Metrics of an ingest worker."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from flumeng.agent.ingest.flow import FlowRunner
from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.connectors.api.counters import Counters
from flumeng.events.journal_names import flow_of
from flumeng.journal.log.contract import Log
from flumeng.journal.log.progress_history import ProgressHistory, ProgressSample
from flumeng.journal.serving.server import received_us
from flumeng.platform.errors import FlumengError
from flumeng.platform.metrics import table
from flumeng.platform.metrics.table import Metric, Reading

NOTE_SECONDS = 5.0

TAKEN: Mapping[str, Metric] = {
    "events": table.INGEST_EVENTS,
    "bytes": table.INGEST_BYTES,
    "truncated": table.INGEST_TRUNCATED,
    "discarded_bytes": table.INGEST_DISCARDED,
    "malformed": table.INGEST_MALFORMED,
    "refused": table.INGEST_REFUSED,
    "unauthorized": table.INGEST_UNAUTHORIZED,
    "undelivered": table.INGEST_UNDELIVERED,
    "idle": table.INGEST_IDLE,
    "overfull": table.INGEST_OVERFULL,
    "dropped": table.INGEST_DROPPED,
    "skipped": table.INGEST_SKIPPED,
    "cut": table.INGEST_CUT,
    "missed": table.INGEST_MISSED,
}
MOST_NOTES = 64


class Measures:
    def __init__(
        self,
        flows: Callable[[], Mapping[str, FlowRunner]],
        journal_store: JournalStore,
        acked: Callable[[Log], int],
    ) -> None:
        self._flows = flows
        self._journal_store = journal_store
        self._acked = acked
        self._lag = LagClock()
        self._past = ProgressHistory()
        self._noting = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self._note_on, name="lag", daemon=True).start()

    def readings(self) -> Iterator[Reading]:
        for flow, runner in list(self._flows().items()):
            yield from _of_sources(flow, runner.counted)
            for component, counters, held in runner.counters:
                yield table.INGEST_UNREAD.of(counters.unread_bytes, flow, component.name)
                yield table.INGEST_HELD_AGE.of(held.seconds if held.by else 0.0, flow)
                yield table.INGEST_HELD.of(held.total_seconds, flow)
        self.note()
        journals = self._journal_store.journals
        for name, journal in journals.items():
            yield from self._of_journal(flow_of(name), journal)
        yield table.JOURNALS.of(len(journals))
        yield table.JOURNALS_BROKEN.of(self._journal_store.broken)
        yield table.JOURNAL_SYNC_SECONDS.of(self._journal_store.disk.sync_seconds)
        yield table.JOURNAL_DISK_FREE.of(_free_bytes(self._journal_store.path))

    def note(self) -> None:
        journals = self._journal_store.journals
        waited = {  # without the lock: the disk may hang
            name: _waited_seconds(journal, self._acked(journal))
            for name, journal in journals.items()
            if not self._past.has(name) and self._acked(journal) < journal.readable
        }
        with self._noting:
            now = time.monotonic()
            for name, journal in journals.items():
                acked, readable = self._acked(journal), journal.readable
                self._past.add(name, acked, journal.safe, now)
                self._lag.see(name, acked, readable, now - waited.get(name, 0.0))
            self._lag.keep(journals.keys())
            self._past.keep_only(journals.keys())

    def minute_ago(self, journal: str) -> ProgressSample | None:
        with self._noting:
            return self._past.minute_ago(journal, time.monotonic())

    def _note_on(self) -> None:
        while True:
            self.note()
            time.sleep(NOTE_SECONDS)

    def _of_journal(self, flow: str, journal: Log) -> Iterator[Reading]:
        acked, safe, readable = self._acked(journal), journal.safe, journal.readable
        yield table.JOURNAL_BYTES.of(journal.bytes, flow)
        yield table.JOURNAL_LIMIT.of(journal.limits.max_bytes, flow)
        yield table.JOURNAL_EVENTS.of(safe - journal.floor, flow)
        yield table.JOURNAL_UNACKED.of(safe - acked, flow)
        yield table.JOURNAL_UNREADABLE.of(max(0, safe - readable), flow)
        with self._noting:
            waited = self._lag.seconds(journal.id, acked, time.monotonic())
        yield table.JOURNAL_LAG_SECONDS.of(waited, flow)


def _of_sources(flow: str, counted: list[tuple[str, Counters]]) -> Iterator[Reading]:
    for source, counters in counted:
        for name, metric in TAKEN.items():
            yield metric.of(getattr(counters, name), flow, source)


def _waited_seconds(journal: Log, seq: int) -> float:
    """Return how long an event from before this process has waited; 0 when it is unknown."""
    try:
        received = received_us(journal, seq)
    except (FlumengError, OSError):  # it was trimmed or closed meanwhile
        return 0.0
    return max(0.0, time.time() - received / 1e6) if received is not None else 0.0


def _free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


class LagClock:
    """The age of each journal's oldest unacked event, from samples. Not thread-safe."""

    def __init__(self) -> None:
        self._notes: dict[str, deque[tuple[int, float]]] = {}

    def see(self, journal: str, acked: int, safe: int, now: float) -> None:
        if acked >= safe:
            self._notes.pop(journal, None)
            return
        notes = self._notes.setdefault(journal, deque())
        if not notes or safe > notes[-1][0]:
            notes.append((safe, now))
        while notes[0][0] <= acked:
            notes.popleft()
        if len(notes) > MOST_NOTES:
            self._notes[journal] = _halved(notes)

    def seconds(self, journal: str, acked: int, now: float) -> float:
        """Return how long the first unacked event has waited, to within the sampling interval."""
        notes = self._notes.get(journal, ())
        return next((max(0.0, now - at) for safe, at in notes if safe > acked), 0.0)

    def keep(self, journals: Collection[str]) -> None:
        for gone in self._notes.keys() - set(journals):
            del self._notes[gone]


def _halved(notes: deque[tuple[int, float]]) -> deque[tuple[int, float]]:
    """Merge neighbours into the later end and the earlier time: no wait appears shorter."""
    pairs = list(notes)
    return deque(
        (pairs[min(n + 1, len(pairs) - 1)][0], pairs[n][1]) for n in range(0, len(pairs), 2)
    )
