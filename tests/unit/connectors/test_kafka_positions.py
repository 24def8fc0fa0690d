"""Positions of Kafka's partitions: reported by one watch, and never of another topic's messages."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pytest

from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import CutError, Gone, Reach, Standstill
from flumeng.connectors.kafka.admin import Bound
from flumeng.connectors.kafka.brokers import Described, Offsets, PartitionKey, Topic
from flumeng.connectors.kafka.positions import CUT, KafkaPositions, Watchers
from flumeng.connectors.ranged.watcher import POLL_SECONDS
from flumeng.platform.errors import UnavailableError, UserError
from tests.testkit.logs import tracebacks
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for

ID, OTHER = "MkTRfQ2nAAAAAAAAAAAAAA", "zzzzzzzzAAAAAAAAAAAAAA"
P0, P1 = "orders.0.MkTRfQ2n@kafka", "orders.1.MkTRfQ2n@kafka"


@dataclass
class ScriptedBrokers:
    """One topic. ``wrong`` is raised by all calls. ``log_ends``: where the present log ends for the
    epoch of an earlier leader."""

    topic_id: str = ID
    partitions: int = 2
    ends: dict[PartitionKey, int] = field(
        default_factory=lambda: {("orders", 0): 9, ("orders", 1): 5}
    )
    floors: dict[PartitionKey, int] = field(
        default_factory=lambda: {("orders", 0): 0, ("orders", 1): 2}
    )
    absent: bool = False
    wrong: Exception | None = None
    log_ends: dict[int, int] = field(default_factory=dict)
    epochs: dict[PartitionKey, int] = field(default_factory=dict)
    looks: int = 0
    asked: threading.Event = field(default_factory=threading.Event)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_answer.set()

    def names(self) -> list[str]:
        return ["orders"]

    def describe(self, topics: Collection[str]) -> Described:
        self.looks += 1
        if self.wrong is not None:
            raise self.wrong
        if self.absent:
            return Described({}, frozenset(topics))
        return Described({"orders": Topic(self.topic_id, tuple(range(self.partitions)))})

    def offsets(self, places: Collection[PartitionKey], bound: Bound) -> Offsets:
        known = self.floors if bound == "earliest" else self.ends
        found = Offsets(
            {place: known[place] for place in places if place in known}, "", {**self.epochs}
        )
        if places and not found.by_partition:
            raise UnavailableError("no leader")
        self.asked.set()
        assert self.may_answer.wait(PATIENCE_SECONDS)
        return found

    def times(self, _at: Mapping[PartitionKey, int]) -> dict[PartitionKey, int]:
        raise NotImplementedError

    def compare(self, place: PartitionKey, offset: int, leader_epoch: int) -> None:
        if self.wrong is not None:
            raise self.wrong
        end = self.log_ends[leader_epoch]
        if end < offset:
            raise CutError(f"{place}: truncation detected", end)

    def close(self) -> None: ...


@pytest.fixture
def brokers() -> ScriptedBrokers:
    return ScriptedBrokers()


def flow(**options: str) -> str:
    more = "".join(f", {name}: {text}" for name, text in options.items())
    return (
        f"flow: web\nsources: [kafka: {{brokers: ['a:1'], topics: [orders]{more}}}]\n"
        "sinks: [noop]\n"
    )


class Task:
    """``wakes`` counts the notifications."""

    def __init__(self, watchers: Watchers, text: str) -> None:
        self.wakes = 0
        self.positions = KafkaPositions(watchers, self._wake)
        self.positions.open(parse_flow(text))

    def _wake(self) -> None:
        self.wakes += 1

    def of(self, *partitions: str) -> dict[str, Reach]:
        return self.positions.of(partitions)

    def becomes(self, expected: dict[str, Reach], *partitions: str) -> None:
        wait_for(lambda: self.of(*(partitions or expected)) == expected)


def watches() -> int:
    return sum(thread.name == "kafka positions" for thread in threading.enumerate())


@pytest.fixture
def watchers(brokers: ScriptedBrokers) -> Watchers:
    return Watchers(lambda _access, _committed: brokers)


@pytest.mark.slow
def test_partition_without_a_leader_does_not_keep_the_others_from_being_read(
    brokers: ScriptedBrokers, watchers: Watchers
) -> None:
    del brokers.ends["orders", 1], brokers.floors["orders", 1]
    task = Task(watchers, flow())
    task.becomes({P0: Reach(ID, 9)}, P0, P1)
    looks = brokers.looks
    wait_for(lambda: brokers.looks > looks + 2)
    assert task.of(P0, P1) == {P0: Reach(ID, 9)}
    task.positions.close()


@pytest.mark.slow
def test_partition_reaches_as_far_as_its_brokers_report(
    brokers: ScriptedBrokers, watchers: Watchers
) -> None:
    task = Task(watchers, flow())
    task.becomes({P0: Reach(ID, 9), P1: Reach(ID, 5, floor=2)})
    wakes = task.wakes
    brokers.ends["orders", 1] = 8
    task.becomes({P0: Reach(ID, 9), P1: Reach(ID, 8, floor=2)})
    assert task.wakes > wakes
    task.positions.close()


def test_deleted_messages_are_passed_over_with_on_gone_earliest(watchers: Watchers) -> None:
    task = Task(watchers, flow(on_gone="earliest"))
    task.becomes({P0: Reach(ID, 9), P1: Reach(ID, 5, gone_below=2)})
    task.positions.close()


@pytest.mark.slow
def test_a_bounded_partition_is_closed_at_its_end(
    brokers: ScriptedBrokers, watchers: Watchers
) -> None:
    task = Task(watchers, flow(end_offsets="{orders.0: 7, orders.1: 6}"))
    task.becomes({P0: Reach(ID, 7, closed=True), P1: Reach(ID, 5, floor=2)})
    brokers.ends["orders", 1] = 8
    task.becomes({P0: Reach(ID, 7, closed=True), P1: Reach(ID, 6, floor=2, closed=True)})
    task.positions.close()


@pytest.mark.slow
def test_recreated_topic_is_not_read_on(brokers: ScriptedBrokers, watchers: Watchers) -> None:
    task = Task(watchers, flow())
    task.becomes({P0: Reach(ID, 9)}, P0)
    brokers.topic_id = OTHER
    anew = Reach("", 0, trouble="the topic orders was deleted and recreated")
    task.becomes({P0: anew}, P0)
    task.positions.close()


def test_rest_of_a_recreated_topic_is_a_gap_with_on_gone_earliest(
    brokers: ScriptedBrokers, watchers: Watchers
) -> None:
    task = Task(watchers, flow(on_gone="earliest"))
    task.becomes({P0: Reach(ID, 9), P1: Reach(ID, 5, gone_below=2)})
    brokers.topic_id = OTHER
    why = "the topic orders was deleted and recreated before they were read"
    task.becomes(
        {
            P0: Reach(ID, 9, closed=True, gone_below=9, gone_why=why),
            P1: Reach(ID, 5, closed=True, gone_below=5, gone_why=why),
        }
    )
    task.positions.close()


def test_recreated_topic_whose_end_was_never_seen_is_a_problem(
    brokers: ScriptedBrokers, watchers: Watchers
) -> None:
    brokers.topic_id = OTHER
    task = Task(watchers, flow(on_gone="earliest"))
    anew = Reach("", 0, trouble="the topic orders was deleted and recreated")
    task.becomes({P0: anew}, P0)
    task.positions.close()


@pytest.mark.slow
def test_missing_topic_is_reported_after_a_while(
    brokers: ScriptedBrokers, watchers: Watchers
) -> None:
    task = Task(watchers, flow())
    task.becomes({P0: Reach(ID, 9)}, P0)
    brokers.absent = True
    task.becomes({P0: Reach("", 0, trouble="the topic orders was deleted")}, P0)
    brokers.absent = False
    task.becomes({P0: Reach(ID, 9)}, P0)
    task.positions.close()


@pytest.mark.slow
def test_unavailable_brokers_report_nothing_and_are_polled_again(
    brokers: ScriptedBrokers, watchers: Watchers
) -> None:
    task = Task(watchers, flow())
    task.becomes({P0: Reach(ID, 9)}, P0)
    brokers.wrong = UnavailableError("no answer")
    task.becomes({}, P0)
    brokers.wrong = None
    task.becomes({P0: Reach(ID, 9)}, P0)
    brokers.wrong = UserError("not let in")
    task.becomes({P0: Reach("", 0, trouble="not let in")}, P0)
    task.positions.close()


@pytest.mark.slow
def test_tasks_share_one_kafka_watch_that_ends_with_the_last(
    brokers: ScriptedBrokers, watchers: Watchers
) -> None:
    wait_for(lambda: watches() == 0)
    tasks = [Task(watchers, flow()) for _ in range(20)]
    for task in tasks:
        task.becomes({P0: Reach(ID, 9)}, P0)
    assert watches() == 1
    for task in tasks:
        task.positions.close()
    wait_for(lambda: watches() == 0)
    looks = brokers.looks
    time.sleep(2 * POLL_SECONDS)
    assert brokers.looks == looks


def test_refresh_is_answered_by_a_later_look(brokers: ScriptedBrokers, watchers: Watchers) -> None:
    seen: list[dict[str, Reach]] = []

    class Watchful(Task):
        def _wake(self) -> None:
            seen.append(self.of(P0))

    task = Watchful(watchers, flow())
    task.becomes({P0: Reach(ID, 9)}, P0)
    brokers.may_answer.clear()
    brokers.asked.clear()
    assert brokers.asked.wait(PATIENCE_SECONDS)
    brokers.ends["orders", 0] = 10
    task.positions.refresh([P0])
    seen.clear()
    brokers.may_answer.set()
    wait_for(lambda: {P0: Reach(ID, 10)} in seen)
    assert {P0: Reach(ID, 9)} not in seen
    task.positions.close()


def test_flow_without_kafka_source_watches_no_topic(watchers: Watchers) -> None:
    task = Task(watchers, "flow: web\nsources: [syslog: {listen: '127.0.0.1:0'}]\nsinks: [noop]\n")
    assert task.of(P0) == {}
    task.positions.close()


def test_standstill_is_described_with_advice(watchers: Watchers) -> None:
    task = Task(watchers, flow())
    gone = task.positions.describe(Standstill("gone", P1, 20, 3))
    assert gone.startswith("partition orders.1 begins at offset 20, but only offset 3 is acked")
    assert "flow reset --to earliest" in gone


def test_malformed_partition_name_stops_only_its_partition(watchers: Watchers) -> None:
    task = Task(watchers, flow())
    senseless = "garbage@kafka"
    wait_for(lambda: task.of(P0, senseless).keys() == {P0, senseless})
    found = task.of(P0, senseless)
    assert found[P0] == Reach(ID, 9)
    assert found[senseless].trouble == "the name is not that of a Kafka partition"
    standstill = Standstill("nonsense", senseless, 0, 0, found[senseless].trouble)
    assert task.positions.describe(standstill).startswith("partition garbage")
    task.positions.close()


@pytest.mark.long
def test_unexpected_error_is_reported_once_and_the_watch_goes_on(
    brokers: ScriptedBrokers, watchers: Watchers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    task = Task(watchers, flow())
    task.becomes({P0: Reach(ID, 9)}, P0)
    brokers.wrong = UnavailableError("no answer")
    task.becomes({}, P0)
    brokers.wrong = KeyError("orders")
    wait_for(lambda: "KeyError" in task.of(P0).get(P0, Reach("", 0)).trouble)
    looks = brokers.looks
    wait_for(lambda: brokers.looks > looks + 1)
    brokers.wrong = None
    task.becomes({P0: Reach(ID, 9)}, P0)
    task.positions.close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "INFO"]
    assert tracebacks(caplog) == 1


def test_reach_has_the_leader_epoch_of_the_reporting_leader(
    brokers: ScriptedBrokers, watchers: Watchers
) -> None:
    brokers.epochs["orders", 0] = 4
    task = Task(watchers, flow())
    task.becomes({P0: Reach(ID, 9, leader_epoch=4), P1: Reach(ID, 5, floor=2)})
    brokers.epochs["orders", 0] = 5
    task.becomes({P0: Reach(ID, 9, leader_epoch=5)}, P0)
    task.positions.close()


def test_cut_log_is_a_gap_or_an_error_as_configured(
    brokers: ScriptedBrokers, watchers: Watchers
) -> None:
    brokers.log_ends = {4: 6, 5: 9}
    task = Task(watchers, flow(on_gone="earliest"))
    assert task.positions.find_cut(P0, 6, 4).result(PATIENCE_SECONDS) is None
    assert task.positions.find_cut(P0, 8, 4).result(PATIENCE_SECONDS) == Gone(6, 8, CUT)
    assert task.positions.find_cut(P0, 8, 5).result(PATIENCE_SECONDS) is None
    wait_for(lambda: task.wakes >= 3)
    task.positions.close()
    task = Task(watchers, flow())
    with pytest.raises(CutError) as caught:
        task.positions.find_cut(P0, 8, 4).result(PATIENCE_SECONDS)
    assert caught.value.end == 6
    told = task.positions.describe(Standstill("lost", P0, 6, 8, str(caught.value)))
    assert told.startswith("the log of partition orders.0 was cut at offset 6, and offset 8 is")
    assert f"flow reset --to orders.0=6 --partitions {P0}" in told
    task.positions.close()
