"""What a collector counts of its own work, for its metrics. Nothing here reads ZooKeeper.

The fetch, the filters and the sinks of a batch are stages of one Spark job, which runs them
interleaved; so they have one time together, ``write``.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from flumeng.collector.acks import SupersededError
from flumeng.collector.task_counts import TaskCounts
from flumeng.collector.task_metrics import Used
from flumeng.collector.work import BrokenTogetherError, HungError
from flumeng.errors import ConflictError, UnavailableError
from flumeng.inputs import UnreadableError
from flumeng.metrics import table
from flumeng.metrics.health import Health
from flumeng.metrics.histogram import EVENTS, Histogram
from flumeng.metrics.table import Reading
from flumeng.sinks import BatchTooWideError

STUCK_SECONDS = 120.0
"""Spark may take so long to start; after that its probes turn every few seconds."""

CAUSES: tuple[tuple[type[Exception], str], ...] = (
    (SupersededError, "superseded"),
    (BatchTooWideError, "too_wide"),
    (UnreadableError, "unreadable"),
    (BrokenTogetherError, "broken_together"),
    (HungError, "hung"),
    (UnavailableError, "unavailable"),
    (ConflictError, "conflict"),
    (Exception, "failed"),
)
"""What a task's failure is called; the first that fits."""


