"""A time is accepted when it lies near the event's receive time; else the receive time counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from flumeng.events.schema import EVENT_SCHEMA
from flumeng.filters.formats.syslog import SyslogReader
from flumeng.filters.parse import ParseStage
from flumeng.filters.refused_times import Bounded, refused

RECEIVED = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = 86_400.0


def events(*said: str) -> pa.RecordBatch:
    columns = [
        pa.array([f"<13>1 {time} h a p m - x" for time in said], pa.binary()),
        pa.array([RECEIVED] * len(said), EVENT_SCHEMA.field("ts").type),
        pa.array(["192.0.2.1"] * len(said)),
        pa.array([[("source", "syslog")]] * len(said), EVENT_SCHEMA.field("attrs").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def bounded(batch: pa.RecordBatch, within: float = DAY, rows: int = 8192) -> pa.Table:
    return pa.Table.from_batches(Bounded(ParseStage(SyslogReader()), within, rows)(iter([batch])))


@pytest.mark.parametrize("hours", [-24, -1, 0, 24])
def test_time_near_the_receive_time_is_accepted(hours: int) -> None:
    said = RECEIVED + timedelta(hours=hours)
    (row,) = bounded(events(said.strftime("%Y-%m-%dT%H:%M:%SZ"))).to_pylist()
    assert (row["ts"], row["attrs"]) == (said, [("source", "syslog")])


@pytest.mark.parametrize(
    "said", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-11-22T12:00:01Z"]
)
def test_time_far_from_the_receive_time_is_noted_and_replaced(said: str) -> None:
    (row,) = bounded(events(said)).to_pylist()
    assert row["ts"] == RECEIVED
    assert row["attrs"] == [("source", "syslog"), ("ts_refused", f"{said[:-1]}.000000Z")]
    assert (row["host"], row["severity"]) == ("h", 5)


def test_rows_keep_their_order_in_slices_of_any_size() -> None:
    hour, far = "2026-11-21T13:00:00Z", "1999-01-01T00:00:00Z"
    whole = bounded(events(hour, far, "-", far, hour, far, hour))
    assert bounded(events(hour, far, "-", far, hour, far, hour), rows=3).to_pylist() == (
        whole.to_pylist()
    )
    assert [time == RECEIVED for time in whole["ts"].to_pylist()] == [
        False, True, True, True, False, True, False,
    ]  # fmt: skip
    assert [refused(whole.slice(0, 3)), refused(whole)] == [1, 3]
    assert refused(whole.drop_columns(["attrs"])) == 0
