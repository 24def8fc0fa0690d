"""Counts a collector's work, for metrics and for commands that ask about tasks.

Reads nothing from ZooKeeper. Fetch, filters and sinks share one time, ``write``, since they run in
one Spark job. A lag is the age of the newest noted end that is acked by now, so a busy flow has a
small one.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flumeng.agent.collector.ack import SupersededError
from flumeng.agent.collector.batch import Batch, Filtered
from flumeng.agent.collector.batch_times import Times
from flumeng.agent.collector.outcome import BrokenTogetherError, HungError, SinkUnavailableError
from flumeng.connectors.api.ranged import UnreadableError
from flumeng.connectors.api.sink import BatchTooWideError
from flumeng.control.snapshot.partitions import distance
from flumeng.platform.errors import ConflictError, UnavailableError
from flumeng.platform.metrics import table
from flumeng.platform.metrics.health import Health
from flumeng.platform.metrics.histogram import EVENTS, FLOW_SECONDS, Histogram
from flumeng.platform.metrics.table import Metric, Reading

SLOT_SECONDS = 5.0
WINDOWS: Mapping[str, float] = {"1m": 60.0, "5m": 300.0, "15m": 900.0}


class MovingCounts:
    """Counts of events in moving windows, for one thread at a time. ``clock`` is monotonic.
    Invariant: slots are in order, none is older than the longest window or empty."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slots: deque[tuple[int, Counter[str]]] = deque()

    def add(self, counts: Mapping[str, int]) -> None:
        counted = Counter({name: count for name, count in counts.items() if count})
        now = self._forget()
        if not counted:
            return
        if not self._slots or self._slots[-1][0] != now:
            self._slots.append((now, Counter()))
        self._slots[-1][1].update(counted)

    def sums(self) -> dict[str, Counter[str]]:
        now = self._forget()
        return {
            window: sum((c for slot, c in self._slots if slot > now - _slot(seconds)), Counter())
            for window, seconds in WINDOWS.items()
        }

    def check(self) -> None:
        slots = [slot for slot, _ in self._slots]
        assert slots == sorted(set(slots)), slots
        assert not slots or slots[-1] - slots[0] < _slot(max(WINDOWS.values())), slots
        assert all(counts.total() for _, counts in self._slots)

    def _forget(self) -> int:
        now = _slot(self._clock())
        while self._slots and self._slots[0][0] <= now - _slot(max(WINDOWS.values())):
            self._slots.popleft()
        return now


