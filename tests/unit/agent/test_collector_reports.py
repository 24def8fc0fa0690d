"""A successful run has the reports of its stages once; a failed run has none."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

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


KINDS = {
    "number": pa.int64(),
    "flag": pa.bool_(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "at": pa.timestamp("us", "UTC"),
    "amount": pa.decimal128(10, 2),
    "several": pa.list_(pa.string()),
    "named": pa.map_(pa.string(), pa.string()),
    "inner": pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())]),
}


@pytest.mark.parametrize("nullable", [True, False])
def test_last_row_of_a_task_has_the_reports(nullable: bool) -> None:
    schema = pa.schema([pa.field(name, kind, nullable) for name, kind in KINDS.items()])
    wide = schema.append(pa.field(spark_reports.REPORTS, pa.binary()))
    rows = pa.RecordBatch.from_arrays(
        [pa.nulls(2, kind) for kind in KINDS.values()], schema=schema.empty_table().schema
    )
    *events, last = spark_reports._Reporting(counted, wide, "a")(iter([rows]))
    assert [batch.num_rows for batch in events] == [2]
    assert events[0].column(spark_reports.REPORTS).null_count == 2
    made: Reports = pickle.loads(last.column(spark_reports.REPORTS)[0].as_py())
    assert (last.num_rows, made.counts["read"], made.notes) == (1, 2, {"partition": "at 7"})
    nulls = {name: last.column(name).null_count for name in KINDS}
    assert set(nulls.values()) == {int(nullable)}, "Spark reads no null where it expects none"


def test_failed_task_has_no_reports() -> None:
    wide = pa.schema([pa.field(spark_reports.REPORTS, pa.binary())])
    with pytest.raises(OSError, match="on fire"):
        list(spark_reports._Reporting(broken, wide, "a")(iter(())))
