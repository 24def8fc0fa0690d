"""A successful run has the reports of its stages once; a failed run has none."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator

import pyarrow as pa

from flumeng.agent.collector import spark_reports
from flumeng.agent.collector.executor_units import ERROR, ROWS, Unit
from flumeng.connectors.ranged import reports
from flumeng.connectors.ranged.reports import CPU_MICROS, RUN_MICROS, Reports


def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    reports.count({"read": 2})
    reports.note("partition", "at 7")
    yield from batches


def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from counted(batches)
    raise OSError("disk on fire")


def test_counts_add_up_and_the_newest_note_stays() -> None:
    total = Reports()
    total.add(Reports({"read": 1}, {"partition": "at 3"}))
    total.add(Reports({"read": 2, "passed": 1}, {"partition": "at 5"}))
    assert total == Reports({"read": 3, "passed": 1}, {"partition": "at 5"})


def test_reports_are_those_of_the_thread_that_collects() -> None:
    reports.count({"read": 9})
    with reports.collecting() as outer:
        reports.count({"read": 1})
        other = threading.Thread(target=reports.count, args=({"read": 9},))
        other.start()
        other.join()
        with reports.collecting() as inner:
            reports.count({"read": 4})
        reports.count({"read": 2})
    assert (outer.counts["read"], inner.counts["read"]) == (3, 4)


def test_unit_sends_its_reports_unless_it_fails() -> None:
    done = Unit(0, 0, pickle.dumps(counted)).run()
    assert done.kind == ROWS
    made: Reports = pickle.loads(done.reports)
    assert (made.counts["read"], made.notes) == (2, {"partition": "at 7"})
    assert made.counts.keys() == {"read", RUN_MICROS, CPU_MICROS}
    failed = Unit(0, 0, pickle.dumps(broken)).run()
    assert (failed.kind, failed.reports) == (ERROR, b"")


def test_repeated_task_replaces_its_reports() -> None:
    merging = spark_reports.Newest()
    value = merging.zero({})
    for run, partition, count in (("a", 0, 5), ("a", 1, 2), ("b", 0, 7), ("a", 0, 5)):
        merging.addInPlace(value, {run: {(3, partition): Reports({"read": count})}})
    assert {run: [part.counts["read"] for part in of.values()] for run, of in value.items()} == {
        "a": [5, 2],
        "b": [7],
    }