def _slot(seconds: float) -> int:
    return int(seconds // SLOT_SECONDS)


STUCK_SECONDS = 120.0
"""Limit of the health check; Spark may take this long to start."""
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
"""Causes of failures in metrics, by type of error; the first match counts."""
PROCESSED, DROPPED, PARSE_ERRORS, DEAD_LETTERS = COUNTED = (
    "processed",
    "dropped",
    "parse_errors",
    "dead_letters",
)
SPACING = 0.25
"""A partition's end is noted again after this part of its lag, which bounds the lag's error."""
LEAST_SECONDS = 1.0


@dataclass
class _Task:
    epoch: int
    since: float
    counts: MovingCounts
    unknown: frozenset[str] = frozenset()


class TaskCounts:
    """Events of each task in the last 1, 5 and 15 minutes; thread-safe and in memory only. A task
    from another node, or under another epoch, starts from zero."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._tasks: dict[str, _Task] = {}
        self._lock = threading.Lock()

    def begin(self, key: str, epoch: int) -> None:
        """Start counting for the task ``flow/task``; under the same epoch its counts continue."""
        with self._lock:
            task = self._tasks.get(key)
            if task is None or task.epoch != epoch:
                since = round(self._wall(), 3)
                self._tasks[key] = _Task(epoch, since, MovingCounts(self._clock))

    def add(self, key: str, counts: Mapping[str, int | None]) -> None:
        """Add the counts of a committed batch; None: not counted."""
        with self._lock:
            task = self._tasks.get(key)
            if task is not None:
                task.unknown = frozenset(name for name, count in counts.items() if count is None)
                task.counts.add({name: count or 0 for name, count in counts.items()})

    def keep(self, keys: Collection[str]) -> None:
        with self._lock:
            self._tasks = {key: task for key, task in self._tasks.items() if key in keys}

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per task, as JSON: each count by window, None where it is not counted."""
        with self._lock:
            return [_row(key, task) for key, task in sorted(self._tasks.items())]


def _row(key: str, task: _Task) -> dict[str, Any]:
    sums = task.counts.sums()
    windows = {
        name: {window: counts[name] for window, counts in sums.items()}
        for name in COUNTED
        if name not in task.unknown
    }
    flow, _, name = key.partition("/")
    return {
        "flow": flow,
        "task": name,
        "epoch": task.epoch,
        "since": task.since,
        "counts": {name: windows.get(name) for name in COUNTED},
    }


class Place(NamedTuple):
    """Events below ``ack`` are delivered; the partition ends at ``end``, None when unknown."""

    ack: int
    end: int | None


class Lag(NamedTuple):
    """``events`` wait; everything that arrived ``seconds`` ago or earlier is delivered."""

    events: int
    seconds: float


@dataclass
class _Behind:
    """The lag of a partition with waiting events or an unknown end. Everything that arrived until
    ``since`` is acked. ``marks``: (second, end at that time), above the ack."""

    since: float
    events: int = 0
    marks: deque[tuple[float, int]] = field(default_factory=deque)

    def see(self, ack: int, end: int, events: int, now: float) -> None:
        while self.marks and self.marks[0][1] <= ack:
            self.since, _ = self.marks.popleft()
        newest = self.marks[-1][0] if self.marks else -float("inf")
        if now - newest >= max(LEAST_SECONDS, SPACING * (now - self.since)):
            self.marks.append((now, end))
        self.events = events


class Lags:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tasks: dict[str, dict[str, _Behind]] = {}
        self._names: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()

    def see(self, task: str, places: Mapping[str, Place]) -> None:
        now = self._clock()
        with self._lock:
            old = self._tasks.get(task, {})
            behind: dict[str, _Behind] = {}
            for name, (ack, end) in places.items():
                events = 0 if end is None else distance(name, ack, end)
                if end is None or events > 0:
                    behind[name] = old.get(name) or _Behind(now)
                    if end is not None:
                        behind[name].see(ack, end, events, now)
            self._tasks[task] = behind
            self._names[task] = frozenset(places)

    def lose(self, task: str) -> None:
        """Treat the ends of the task's partitions as unknown after a failure: their lags grow."""
        now = self._clock()
        with self._lock:
            for name in self._names.get(task, ()):
                self._tasks[task].setdefault(name, _Behind(now))

    def forget(self, task: str) -> None:
        with self._lock:
            self._tasks.pop(task, None)
            self._names.pop(task, None)

    def keep(self, tasks: Collection[str]) -> None:
        with self._lock:
            for gone in self._tasks.keys() - set(tasks):
                del self._tasks[gone], self._names[gone]

    def by_flow(self) -> dict[str, Lag]:
        now = self._clock()
        lags: dict[str, Lag] = {}
        with self._lock:
            for task, behind in self._tasks.items():
                flow = task.partition("/")[0]
                events, seconds = lags.get(flow, Lag(0, 0.0))
                events += sum(lag.events for lag in behind.values())
                seconds = max([seconds, *(now - lag.since for lag in behind.values())])
                lags[flow] = Lag(events, seconds)
        return lags


class Measures:
    """A collector's counts and lags, written by the turns of tasks; ``readings`` is thread-safe.
    ``jobs`` gives running Spark jobs and waiting tasks, ``acks`` written acks and transactions."""

    def __init__(self) -> None:
        self.health = Health(STUCK_SECONDS)
        self.health.needs(lambda: None if self.spark_runs else "Spark is starting")
        self.spark_runs = False
        self.tasks = TaskCounts()
        self.lags = Lags()
        self.jobs: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.acks: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._counts: defaultdict[Metric, Counter[tuple[str, ...]]] = defaultdict(Counter)
        """Counts by metric and labels; the first label is the flow."""
        self._used: dict[str, tuple[float, float]] = {}
        """Seconds of run time and of processor time on Spark, by flow."""
        self._last_success: dict[str, float] = {}
        self._histograms: dict[tuple[Metric, tuple[str, ...]], Histogram] = {}
        self._batch_events = Histogram(EVENTS)
        self._seconds = {stage: Histogram() for stage in ("wait", "write", "commit")}
        self._lock = threading.Lock()

    def committed(self, task: str, batch: Batch, made: Filtered, commit_seconds: float) -> None:
        flow = task.partition("/")[0]
        events = batch.events if made.read is None else made.read
        self._batch_events.add(events)
        self._seconds["wait"].add(batch.waited_seconds)
        self._seconds["write"].add(batch.ended - batch.began)
        self._seconds["commit"].add(commit_seconds)
        with self._lock:
            self._counts[table.COLLECT_EVENTS][flow,] += events
            self._counts[table.COLLECT_REFUSED][flow,] += batch.refused
            self._counts[table.COLLECT_DEAD_LETTERS][flow,] += batch.dead_letters
            self._counts[table.COLLECT_GONE][flow,] += batch.gone
            self._counts[table.COLLECT_BATCHES][flow,] += 1
            self._last_success[flow] = time.time()
        self._add(table.COLLECT_BRANCH_EVENTS, flow, made.taken)
        self._add(table.COLLECT_FAILED_EVENTS, flow, made.failed)
        self._add(table.COLLECT_LINES_CLOSED, flow, batch.lines_closed)
        if made.times is not None:
            self.timed(flow, made.times, time.time())
        counts = {
            PROCESSED: events,
            DROPPED: made.dropped,
            PARSE_ERRORS: made.parse_errors,
            DEAD_LETTERS: batch.dead_letters,
        }
        self.tasks.add(task, counts)

    def timed(self, flow: str, times: Times, now: float) -> None:
        """Record the times of a batch that is acked ``now``, in seconds since the epoch."""
        if times.received is not None:
            age = max(0.0, now - times.received.mean)
            self._of_flow(table.FLOW_LATENCY_SECONDS, flow).add(age, times.received.events)
        for sink, counts in times.writes.items():
            self._of_flow(table.SINK_WRITE_SECONDS, flow, sink).add_counts(counts)
        with self._lock:
            run, cpu = self._used.get(flow, (0.0, 0.0))
            self._used[flow] = run + times.run_seconds, cpu + times.cpu_seconds
            if times.looped:
                self._counts[table.COLLECT_LOOPED][flow,] += times.looped

    def dead_letter_files_deleted(self, flow: str, files: int) -> None:
        with self._lock:
            self._counts[table.COLLECT_LETTER_FILES_DELETED][flow,] += files

    def failed(self, flow: str, error: Exception) -> None:
        cause = next(cause for kind, cause in CAUSES if isinstance(error, kind))
        self._add(table.COLLECT_FAILURES, flow, {cause: 1})
        if isinstance(error, SinkUnavailableError):
            self._add(table.SINK_RETRIES, flow, {error.place: 1})

    def keep(self, tasks: Collection[str]) -> None:
        """Forget all tasks except ``tasks``, and flows without any of these."""
        self.tasks.keep(tasks)
        self.lags.keep(tasks)
        flows = {task.partition("/")[0] for task in tasks}
        with self._lock:
            for counts in self._counts.values():
                for labels in [labels for labels in counts if labels[0] not in flows]:
                    del counts[labels]
            for key in [key for key in self._histograms if key[1][0] not in flows]:
                del self._histograms[key]
            for by_flow in (self._used, self._last_success):
                for flow in by_flow.keys() - flows:
                    del by_flow[flow]

    def readings(self) -> Iterator[Reading]:
        with self._lock:
            counts = {metric: dict(of) for metric, of in self._counts.items()}
            histograms = dict(self._histograms)
            used, successes = dict(self._used), dict(self._last_success)
        for metric, of in counts.items():
            for labels, count in of.items():
                yield metric.of(count, *labels)
        for (metric, labels), histogram in histograms.items():
            yield metric.of(histogram, *labels)
        for flow, moment in successes.items():
            yield table.COLLECT_LAST_SUCCESS.of(moment, flow)
        for flow, lag in self.lags.by_flow().items():
            yield table.FLOW_LAG_EVENTS.of(lag.events, flow)
            yield table.FLOW_LAG_SECONDS.of(lag.seconds, flow)
        for flow, (run, cpu) in used.items():
            yield table.SPARK_RUN_SECONDS.of(run, flow)
            yield table.SPARK_CPU_SECONDS.of(cpu, flow)
        yield table.COLLECT_BATCH_EVENTS.of(self._batch_events)
        for stage, seconds in self._seconds.items():
            yield table.COLLECT_BATCH_SECONDS.of(seconds, stage)
        running, waiting = self.jobs()
        yield table.COLLECT_JOBS.of(running)
        yield table.COLLECT_WAITING.of(waiting)
        acks, transactions = self.acks()
        yield table.COLLECT_ACKS.of(acks)
        yield table.COLLECT_ACK_TRANSACTIONS.of(transactions)

    def _of_flow(self, metric: Metric, *labels: str) -> Histogram:
        with self._lock:
            return self._histograms.setdefault((metric, labels), Histogram(FLOW_SECONDS))

    def _add(self, metric: Metric, flow: str, counts: Mapping[str, int]) -> None:
        with self._lock:
            self._counts[metric].update({(flow, label): n for label, n in counts.items()})
