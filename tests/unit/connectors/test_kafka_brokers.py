"""Requests to Kafka's brokers: an error of one topic or message spares the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE

from flumeng.connectors.kafka.access import Access
from flumeng.connectors.kafka.admin import KafkaAdmin
from flumeng.connectors.kafka.brokers import Described, KafkaBrokers, PartitionKey, Topic
from flumeng.connectors.kafka.errors import KafkaError, KafkaException
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.platform.errors import UnavailableError

ACCESS = Access.of(KafkaSource(brokers=("127.0.0.1:1",), topics=("a",)))
ID = "AAAAAAAAAAAAAAAAAAAAAA"


class ScriptedAdmin(KafkaAdmin):
    """Describes topics of one partition. ``errors``: codes of topics without a description."""

    errors: Mapping[str, int] = {}

    def topics(self, names: Iterable[str]) -> dict[str, Future[Any]]:
        futures = {name: Future[Any]() for name in names}
        for name, future in futures.items():
            if name in self.errors:
                future.set_exception(KafkaException(KafkaError(self.errors[name])))
            else:
                partitions = [SimpleNamespace(id=0)]
                topic = SimpleNamespace(partitions=partitions, topic_id=ID, is_internal=False)
                future.set_result(topic)
        return futures


@dataclass(frozen=True)
class Message:
    number: int
    time: tuple[int, int]

    def topic(self) -> str:
        return "a"

    def partition(self) -> int:
        return self.number

    def timestamp(self) -> tuple[int, int]:
        return self.time


@dataclass
class ScriptedBrokers(KafkaBrokers):
    errors: Mapping[str, int] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        super().__init__(ACCESS, committed=True)
        self._admin = ScriptedAdmin(ACCESS)
        self._admin.errors = self.errors

    def _first(self, requested: Mapping[PartitionKey, int]) -> Iterator[Any]:
        del requested
        yield from self.messages


def test_passing_error_of_a_topic_spares_the_others() -> None:
    brokers = ScriptedBrokers(
        {"b": KafkaError.LEADER_NOT_AVAILABLE, "c": KafkaError._UNKNOWN_TOPIC}
    )
    found = brokers.describe(["a", "b", "c"])
    assert found.unanswered.keys() == {"b"}
    assert found == Described({"a": Topic(ID, (0,))}, frozenset("c"), {}, found.unanswered)
    with pytest.raises(UnavailableError):
        brokers.describe(["b"])
    assert brokers.describe([]) == Described()


def test_message_without_a_time_has_none() -> None:
    times = (TIMESTAMP_NOT_AVAILABLE, 0), (TIMESTAMP_CREATE_TIME, -1), (TIMESTAMP_CREATE_TIME, 5)
    messages = tuple(Message(number, time) for number, time in enumerate(times))
    brokers = ScriptedBrokers(messages=messages)
    assert brokers.times({("a", number): 7 for number in range(3)}) == {("a", 2): 5000}
