"""Polls readable offsets in one thread and client per set of brokers, for all tasks. Topic ids and
ends each time, beginnings every BEGINNINGS_SECONDS. Dead brokers delay only their own flows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from flumeng.connectors.kafka.brokers import Brokers, Described, PartitionKey
from flumeng.connectors.kafka.partition_names import ID_CHARACTERS, KafkaPartition, parse
from flumeng.connectors.ranged.watcher import EndWatcher
from flumeng.platform.errors import UnavailableError

BEGINNINGS_SECONDS = 10.0
ABSENT_POLLS = 3
"""Polls without a topic until it counts as deleted: restarted brokers may not know it yet."""


@dataclass(frozen=True)
class Extent:
    """The readable offsets [``floor``, ``safe``) of a partition, unless there is ``trouble``. When
    the topic was recreated (``remade``), ``safe`` is the old topic's last known end, or 0.
    ``leader_epoch``: of the leader that reported ``safe``."""

    topic_id: str = ""
    floor: int = 0
    safe: int = 0
    trouble: str = ""
    remade: bool = False
    leader_epoch: int | None = None


class ExtentWatcher(EndWatcher[Extent]):
    """Implements ``EndWatcher`` for Kafka. Only ``compare`` blocks the caller."""

    def __init__(self, brokers: Brokers) -> None:
        super().__init__("kafka positions")
        self._brokers = brokers
        # Used only by the watcher's thread:
        self._floors: dict[PartitionKey, int] = {}
        self._floors_at = float("-inf")
        self._absent: dict[str, int] = {}
        self._last: dict[str, Extent] = {}
        """Each partition's last extent without trouble, used when the topic is recreated."""

    def compare(self, partition: str, offset: int, leader_epoch: int) -> None:
        """Compare the log's leader epoch, see ``Brokers.compare``. Blocks."""
        parsed = parse(partition)
        self._brokers.compare((parsed.topic, parsed.number), offset, leader_epoch)

    def failed(self, why: str) -> Extent:
        return Extent(trouble=why)

    def ask(self, names: frozenset[str]) -> dict[str, Extent]:
        partitions = {name: parse(name) for name in names}
        described = self._brokers.describe({partition.topic for partition in partitions.values()})
        troubles = self._troubles(partitions, described)
        keys = {
            (partition.topic, partition.number): name
            for name, partition in partitions.items()
            if name not in troubles and partition.topic in described.topics
        }
        latest = self._brokers.offsets(keys, "latest")
        ends = latest.by_partition
        self._find_floors(keys)
        extents = {
            name: self._ended(name, partitions[name], described, why)
            for name, why in troubles.items()
        }
        for key, name in keys.items():
            if key in ends and key in self._floors:
                topic_id = described.topics[key[0]].id
                floor = min(self._floors[key], ends[key])
                epoch = latest.epochs.get(key)
                extents[name] = Extent(topic_id, floor, ends[key], leader_epoch=epoch)
        sound = {name: extent for name, extent in extents.items() if not extent.trouble}
        self._last = {n: extent for n, extent in self._last.items() if n in partitions} | sound
        return extents

    def _ended(self, name: str, lost: KafkaPartition, described: Described, why: str) -> Extent:
        topic = described.topics.get(lost.topic)
        if topic is None or topic.id[:ID_CHARACTERS] == lost.topic_id:
            return Extent(trouble=why)
        last = self._last.get(name, Extent())
        return Extent(last.topic_id, safe=last.safe, trouble=why, remade=True)

    def _troubles(
        self, partitions: Mapping[str, KafkaPartition], described: Described
    ) -> dict[str, str]:
        """Return by partition why it is missing, or its topic is deleted, recreated or refused."""
        self._absent = {topic: self._absent.get(topic, 0) + 1 for topic in described.absent}
        troubles: dict[str, str] = {}
        for name, partition in partitions.items():
            topic = described.topics.get(partition.topic)
            if topic is not None and topic.id[:ID_CHARACTERS] != partition.topic_id:
                troubles[name] = f"the topic {partition.topic} was deleted and recreated"
            elif topic is not None and partition.number not in topic.partitions:
                troubles[name] = f"the topic {partition.topic} has no partition {partition.number}"
            elif self._absent.get(partition.topic, 0) >= ABSENT_POLLS:
                troubles[name] = f"the topic {partition.topic} was deleted"
            elif partition.topic in described.refused:
                troubles[name] = described.refused[partition.topic]
        return troubles

    def _find_floors(self, keys: Collection[PartitionKey]) -> None:
        """Refresh floors rarely: they move slowly, and reading a deleted range fails anyway."""
        now = self._clock()
        due = now - self._floors_at >= BEGINNINGS_SECONDS
        requested = [key for key in keys if due or key not in self._floors]
        if requested:
            with suppress(UnavailableError):  # of these; the others have floors
                floors = self._brokers.offsets(requested, "earliest").by_partition
                self._floors = {**(self._floors if not due else {}), **floors}
        if due:
            self._floors_at = now
