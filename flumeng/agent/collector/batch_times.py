"""Measures events' times of receipt, and times of runs and of sinks' writes."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.ranged import reports
from flumeng.connectors.ranged.reports import CPU_MICROS, RUN_MICROS, Reports
from flumeng.connectors.sites.reader import LOOPED
from flumeng.events.lazy_batch import LazyBatch, Stage
from flumeng.platform.metrics.histogram import FLOW_SECONDS, Counts

RECEIVED, RECEIVED_MICROS = "received events", "received micros"


@dataclass(frozen=True)
class Received:
    """Receipt of ``events`` events; ``mean``: their mean time of receipt, in epoch seconds."""

    events: int
    mean: float


@dataclass(frozen=True)
class Times:
    """``run_seconds``: of all stages of all splits; ``cpu_seconds``: of these in Python.
    ``looped``: events of another site that had passed this one before, and were dropped."""

    received: Received | None
    writes: dict[str, Counts]
    run_seconds: float = 0.0
    cpu_seconds: float = 0.0
    looped: int = 0


class BatchTimes:
    """Measurements of one task, collected in the driver. ``sinks``: the places of its sinks."""

    def __init__(self, given: Reports, sinks: Sequence[str]) -> None:
        self._reports = given
        self._keys = [RECEIVED, RECEIVED_MICROS, RUN_MICROS, CPU_MICROS, LOOPED]
        self._keys += [key for sink in sinks for key in _keys(sink)]
        self._sinks = sinks
        self._before = self._values()

    def noting(self, batch: LazyBatch) -> LazyBatch:
        """Add the measurement of receipts, unless another site's filters left out ``ts``."""
        if "ts" not in batch.schema.names or not pa.types.is_timestamp(
            batch.schema.field("ts").type
        ):
            return batch
        return batch.arrow(note_receipt, batch.schema)

    def timed(self, before: LazyBatch, written: LazyBatch, sink: str) -> LazyBatch:
        """Add time measurement to the stages of ``sink`` between ``before`` and ``written``. A sink
        that takes a DataFrame is not timed: its time is inseparable from Spark's earlier steps."""
        stages = written.after(before)
        if stages is None:
            return written
        return before.arrow(TimeWrite(stages, sink), written.schema)

    def take(self) -> Times:
        before, self._before = self._before, self._values()
        grown = {key: now - before[key] for key, now in self._before.items()}
        events = grown[RECEIVED]
        received = Received(events, grown[RECEIVED_MICROS] / events / 1e6) if events else None
        writes = {}
        for sink in self._sinks:
            *counts, micros = (grown[key] for key in _keys(sink))
            if any(counts):
                writes[sink] = Counts(tuple(counts), micros / 1e6)
        run, cpu = grown[RUN_MICROS] / 1e6, grown[CPU_MICROS] / 1e6
        return Times(received, writes, run, cpu, grown[LOOPED])

    def _values(self) -> dict[str, int]:
        return {key: self._reports.counts.get(key, 0) for key in self._keys}


def note_receipt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A stage after the read that adds up the events of a split and their times of receipt."""
    events = micros = 0
    for batch in batches:
        mean = pc.mean(batch.column("ts").cast(pa.int64())).as_py()
        if mean is not None:
            events += batch.num_rows
            micros += round(mean) * batch.num_rows
        yield batch
    if events:
        reports.count({RECEIVED: events, RECEIVED_MICROS: micros})


@dataclass(frozen=True)
class TimeWrite:
    """A stage that runs and times the ``stages`` of a sink, without the time of its input."""

    stages: tuple[Stage, ...]
    sink: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = _Timed(batches)
        rows: Iterator[pa.RecordBatch] = given
        for stage in self.stages:
            rows = stage(rows)
        made = _Timed(rows)
        yield from made
        took = max(0.0, made.seconds - given.seconds)
        keys = _keys(self.sink)
        key = keys[bisect_left(FLOW_SECONDS, took)]
        reports.count({key: 1, keys[-1]: round(took * 1e6)})


class _Timed:
    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self.seconds = 0.0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        began = time.perf_counter()
        try:
            return next(self._batches)
        finally:
            self.seconds += time.perf_counter() - began


def _keys(sink: str) -> list[str]:
    """Return the names of a sink's counts: one per histogram bucket, then the sum."""
    bounds = [f"write {sink} {number}" for number in range(len(FLOW_SECONDS) + 1)]
    return [*bounds, f"write {sink} micros"]
