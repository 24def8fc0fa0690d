"""What a collector counts of its own work, for its metrics. Nothing here reads ZooKeeper.

The fetch, the filters and the sinks of a batch are stages of one Spark job, which runs them
interleaved; so they have one time together, ``write``.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping

from flumeng.agent.collector.ack import SupersededError
from flumeng.agent.collector.batch_times import Times
from flumeng.agent.collector.lags import Lags
from flumeng.agent.collector.task_counts import TaskCounts
from flumeng.agent.collector.task_metrics import Used
from flumeng.agent.collector.written import BrokenTogetherError, HungError, SinkUnavailableError
from flumeng.connectors.api.ranged import UnreadableError
from flumeng.connectors.api.sink import BatchTooWideError
from flumeng.platform.errors import ConflictError, UnavailableError
from flumeng.platform.metrics import table
from flumeng.platform.metrics.health import Health
from flumeng.platform.metrics.histogram import EVENTS, FLOW_SECONDS, Histogram
from flumeng.platform.metrics.table import Metric, Reading

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
    were written and in how many transactions, ``tasks`` what became of the last events of each, and
    ``lags`` how far each is behind.
    """

    def __init__(self) -> None:
        self.health = Health(STUCK_SECONDS)
        self.health.needs(lambda: None if self.spark_runs else "Spark is starting")
        self.spark_runs = False
        self.tasks = TaskCounts()
        self.lags = Lags()
        self.jobs: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.acks: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._counts: defaultdict[Metric, Counter[tuple[str, ...]]] = defaultdict(Counter)
        """By metric and labels, of which the first is the flow."""
        self._used: dict[str, Used] = {}
        self._last_success: dict[str, float] = {}
        self._histograms: dict[tuple[Metric, tuple[str, ...]], Histogram] = {}
        """By metric and labels, as above."""
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
            self._counts[table.COLLECT_EVENTS][flow,] += events
            self._counts[table.COLLECT_REFUSED][flow,] += refused
            self._counts[table.COLLECT_DEAD_LETTERS][flow,] += dead_letters
            self._counts[table.COLLECT_GONE][flow,] += gone
            self._counts[table.COLLECT_BATCHES][flow,] += 1
            self._last_success[flow] = time.time()

    def timed(self, flow: str, times: Times, now: float) -> None:
        """The events of a batch that is acked ``now``, in seconds since the epoch."""
        if times.received is not None:
            age = max(0.0, now - times.received.mean)
            self._of_flow(table.FLOW_LATENCY_SECONDS, flow).add(age, times.received.events)
        for sink, counts in times.writes.items():
            self._of_flow(table.SINK_WRITE_SECONDS, flow, sink).add_counts(counts)

    def filtered(self, flow: str, taken: Mapping[str, int], failed: Mapping[str, int]) -> None:
        """How many events of a batch went into each branch, and how many each filter dropped since
        it could not process them."""
        self._add(table.COLLECT_BRANCH_EVENTS, flow, taken)
        self._add(table.COLLECT_FAILED_EVENTS, flow, failed)

    def lines_closed(self, flow: str, counts: Mapping[str, int]) -> None:
        """So many events of several lines ended for these reasons."""
        self._add(table.COLLECT_LINES_CLOSED, flow, counts)

    def letter_files_deleted(self, flow: str, files: int) -> None:
        """So many files of dead letters were more than the flow keeps."""
        with self._lock:
            self._counts[table.COLLECT_LETTER_FILES_DELETED][flow,] += files

    def failed(self, flow: str, error: Exception) -> None:
        """A task of the flow has to begin anew."""
        cause = next(cause for kind, cause in CAUSES if isinstance(error, kind))
        self._add(table.COLLECT_FAILURES, flow, {cause: 1})
        if isinstance(error, SinkUnavailableError):
            self._add(table.SINK_RETRIES, flow, {error.place: 1})

    def used(self, flow: str, used: Used) -> None:
        """What Spark's tasks took for a job of the flow."""
        with self._lock:
            self._used[flow] = self._used.get(flow, Used()) + used

    def keep(self, flows: Collection[str]) -> None:
        """Forget the flows that this collector has nothing of any more."""
        with self._lock:
            for counts in self._counts.values():
                for labels in [labels for labels in counts if labels[0] not in flows]:
                    del counts[labels]
            for key in [key for key in self._histograms if key[1][0] not in flows]:
                del self._histograms[key]
            for by_flow in (self._used, self._last_success):
                for flow in by_flow.keys() - set(flows):
                    del by_flow[flow]

    def readings(self) -> Iterator[Reading]:
        with self._lock:
            counts = {metric: dict(of) for metric, of in self._counts.items()}
            histograms = dict(self._histograms)
            spark, successes = dict(self._used), dict(self._last_success)
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

    def _of_flow(self, metric: Metric, *labels: str) -> Histogram:
        with self._lock:
            return self._histograms.setdefault((metric, labels), Histogram(FLOW_SECONDS))

    def _add(self, metric: Metric, flow: str, counts: Mapping[str, int]) -> None:
        """To a metric with one more label."""
        with self._lock:
            self._counts[metric].update({(flow, label): n for label, n in counts.items()})
