"""Three real brokers of Kafka on this machine, in KRaft mode, each with a disk log of its own.

The first is the controller as well. ``TOPIC`` has one partition, as a journal is one log, two
replicas, both of which have to have a message before its producer is answered, and each of which
syncs before it goes on (``flush.messages=1``): what ``durability: replicated`` promises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.testkit.servers.kafka import RealKafka

BROKERS = 3
TOPIC = "bench"
REPLICAS = 2
CONFIG = {"min.insync.replicas": str(REPLICAS), "flush.messages": "1"}


class _Broker(RealKafka):
    """``controller`` is the first broker; without any it is that one itself."""

    variable = "FLUMENG_TEST_KAFKA_IS_NEVER_GIVEN"

    def __init__(self, data: Path, number: int, controller: _Broker | None) -> None:
        super().__init__(data)
        self._number, self._controller = number, controller

    def _properties(self) -> str:
        text = super()._properties().replace("node.id=1\n", f"node.id={self._number}\n")
        if self._controller is None:
            return text
        own, theirs = (f"127.0.0.1:{b._controller_port}" for b in (self, self._controller))
        text = text.replace("process.roles=broker,controller", "process.roles=broker")
        text = text.replace(f",CONTROLLER://{own}", "")
        return text.replace(f"1@{own}", f"1@{theirs}")


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """With the topic; gives the brokers' addresses."""
    brokers: list[_Broker] = []
    try:
        for number in range(1, BROKERS + 1):
            first = brokers[0] if brokers else None
            brokers.append(_Broker(folder / f"kafka{number}", number, first))
            brokers[-1].start()
        addresses = ",".join(broker.address for broker in brokers)
        admin = AdminClient({"bootstrap.servers": addresses, "log_level": 0})
        topic = NewTopic(TOPIC, 1, REPLICAS, config=CONFIG)
        admin.create_topics([topic])[TOPIC].result(30)
        yield addresses
    finally:
        for broker in brokers:
            broker.stop()
