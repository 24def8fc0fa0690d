"""An ingest worker's metrics: right numbers, that only grow where they have to."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path

import pytest

from flumeng.agent.ingest.flow import FlowRunner
from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.agent.ingest.measures import MOST_NOTES, TAKEN, LagClock, Measures
from flumeng.agent.node.protocol import Assignment
from flumeng.connectors.api.counters import Counters
from flumeng.journal.log.contract import Log
from flumeng.platform.metrics import table
from flumeng.platform.metrics.histogram import Histogram
from flumeng.platform.metrics.page import FlowLabels
from flumeng.platform.metrics.table import Metric
from tests.testkit.journal import numbered_events
from tests.testkit.waiting import async_wait_for


def acked(journal: Log) -> int:
    return journal.acked


def numbers(measures: Measures) -> dict[Metric, dict[tuple[str, ...], float]]:
    found: dict[Metric, dict[tuple[str, ...], float]] = {}
    for metric, labels, value in FlowLabels().merge(measures.readings()):
        if not isinstance(value, Histogram):
            found.setdefault(metric, {})[labels] = value
    return found


def test_every_counter_of_sources_is_a_metric() -> None:
    told = {*TAKEN, "unread_bytes", "lost_files"}
    assert told == {field.name for field in dataclasses.fields(Counters)}


def test_lag_is_the_age_of_the_first_note_above_the_ack() -> None:
    lag = LagClock()
    lag.see("j", 0, 10, 100.0)
    lag.see("j", 0, 20, 105.0)
    lag.see("j", 0, 20, 110.0)
    assert lag.seconds("j", 0, 112.0) == 12
    assert lag.seconds("j", 9, 112.0) == 12
    assert lag.seconds("j", 10, 112.0) == 7
    assert lag.seconds("j", 20, 112.0) == 0
    lag.see("j", 15, 20, 115.0)
    assert lag.seconds("j", 15, 115.0) == 10
    lag.see("j", 20, 20, 120.0)
    assert lag.seconds("j", 20, 120.0) == 0


def test_long_lag_takes_bounded_memory_and_is_never_understated() -> None:
    lag = LagClock()
    for now in range(10_000):
        lag.see("j", 0, now + 1, float(now))
    assert len(lag._notes["j"]) <= MOST_NOTES
    for acked in range(0, 10_000, 7):
        assert lag.seconds("j", acked, 10_000.0) >= 10_000 - acked
    assert lag.seconds("j", 0, 10_000.0) == 10_000
    lag.keep([])
    assert lag.seconds("j", 0, 10_000.0) == 0


def test_lag_and_sizes_of_journals_are_those_of_their_flows(tmp_path: Path) -> None:
    store = JournalStore(tmp_path, "n1")
    measures = Measures(dict, store, acked)
    try:
        for flow, events in (("web", 30), ("db", 5)):
            journal = store.take(flow)
            journal.append(numbered_events(0, events))
            journal.sync()
            store.give_back(journal)
        web = next(j for name, j in store.journals.items() if name.startswith("web."))
        web.trim(12)
        found = numbers(measures)
        assert found[table.JOURNAL_UNACKED] == {("web",): 18, ("db",): 5}
        assert found[table.JOURNAL_EVENTS] == {("web",): 30, ("db",): 5}
        assert found[table.JOURNALS][()] == 2
        assert found[table.JOURNALS_BROKEN][()] == 0
        assert found[table.JOURNAL_BYTES]["web",] == web.bytes
        assert found[table.JOURNAL_DISK_FREE][()] > 0
        before = store.disk.sync_seconds.read()[0][-1][1]
        assert before > 0
        web.append(numbered_events(30, 1))
        web.sync()
        assert store.disk.sync_seconds.read()[0][-1][1] > before
        ahead = Measures(dict, store, lambda journal: journal.acked + 1)
        assert numbers(ahead)[table.JOURNAL_UNACKED]["web",] == 18, "others read it more slowly"
        web.trim(31)
        assert numbers(measures)[table.JOURNAL_LAG_SECONDS]["web",] == 0
    finally:
        store.close()


def test_events_that_waited_before_a_restart_keep_their_age(tmp_path: Path) -> None:
    store = JournalStore(tmp_path, "n1")
    journal = store.take("web")
    events = numbered_events(0, 3)
    journal.append(events)
    journal.sync()
    store.close()
    received = events.column("ts")[0].value / 1e6
    store = JournalStore(tmp_path, "n1")
    try:
        lag = numbers(Measures(dict, store, acked))[table.JOURNAL_LAG_SECONDS]["web",]
        assert lag == pytest.approx(time.time() - received, abs=5)
    finally:
        store.close()


def test_removed_source_still_counts(tmp_path: Path) -> None:
    """Else the sum would fall, and Prometheus would take that for a restart."""

    def task(revision: int, log: Path) -> Assignment:
        source = f'tail: {{paths: ["{log}"], poll_seconds: 0.01}}'
        spec = f"flow: f\nsources:\n  - {source}\nsinks:\n  - noop\n"
        return Assignment("f", "0", 1, revision, spec)

    async def run() -> None:
        one, two = tmp_path / "one.log", tmp_path / "two.log"
        one.write_text("a\nb\nc\n")
        two.write_text("d\n")
        store = JournalStore(tmp_path, "n1")
        flow = FlowRunner(task(1, one), store, "n1", lambda: None)
        measures = Measures(lambda: {"f": flow}, store, acked)
        try:
            for revision, log, events in ((1, one, 3), (2, two, 4)):
                flow.want(task(revision, log))
                expected = {("f", "tail"): events}
                await async_wait_for(
                    lambda: numbers(measures).get(table.INGEST_EVENTS) == expected,  # noqa: B023
                    lambda: numbers(measures),
                )
            assert numbers(measures)[table.INGEST_BYTES] == {("f", "tail"): 8}
        finally:
            flow.want(None)
            await flow.finished
            store.close()

    asyncio.run(run())


@pytest.mark.slow
def test_flow_that_changes_for_ever_counts_in_bounded_memory(tmp_path: Path) -> None:
    """The counts of its earlier sources are kept as one sum of each kind; none of it is lost."""
    turns = 30

    def task(revision: int) -> Assignment:
        (tmp_path / f"{revision}.log").write_text("a\nb\n")
        source = f'tail: {{paths: ["{tmp_path}/{revision}.log"], poll_seconds: 0.01}}'
        spec = f"flow: f\nsources:\n  - {source}\nsinks:\n  - noop\n"
        return Assignment("f", "0", 1, revision, spec)

    async def run() -> None:
        store = JournalStore(tmp_path, "n1")
        flow = FlowRunner(task(1), store, "n1", lambda: None)
        measures = Measures(lambda: {"f": flow}, store, acked)
        try:
            for turn in range(1, turns + 1):
                flow.want(task(turn))
                expected = {("f", "tail"): 2 * turn}
                await async_wait_for(
                    lambda: numbers(measures).get(table.INGEST_EVENTS) == expected,  # noqa: B023
                    lambda: numbers(measures),
                )
            await async_wait_for(lambda: len(flow.counted) <= 2, lambda: flow.counted)
            assert sum(counters.bytes for _, counters in flow.counted) == 4 * turns
        finally:
            flow.want(None)
            await flow.finished
            store.close()

    asyncio.run(run())