class Measures:
    """Written by the turns of tasks; ``readings`` may be asked from any thread.

    ``jobs`` gives how many Spark jobs run and how many tasks wait for one, ``acks`` how many acks
    were written and in how many transactions, and ``tasks`` what became of the last events of each.
    """

    def __init__(self) -> None:
        self.health = Health(STUCK_SECONDS)
        self.health.needs(lambda: None if self.spark_runs else "Spark is starting")
        self.spark_runs = False
        self.tasks = TaskCounts()
        self.jobs: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.acks: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._events: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._dead_letters: Counter[str] = Counter()
        self._gone: Counter[str] = Counter()
        self._letter_files_deleted: Counter[str] = Counter()
        self._lines_closed: Counter[tuple[str, str]] = Counter()
        self._batches: Counter[str] = Counter()
        self._taken: Counter[tuple[str, str]] = Counter()
        self._unprocessed: Counter[tuple[str, str]] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._used: dict[str, Used] = {}
        self._batch_events = Histogram(EVENTS)
        self._seconds = {stage: Histogram() for stage in ("wait", "write", "commit")}
        self._lock = threading.Lock()

    def committed(
        self,
        flow: str,
        events: int,
        refused: int = 0,
        dead_letters: int = 0,
        gone: int = 0,
        **seconds: float,
    ) -> None:
        """A batch; of ``refused`` events the time was not believed, and ``dead_letters`` are events
        that a sink refused for good. ``gone`` offsets were passed over. ``seconds`` by stage: to
        ``wait`` for a slot, to ``write``, to ``commit``."""
        self._batch_events.add(events)
        for stage, took in seconds.items():
            self._seconds[stage].add(took)
        with self._lock:
            self._events[flow] += events
            self._refused[flow] += refused
            self._dead_letters[flow] += dead_letters
            self._gone[flow] += gone
            self._batches[flow] += 1

    def filtered(self, flow: str, taken: Mapping[str, int], failed: Mapping[str, int]) -> None:
        """How many events of a batch went into each branch, and how many each filter dropped since
        it could not process them."""
        with self._lock:
            self._taken.update({(flow, branch): count for branch, count in taken.items()})
            self._unprocessed.update({(flow, place): count for place, count in failed.items()})

    def lines_closed(self, flow: str, counts: Mapping[str, int]) -> None:
        """So many events of several lines ended for these reasons."""
        with self._lock:
            for reason, count in counts.items():
                self._lines_closed[flow, reason] += count

    def letter_files_deleted(self, flow: str, files: int) -> None:
        """So many files of dead letters were more than the flow keeps."""
        with self._lock:
            self._letter_files_deleted[flow] += files

    def failed(self, flow: str, error: Exception) -> None:
        """A task of the flow has to begin anew."""
        cause = next(cause for kind, cause in CAUSES if isinstance(error, kind))
        with self._lock:
            self._failures[flow, cause] += 1

    def used(self, flow: str, used: Used) -> None:
        """What Spark's tasks took for a job of the flow."""
        with self._lock:
            self._used[flow] = self._used.get(flow, Used()) + used

    def keep(self, flows: Collection[str]) -> None:
        """Forget the flows that this collector has nothing of any more."""
        with self._lock:
            for flow in [flow for flow in self._events if flow not in flows]:
                del self._events[flow], self._refused[flow], self._batches[flow]
                del self._dead_letters[flow], self._gone[flow]
            for flow in [flow for flow in self._letter_files_deleted if flow not in flows]:
                del self._letter_files_deleted[flow]
            for counts in (self._taken, self._unprocessed):
                for key in [key for key in counts if key[0] not in flows]:
                    del counts[key]
            for flow in [flow for flow in self._used if flow not in flows]:
                del self._used[flow]
            for key in [key for key in self._failures if key[0] not in flows]:
                del self._failures[key]
            for key in [key for key in self._lines_closed if key[0] not in flows]:
                del self._lines_closed[key]

    def readings(self) -> Iterator[Reading]:
        with self._lock:
            events, refused = dict(self._events), dict(self._refused)
            batches, letters = dict(self._batches), dict(self._dead_letters)
            gone, taken = dict(self._gone), dict(self._taken)
            unprocessed = dict(self._unprocessed)
            closed, deleted = dict(self._lines_closed), dict(self._letter_files_deleted)
            failures, spark = dict(self._failures), dict(self._used)
        for flow, count in events.items():
            yield table.COLLECT_EVENTS.of(count, flow)
        for flow, count in refused.items():
            yield table.COLLECT_REFUSED.of(count, flow)
        for flow, count in letters.items():
            yield table.COLLECT_DEAD_LETTERS.of(count, flow)
        for flow, count in deleted.items():
            yield table.COLLECT_LETTER_FILES_DELETED.of(count, flow)
        for flow, count in gone.items():
            yield table.COLLECT_GONE.of(count, flow)
        for (flow, branch), count in taken.items():
            yield table.COLLECT_BRANCH_EVENTS.of(count, flow, branch)
        for (flow, place), count in unprocessed.items():
            yield table.COLLECT_FAILED_EVENTS.of(count, flow, place)
        for (flow, reason), count in closed.items():
            yield table.COLLECT_LINES_CLOSED.of(count, flow, reason)
        for flow, count in batches.items():
            yield table.COLLECT_BATCHES.of(count, flow)
        for (flow, cause), count in failures.items():
            yield table.COLLECT_FAILURES.of(count, flow, cause)
        for flow, used in spark.items():
            yield table.SPARK_RUN_SECONDS.of(used.run_seconds, flow)
            yield table.SPARK_CPU_SECONDS.of(used.cpu_seconds, flow)
            yield table.SPARK_GC_SECONDS.of(used.gc_seconds, flow)
            yield table.SPARK_SPILLED_BYTES.of(used.spilled_bytes, flow)
            yield table.SPARK_FAILED_TASKS.of(used.failed_tasks, flow)
            yield table.SPARK_PEAK_MEMORY_BYTES.of(used.peak_memory_bytes, flow)
        yield table.COLLECT_BATCH_EVENTS.of(self._batch_events)
        for stage, seconds in self._seconds.items():
            yield table.COLLECT_BATCH_SECONDS.of(seconds, stage)
        running, waiting = self.jobs()
        yield table.COLLECT_JOBS.of(running)
        yield table.COLLECT_WAITING.of(waiting)
        acks, transactions = self.acks()
        yield table.COLLECT_ACKS.of(acks)
        yield table.COLLECT_ACK_TRANSACTIONS.of(transactions)
