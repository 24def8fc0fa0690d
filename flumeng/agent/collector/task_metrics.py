"""Resource use of Spark tasks by flow, from Spark's status store, which needs no UI.

Reading the store after each job costs more than a small batch, so it is read periodically. A shared
job counts for each flow by its events. Jobs that Spark has dropped from the store by then
(``spark.RETAINED``) are not counted.
"""

from __future__ import annotations

import gzip
import json
import logging
import operator
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, Protocol

from pyspark.sql import SparkSession

from flumeng.agent.collector.batch import Work

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
KEEP_SECONDS = 10.0
"""Jobs are kept for this long after their end, since Spark's store learns of it a moment later."""
WRAPPERS = "org.apache.spark.status"

Row = Mapping[str, Any]


class Used(NamedTuple):
    """Resources used. ``run_seconds``: mostly Python's. ``cpu_seconds``, ``gc_seconds``: of JVM
    threads only. ``peak_memory_bytes``: for sorting and grouping, the largest of any stage."""

    run_seconds: float = 0.0
    cpu_seconds: float = 0.0
    gc_seconds: float = 0.0
    spilled_bytes: float = 0.0
    failed_tasks: float = 0.0
    peak_memory_bytes: float = 0.0

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

    def plus(self, other: Used) -> Used:
        sums = map(operator.add, self[:-1], other[:-1])
        return Used._make([*sums, max(self.peak_memory_bytes, other.peak_memory_bytes)])

    def part(self, share: float) -> Used:
        """Return the part ``share`` (0 to 1) of the use; the peak is not divided."""
        shares = [value * share for value in self[:-1]]
        return Used._make([*shares, self.peak_memory_bytes])


class Statuses(Protocol):
    """Spark's status store: returns jobs or stages numbered ``first`` or higher."""

    def jobs(self, first: int) -> Sequence[Row]: ...

    def stages(self, first: int) -> Sequence[Row]: ...


class StatusStore:
    """Reads Spark's status store in serialised form, so that each answer is one call."""

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
    """A collector's job, which Spark calls a job group."""

    events: Mapping[str, int]
    ended_at: float | None = None

    @property
    def shares(self) -> Iterator[tuple[str, float]]:
        total = sum(self.events.values())
        for flow, events in self.events.items():
            yield flow, events / total if total else 1 / len(self.events)


class TaskMetrics:
    """Calls ``tell`` with each flow's use, in ``poll``'s thread. ``running`` is thread-safe."""

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
        self._failing = False
        self._lock = threading.Lock()

    @contextmanager
    def running(self, job: str, works: Sequence[Work]) -> Iterator[None]:
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

    def poll(self) -> None:
        if not self._groups:
            return
        began = self._clock()
        try:
            self._count_ended()
        except Exception as error:
            if not self._failing:
                log.warning("cannot read the metrics of Spark's tasks, retrying: %s", error)
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
            used = reduce(
                Used.plus, (by_stage.get(stage, Used()) for stage in _stages(row)), Used()
            )
            for flow, share in groups[row["info"]["jobGroup"]].shares:
                self._tell(flow, used.part(share))


def _stages(job: Row) -> set[int]:
    """Return the stages that ran; skipped ones belong to an earlier job."""
    return set(job["info"]["stageIds"]) - set(job["skippedStages"])


def _by_stage(rows: Iterable[Row]) -> dict[int, Used]:
    used: dict[int, Used] = {}
    for row in rows:
        stage = row["info"]
        used[stage["stageId"]] = used.get(stage["stageId"], Used()).plus(Used.of_stage(stage))
    return used
