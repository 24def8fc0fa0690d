"""The lag of each flow and part, as a collector's metrics show it, for any input."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from flumeng.agent.collector.measures import Lag, Lags, Place
from flumeng.connectors.api.ranged import Range
from flumeng.control.snapshot.partitions import step_of
from flumeng.platform.errors import UnavailableError
from flumeng.platform.metrics import table
from tests.testkit.clock import Clock
from tests.testkit.collector import ScriptedPipeline
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from tests.unit.agent.task_world import JOURNAL, World, running, spec

PART = "web~errors/collect.0"


@pytest.fixture
def lags(clock: Clock) -> Lags:
    return Lags(clock)


@pytest.fixture
def world() -> Iterator[World]:
    with running() as world:
        yield world


def test_lag_of_a_part_with_an_unavailable_sink_grows_until_all_is_delivered(
    lags: Lags, clock: Clock
) -> None:
    for second in range(191):
        clock.now = 100.0 + second
        lags.see(PART, {"web.n1.0.aa@flow": Place(50, 51 + second)})
    assert lags.by_flow() == {"web~errors": Lag(191, 190.0)}
    lags.see(PART, {"web.n1.0.aa@flow": Place(241, 241)})
    assert lags.by_flow() == {"web~errors": Lag(0, 0.0)}


def test_flow_with_events_always_in_transit_has_a_small_lag(lags: Lags, clock: Clock) -> None:
    """Each event is delivered eight seconds after it came, for an hour, and never all of them."""
    for second in range(3600):
        clock.now = 100.0 + second
        lags.see("web/collect.0", {"web.n1.0.aa": Place(10 * second, 10 * (second + 8))})
        if second > 30:
            events, seconds = lags.by_flow()["web"]
            assert events == 80
            assert 8.0 <= seconds <= 8.0 * 1.25 + 1.0


def test_partition_without_progress_determines_the_lag_of_its_flow(
    lags: Lags, clock: Clock
) -> None:
    for second in range(0, 400, 10):
        clock.now = 100.0 + second
        places = {"aa": Place(second, second), "bb": Place(7, 9)}
        lags.see("web/collect.0", places)
    lags.see("web/collect.1", {"cc": Place(0, 5)})
    assert lags.by_flow() == {"web": Lag(7, 390.0)}


def test_a_task_that_failed_does_not_count_as_delivered(lags: Lags, clock: Clock) -> None:
    """Its partitions are not looked at while it is failed."""
    lags.see("web/collect.0", {"aa": Place(7, 7)})
    clock.now += 60.0
    assert lags.by_flow() == {"web": Lag(0, 0.0)}
    lags.lose("web/collect.0")
    clock.now += 45.0
    assert lags.by_flow() == {"web": Lag(0, 45.0)}
    lags.see("web/collect.0", {"aa": Place(7, None)})
    assert lags.by_flow() == {"web": Lag(0, 45.0)}
    lags.see("web/collect.0", {"aa": Place(7, 9)})
    assert lags.by_flow() == {"web": Lag(2, 45.0)}


def test_partitions_and_tasks_that_are_gone_are_forgotten(lags: Lags) -> None:
    lags.see("web/collect.0", {"aa": Place(0, 5), "bb": Place(0, 5)})
    lags.see("web/collect.0", {"bb": Place(0, 5)})
    lags.see("old/collect.0", {"aa": Place(0, 5)})
    lags.see("ended/collect.0", {"aa": Place(0, 5)})
    assert lags.by_flow()["web"].events == 5
    lags.forget("ended/collect.0")
    lags.lose("ended/collect.0")
    lags.keep(["web/collect.0"])
    assert lags.by_flow().keys() == {"web"}


@pytest.mark.parametrize("partition", ["orders-0@kafka", "lane-0@objects", "users@polls"])
def test_lag_metric_counts_items_as_the_command_flow_lag_does(lags: Lags, partition: str) -> None:
    step = step_of(partition)
    lags.see("web/collect.0", {partition: Place(2 * step, 5 * step)})
    assert lags.by_flow()["web"].events == 3


def test_metrics_show_the_lag_of_a_task_whose_sink_is_away(world: World) -> None:
    back = threading.Event()

    def away(_: Sequence[Range]) -> None:
        if not back.is_set():
            raise UnavailableError("http: refused")

    world.safe[JOURNAL] = 250
    world.run(ScriptedPipeline(spec(), away))
    wait_for(lambda: world.counted(table.FLOW_LAG_EVENTS) == {("web",): 250})
    before = world.counted(table.FLOW_LAG_SECONDS)["web",]
    wait_for(lambda: world.counted(table.FLOW_LAG_SECONDS)["web",] > before)  # type: ignore[operator]
    back.set()
    wait_for(lambda: world.counted(table.FLOW_LAG_EVENTS) == {("web",): 0})
    assert world.counted(table.FLOW_LAG_SECONDS) == {("web",): 0.0}
    world.runners[0].stop()
    assert world.runners[0].join(PATIENCE_SECONDS)
    assert world.counted(table.FLOW_LAG_EVENTS) == {}


def test_events_that_cannot_be_read_are_part_of_the_lag(world: World) -> None:
    world.held = {JOURNAL: 30}
    world.safe[JOURNAL] = 100
    world.run(ScriptedPipeline(spec()))
    wait_for(lambda: world.ack() == 100)
    wait_for(lambda: world.counted(table.FLOW_LAG_EVENTS) == {("web",): 30})


@pytest.mark.slow
def test_last_success_is_the_time_of_the_last_committed_batch(world: World) -> None:
    back = threading.Event()

    def away(_: Sequence[Range]) -> None:
        if not back.is_set():
            raise UnavailableError("http: refused")

    world.safe[JOURNAL] = 10
    began = time.time()
    world.run(ScriptedPipeline(spec(), away))
    wait_for(lambda: world.counted(table.COLLECT_FAILURES))
    assert world.counted(table.COLLECT_LAST_SUCCESS) == {}
    back.set()
    wait_for(lambda: world.counted(table.COLLECT_LAST_SUCCESS))
    (moment,) = world.counted(table.COLLECT_LAST_SUCCESS).values()
    assert isinstance(moment, float)
    assert began <= moment <= time.time()
    world.measures.keep([])
    assert world.counted(table.COLLECT_LAST_SUCCESS) == {}
