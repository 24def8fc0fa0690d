"""Ages of events and times of sinks are summed up in executors, and taken batch by batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from flumeng.agent.collector.batch_times import BatchTimes, Received, TimeWrite, note_receipt
from flumeng.agent.collector.measures import Measures
from flumeng.connectors.ranged import reports
from flumeng.connectors.ranged.reports import Reports
from flumeng.platform.metrics import table

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SINK = "sinks[0].http"


@pytest.fixture
def made() -> Iterator[Reports]:
    with reports.collecting() as collected:
        yield collected


def events(*seconds: int) -> pa.RecordBatch:
    times = [NOON + timedelta(seconds=second) for second in seconds]
    return pa.record_batch({"ts": pa.array(times, pa.timestamp("us", "UTC"))})


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.3)
        yield batch


def late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.6)
        yield batch


def test_the_mean_age_of_events_is_exact_over_any_batches(made: Reports) -> None:
    times = BatchTimes(made, [SINK])
    assert list(note_receipt(iter([events(0, 10), events(20)]))) == [events(0, 10), events(20)]
    assert times.take().received == Received(3, NOON.timestamp() + 10)
    assert times.take().received is None
    list(note_receipt(iter([])))
    assert times.take().received is None


@pytest.mark.slow
def test_time_of_a_sink_excludes_the_stages_before_it(made: Reports) -> None:
    times = BatchTimes(made, [SINK])
    write = TimeWrite((slow, iter), SINK)
    for _ in range(2):
        list(write(late(iter([events(0)]))))
    counts = times.take().writes[SINK]
    assert sum(counts.by_bound) == 2
    assert 0.6 <= counts.total < 1.1
    assert times.take().writes == {}


def test_latency_metric_counts_events_by_age_and_never_below_0(made: Reports) -> None:
    measures = Measures()
    times = BatchTimes(made, [SINK])
    list(note_receipt(iter([events(0, 10)])))
    measures.timed("web", times.take(), NOON.timestamp() + 8)
    list(note_receipt(iter([events(100)])))
    measures.timed("web", times.take(), NOON.timestamp() + 8)
    found = {one.metric: one for one in measures.readings()}
    assert found[table.FLOW_LATENCY_SECONDS].labels == ("web",)
    latency = found[table.FLOW_LATENCY_SECONDS].value
    assert not isinstance(latency, float | int)
    assert (sum(latency.counts.by_bound), latency.counts.total) == (3, 6.0)
    measures.keep([])
    assert table.FLOW_LATENCY_SECONDS not in {one.metric for one in measures.readings()}


def test_run_time_and_processor_time_of_runs_are_added_up_by_flow() -> None:
    total, measures = Reports(), Measures()
    times = BatchTimes(total, [SINK])
    for _ in range(2):
        with reports.collecting() as made:
            time.sleep(0.05)
            sum(range(200_000))
        total.add(made)
        measures.timed("web", times.take(), 0.0)
    measures.timed("web", times.take(), 0.0)
    found = {one.metric: one.value for one in measures.readings() if one.labels == ("web",)}
    run, cpu = found[table.SPARK_RUN_SECONDS], found[table.SPARK_CPU_SECONDS]
    assert isinstance(run, float)
    assert isinstance(cpu, float)
    assert run >= 0.1
    assert 0 < cpu <= run - 0.09
