"""Names of Kafka partitions: ``orders.3.MkTRfQ2n@kafka``. They contain the beginning of the topic
id, so a recreated topic, or one of another Kafka cluster, never inherits acks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from flumeng.platform.errors import CorruptError

INPUT = "kafka"
ID_CHARACTERS = 8
"""Characters of the topic id in a name, of 22: practically unique for topics of equal name."""
TOPIC_CHARACTERS = 170
"""Length of the longest topic whose partition names are valid in ZooKeeper's schema."""
_NAME = re.compile(rf"(.+)\.(\d+)\.([^.@]+)@{INPUT}", re.ASCII)


@dataclass(frozen=True, order=True)
class KafkaPartition:
    """A partition. ``topic_id``: the first characters of the topic id, as Kafka prints it."""

    topic: str
    number: int
    topic_id: str

    def __str__(self) -> str:
        return f"{self.topic}.{self.number}.{self.topic_id}@{INPUT}"

    @property
    def label(self) -> str:
        """The partition as Kafka users write it: ``orders.3``."""
        return f"{self.topic}.{self.number}"


def id_text(topic_id: str) -> str:
    """Return the topic id as Kafka's tools print it; librdkafka uses another base64 alphabet."""
    return topic_id.replace("+", "-").replace("/", "_")


def name_of(topic: str, number: int, topic_id: str) -> str:
    return str(KafkaPartition(topic, number, topic_id[:ID_CHARACTERS]))


@lru_cache(maxsize=1 << 16)
def parse(name: str) -> KafkaPartition:
    """Parse the name that ``str`` makes of a partition. Raises CorruptError."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise CorruptError(f"{name!r} is not the name of a Kafka partition")
    return KafkaPartition(match[1], int(match[2]), match[3])


def parsed(names: Iterable[str]) -> dict[str, KafkaPartition]:
    """Return the parsed names, without invalid ones."""
    partitions: dict[str, KafkaPartition] = {}
    for name in names:
        with suppress(CorruptError):
            partitions[name] = parse(name)
    return partitions
