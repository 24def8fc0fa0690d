"""Partitions found at brokers, their start offsets, and recreated topics that an operator
accepts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from flumeng.connectors.api.finding import Before, Bounds, Findings, Offer
from flumeng.connectors.kafka.admin import Bound
from flumeng.connectors.kafka.brokers import Described, Offsets, PartitionKey, Topic
from flumeng.connectors.kafka.finder import KafkaFinder
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.platform.errors import UnavailableError

A, B = "AAAAAAAAaaaaaaaaaaaaaa", "BBBBBBBBbbbbbbbbbbbbbb"
NOON = "2026-11-22T12:00:00Z"


@dataclass
class FakeBrokers:
    """Each partition has the offsets 10 to 99; those at noon begin at 50."""

    topics: dict[str, Topic] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)
    silent: set[PartitionKey] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)

    def names(self) -> list[str]:
        return sorted(self.topics)

    def describe(self, topics: Collection[str]) -> Described:
        found = {name: self.topics[name] for name in topics if name in self.topics}
        refused, unanswered = (
            {name: why for name, why in errors.items() if name in topics}
            for errors in (self.refused, self.unanswered)
        )
        absent = frozenset(topics).difference(found, refused, unanswered)
        return Described(found, absent, refused, unanswered)

    def offsets(self, places: Collection[PartitionKey], bound: Bound) -> Offsets:
        self.requests.append(str(bound))
        offset = {"earliest": 10, "latest": 100}.get(bound, 50) if isinstance(bound, str) else 50
        found = {place: offset for place in places if place not in self.silent}
        if places and not found:
            raise UnavailableError("no leader")
        return Offsets(found, "no leader" if len(found) < len(places) else "")

    def times(self, at: Mapping[PartitionKey, int]) -> dict[PartitionKey, int]:
        return dict.fromkeys(at, 7)

    def compare(self, place: PartitionKey, offset: int, leader_epoch: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.topics = {}


@pytest.fixture
def brokers() -> FakeBrokers:
    return FakeBrokers({"orders": Topic(A, (0, 1))})


def source(**options: object) -> KafkaSource:
    given = {"brokers": ("h:1",), **options}
    return KafkaSource(**({"topics": ("orders",)} | given))  # type: ignore[arg-type]


def name(number: int = 0, topic: str = "orders", id_: str = A) -> str:
    return f"{topic}.{number}.{id_[:8]}@kafka"


def find(brokers: FakeBrokers, before: Before | None = None, **options: object) -> Findings:
    return KafkaFinder(source(**options), brokers).find(before or Before())


def after(findings: Findings, **fields: object) -> Before:
    return Before(list(findings.offers), findings.scope, **fields)  # type: ignore[arg-type]


# -- where partitions begin


@pytest.mark.parametrize(("start_from", "offset"), [("earliest", 10), ("latest", 100), (NOON, 50)])
def test_first_look_begins_at_start_from(
    brokers: FakeBrokers, start_from: str, offset: int
) -> None:
    found = find(brokers, start_from=start_from)
    assert found.offers == {name(0): Offer(offset), name(1): Offer(offset)}
    assert len(brokers.requests) == 1
    assert found.scope == ("topic orders",)


def test_start_offsets_override_start_from(brokers: FakeBrokers) -> None:
    found = find(brokers, start_from="latest", start_offsets={"orders.1": 77})
    assert found.offers == {name(0): Offer(100), name(1): Offer(77)}


def test_partition_that_appears_later_begins_at_its_beginning(brokers: FakeBrokers) -> None:
    """A flow that started with new events only gets all of a partition that is new itself."""
    first = find(brokers, pattern="o.*", start_from="latest", start_offsets={"orders.2": 77})
    brokers.topics = {"orders": Topic(A, (0, 1, 2)), "others": Topic(B, (0,))}
    found = find(brokers, after(first), pattern="o.*", start_from="latest")
    new = {one: offer for one, offer in found.offers.items() if one not in first.offers}
    assert new == {name(2): Offer(10), name(0, "others", B): Offer(10)}


def test_topic_new_to_the_source_begins_at_start_from(brokers: FakeBrokers) -> None:
    first = find(brokers, start_from="latest")
    brokers.topics["payments"] = Topic(B, (0,))
    both = ("orders", "payments")
    found = find(brokers, after(first), topics=both, start_from="latest")
    assert found.offers[name(0, "payments", B)] == Offer(100)


def test_known_partitions_cost_no_request(brokers: FakeBrokers) -> None:
    first = find(brokers)
    brokers.requests.clear()
    find(brokers, after(first))
    assert brokers.requests == []


def test_partition_without_a_known_beginning_is_left_out_and_reported(brokers: FakeBrokers) -> None:
    brokers.silent = {("orders", 1)}
    found = find(brokers)
    assert found.offers == {name(0): Offer(10)}
    assert found.troubles == (f"the start of {name(1)} is unknown: no leader",)


def test_new_partition_without_a_leader_does_not_keep_the_others_from_being_found(
    brokers: FakeBrokers,
) -> None:
    first = find(brokers)
    brokers.topics = {"orders": Topic(A, (0, 1, 2))}
    brokers.silent = {("orders", 2)}
    found = find(brokers, after(first))
    assert found.offers.keys() == first.offers.keys()
    assert found.troubles == (f"the start of {name(2)} is unknown: no leader",)


# -- which topics


def test_a_pattern_finds_whole_names_and_nothing_internal(brokers: FakeBrokers) -> None:
    brokers.topics |= {
        "order": Topic(B, (0,)),
        "__consumer_offsets": Topic(B, (0,), internal=True),
        "my-orders": Topic(B, (0,)),
    }
    found = find(brokers, topics=(), pattern="order.?|__.*")
    assert found.offers.keys() == {name(0), name(1), name(0, "order", B)}


def test_missing_topic_is_reported_and_found_when_it_appears(brokers: FakeBrokers) -> None:
    first = find(brokers, topics=("orders", "later"), start_from="latest")
    assert first.lacks == ("Kafka has no topic later: create it, or change the flow",)
    assert (first.troubles, first.scope) == ((), ("topic orders", "topic later"))
    brokers.topics["later"] = Topic(B, (0,))
    found = find(brokers, after(first), topics=("orders", "later"), start_from="latest")
    assert found.offers[name(0, "later", B)] == Offer(10)
    assert found.lacks == ()


def test_deleted_topic_is_gone_and_an_unauthorized_one_is_not(brokers: FakeBrokers) -> None:
    first = find(brokers, pattern=".*", topics=())
    brokers.topics = {}
    assert find(brokers, after(first), pattern=".*", topics=()).gone == {name(0), name(1)}
    brokers.refused = {"orders": "not authorized"}
    hidden = find(brokers, after(first))
    assert (hidden.gone, hidden.troubles) == (frozenset(), ("not authorized",))


def test_topic_without_an_answer_is_kept_and_the_others_are_found(brokers: FakeBrokers) -> None:
    first = find(brokers, pattern=".*", topics=())
    brokers.topics = {"others": Topic(B, (0,))}
    brokers.unanswered = {"orders": "no leader"}
    found = find(brokers, after(first), pattern=".*", topics=())
    assert found.offers == {name(0, "others", B): Offer(10)}
    assert found.kept == {name(0), name(1)}
    assert not found.gone
    assert found.troubles == ("no leader",)


# -- recreated


def test_recreated_topic_waits_for_an_operator(brokers: FakeBrokers) -> None:
    both = frozenset({name(0), name(1)})
    first = find(brokers)
    brokers.topics["orders"] = Topic(B, (0,))
    found = find(brokers, after(first))
    assert (found.offers, found.kept, found.gone) == ({}, both, frozenset())
    assert list(found.held) == ["orders.BBBBBBBB"]
    assert "flow reset" in found.held["orders.BBBBBBBB"]
    word = {"orders.BBBBBBBB": "latest"}
    accepted = find(brokers, after(first, accepted=word), start_offsets={"orders.0": 5})
    assert accepted.offers == {name(0, id_=B): Offer(100)}
    assert (accepted.held, accepted.gone) == ({}, both)
    known = Before([*first.offers, *accepted.offers], first.scope)
    assert find(brokers, known).gone == {name(0), name(1)}, "accepted for good"


def test_accept_holds_for_one_topic_only(brokers: FakeBrokers) -> None:
    first = find(brokers)
    brokers.topics["orders"] = Topic(B, (0,))
    word = {"orders.CCCCCCCC": "latest"}
    assert find(brokers, after(first, accepted=word)).offers == {}


def test_recreated_topic_is_read_and_noted_with_on_gone_earliest(brokers: FakeBrokers) -> None:
    both = frozenset({name(0), name(1)})
    first = find(brokers)
    brokers.topics["orders"] = Topic(B, (0,))
    found = find(brokers, after(first), on_gone="earliest", start_from="latest")
    assert found.offers == {name(0, id_=B): Offer(10)}
    assert (found.held, found.gone) == ({}, both)
    assert "recreated" in found.notes[0]


# -- bounded


def test_end_offsets_make_the_flow_bounded(brokers: FakeBrokers) -> None:
    found = find(brokers, end_offsets={"orders.1": 40}, start_offsets={"orders.1": 20})
    assert (found.offers, found.bounded) == ({name(1): Offer(20, 40)}, True)
    more = find(brokers, end_offsets={"orders.1": 40, "orders.9": 40})
    assert not more.bounded
    assert more.lacks == ("Kafka has no partition orders.9, which end_offsets names",)


# -- how far they reach


def test_bounds_and_offsets_are_answered_for_the_same_topic_only(brokers: FakeBrokers) -> None:
    finder = KafkaFinder(source(), brokers)
    finder.find(Before())
    names = [name(0), name(0, id_=B), name(0, "other"), "web.n.0.journal"]
    assert finder.bounds(names) == {name(0): Bounds(10, 100)}
    assert finder.offsets(names, "latest") == {name(0): 100}
    assert finder.offsets(names, NOON) == {name(0): 50}
    assert finder.times(dict.fromkeys(names, 20)) == {name(0): 7}
    assert datetime(2026, 11, 22, 12, tzinfo=UTC).isoformat() in brokers.requests[-1].replace(
        " ", "T"
    )
