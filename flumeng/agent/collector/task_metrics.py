"""What Spark counts of its tasks, by flow: read from its status store, which needs no UI.

To read it after each job would cost more than a small batch can bear. So what has ended is read
every LOOK_SECONDS, all of it in two calls, and nothing while nothing runs. A job of several batches
counts for each of their flows by events. Of more jobs between two looks than Spark remembers
(``spark_ui.RETAINED``), the first are not counted.
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import SparkSession

from flumeng.agent.collector.work import Work

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
KEEP_SECONDS = 10.0
"""Spark's store learns of the end of a job a moment after its caller."""
WRAPPERS = "org.apache.spark.status"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Used:
    """By Spark tasks. ``run_seconds``: their times added up, which is mostly that of Python.
    ``cpu_seconds`` and ``gc_seconds``: of their threads in the JVM, without Python.
    ``peak_memory_bytes``: for sorting and grouping, of the stage that took most."""

    run_seconds: float = 0.0
    cpu_seconds: float = 0.0
    gc_seconds: float = 0.0
    spilled_bytes: float = 0.0
    failed_tasks: float = 0.0
    peak_memory_bytes: int = 0

    @classmethod
    def of_stage(cls, stage: Row) -> Used:
        return cls(
            stage["executorRunTime"] / 1e3,
            stage["executorCpuTime"] / 1e9,
            stage["jvmGcTime"] / 1e3,
            stage["diskBytesSpilled"],
            stage["numFailedTasks"],
            stage["peakExecutionMemory"],
        )

    def __add__(self, other: Used) -> Used:
        return Used(
            self.run_seconds + other.run_seconds,
            self.cpu_seconds + other.cpu_seconds,
            self.gc_seconds + other.gc_seconds,
            self.spilled_bytes + other.spilled_bytes,
            self.failed_tasks + other.failed_tasks,
            max(self.peak_memory_bytes, other.peak_memory_bytes),
        )

    def part(self, share: float) -> Used:
        """``share`` of it; a peak is not shared out."""
        return Used(
            self.run_seconds * share,
            self.cpu_seconds * share,
            self.gc_seconds * share,
            self.spilled_bytes * share,
            self.failed_tasks * share,
            self.peak_memory_bytes,
        )


class Statuses(Protocol):
    """Spark's status store: jobs and stages with that number or a higher one."""

    def jobs(self, first: int) -> Sequence[Row]: ...

    def stages(self, first: int) -> Sequence[Row]: ...


class StatusStore:
    """See ``Statuses``. Spark serialises what it holds, so that each answer is one call."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._store = spark.sparkContext._jsc.sc().statusStore().store()
        self._serializer = getattr(jvm, f"{WRAPPERS}.KVUtils$KVStoreScalaSerializer")()
        find = jvm.org.apache.spark.util.Utils.classForName
        self._jobs = find(f"{WRAPPERS}.JobDataWrapper", True, False)
        self._stages = find(f"{WRAPPERS}.StageDataWrapper", True, False)

    def jobs(self, first: int) -> Sequence[Row]:
        return self._rows(self._store.view(self._jobs).first(first))

    def stages(self, first: int) -> Sequence[Row]:
        return self._rows(self._store.view(self._stages).index("stageId").first(first))

    def _rows(self, view: Any) -> Sequence[Row]:
        rows: Sequence[Row] = json.loads(gzip.decompress(self._serializer.serialize(view)))
        return rows


@dataclass
class _Group:
    """A job of ours, which Spark calls a group of jobs."""

    events: Mapping[str, int]
    ended_at: float | None = None

    @property
    def shares(self) -> Iterator[tuple[str, float]]:
        """By flow. A job without events is shared out evenly."""
        total = sum(self.events.values())
        for flow, events in self.events.items():
            yield flow, events / total if total else 1 / len(self.events)


class TaskMetrics:
    """``tell`` is told what a flow has used, from the thread that looks. ``running`` may be used
    from any thread."""

    def __init__(
        self,
        statuses: Statuses,
        tell: Callable[[str, Used], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._statuses = statuses
        self._tell = tell
        self._clock = clock
        self._groups: dict[str, _Group] = {}
        self._next = 0
        self._counted: set[int] = set()
        """Of the jobs from ``_next`` on, those that have ended and are counted."""
        self._failing = False
        self._lock = threading.Lock()

    @contextmanager
    def running(self, job: str, works: Sequence[Work]) -> Iterator[None]:
        """While the job of that name runs."""
        events: Counter[str] = Counter()
        for work in works:
            events[work.pipeline.spec.flow] += work.events
        group = _Group(events)
        with self._lock:
            self._groups[job] = group
        try:
            yield
        finally:
            group.ended_at = self._clock()

    def follow(self) -> None:
        """Look now and then, for as long as this process lives."""
        while True:
            time.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Tell of the jobs that have ended since the last look. What Spark cannot say is not
        counted."""
        if not self._groups:
            return
        began = self._clock()
        try:
            self._count_ended()
        except Exception as error:
            if not self._failing:
                log.warning("what Spark counts of its tasks is not known: %s", error)
            self._failing = True
        else:
            self._failing = False
        with self._lock:
            self._groups = {
                name: group
                for name, group in self._groups.items()
                if group.ended_at is None or began - group.ended_at < KEEP_SECONDS
            }

    def _count_ended(self) -> None:
        jobs = {row["info"]["jobId"]: row for row in self._statuses.jobs(self._next)}
        with self._lock:
            groups = dict(self._groups)
        fresh = jobs.keys() - self._counted
        ended = {number for number in fresh if jobs[number]["info"]["status"] != "RUNNING"}
        self._counted |= ended
        self._next = min(fresh - ended, default=max(jobs, default=self._next - 1) + 1)
        self._counted = {number for number in self._counted if number >= self._next}
        self._count([jobs[number] for number in sorted(ended)], groups)

    def _count(self, jobs: Sequence[Row], groups: Mapping[str, _Group]) -> None:
        ours = [row for row in jobs if row["info"].get("jobGroup") in groups and _stages(row)]
        if not ours:
            return
        by_stage = _by_stage(self._statuses.stages(min(min(_stages(row)) for row in ours)))
        for row in ours:
            used = sum((by_stage.get(stage, Used()) for stage in _stages(row)), Used())
            for flow, share in groups[row["info"]["jobGroup"]].shares:
                self._tell(flow, used.part(share))


def _stages(job: Row) -> set[int]:
    """Those that it has run; the others were there from an earlier job."""
    return set(job["info"]["stageIds"]) - set(job["skippedStages"])


def _by_stage(rows: Iterable[Row]) -> dict[int, Used]:
    """All attempts of each stage."""
    found: dict[int, Used] = {}
    for row in rows:
        stage = row["info"]
        found[stage["stageId"]] = found.get(stage["stageId"], Used()) + Used.of_stage(stage)
    return found
