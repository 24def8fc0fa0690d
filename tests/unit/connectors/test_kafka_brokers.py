"""Requests to Kafka's brokers: an error of one topic spares the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from flumeng.connectors.kafka.access import Access
from flumeng.connectors.kafka.admin import KafkaAdmin
from flumeng.connectors.kafka.brokers import Described, KafkaBrokers, Topic
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


@dataclass
class ScriptedBrokers(KafkaBrokers):
    errors: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(ACCESS, committed=True)
        self._admin = ScriptedAdmin(ACCESS)
        self._admin.errors = self.errors


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
