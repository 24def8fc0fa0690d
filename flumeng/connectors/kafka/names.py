"""What partitions of Kafka are called: ``orders.3.MkTRfQ2n@kafka``.

The name has the topic, the number of the partition, and the beginning of the topic's id: a topic
that was made anew, or is of another Kafka, has other partitions, so an ack never speaks about
messages that it was not written for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from flumeng.platform.errors import CorruptError

INPUT = "kafka"
ID_CHARACTERS = 8
"""Of 22: as good as unique among the topics of one name."""
TOPIC_CHARACTERS = 170
"""A longer topic makes no name that ZooKeeper's schema allows."""
_NAME = re.compile(rf"(.+)\.(\d+)\.([^.@]+)@{INPUT}", re.ASCII)


@dataclass(frozen=True, order=True)
class KafkaPartition:
    """``topic_id`` is the beginning of the topic's id as Kafka writes it, in base64."""

    topic: str
    number: int
    topic_id: str

    def __str__(self) -> str:
        return f"{self.topic}.{self.number}.{self.topic_id}@{INPUT}"

    @property
    def label(self) -> str:
        """As Kafka's users write it: ``orders.3``."""
        return f"{self.topic}.{self.number}"


def id_text(said: str) -> str:
    """The id of a topic as Kafka's own tools write it. librdkafka writes it in the other alphabet
    of base64, which has a slash."""
    return said.replace("+", "-").replace("/", "_")


def name_of(topic: str, number: int, topic_id: str) -> str:
    """The name of a partition of the topic with this id, whole or cut."""
    return str(KafkaPartition(topic, number, topic_id[:ID_CHARACTERS]))


@lru_cache(maxsize=1 << 16)
def parse(name: str) -> KafkaPartition:
    """The reverse of ``str``. Raises CorruptError."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise CorruptError(f"{name!r} is not the name of a partition of Kafka")
    return KafkaPartition(found[1], int(found[2]), found[3])


def parsed(names: Iterable[str]) -> dict[str, KafkaPartition]:
    """Without those that make no sense."""
    found: dict[str, KafkaPartition] = {}
    for name in names:
        with suppress(CorruptError):
            found[name] = parse(name)
    return found
