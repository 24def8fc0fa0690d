"""Polls the readable offsets of Kafka partitions: one thread and client for each set of brokers.
All tasks of a process share it. Requests cover all partitions together: topic ids and ends each
time, beginnings every BEGINNINGS_SECONDS. Unreachable brokers do not delay flows of others."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from flumeng.connectors.kafka.brokers import Brokers, Described, Place
from flumeng.connectors.kafka.names import ID_CHARACTERS, KafkaPartition, parse
from flumeng.connectors.ranged.watcher import EndWatcher

BEGINNINGS_SECONDS = 10.0
ABSENT_LOOKS = 3
"""Polls without a topic before it counts as deleted: restarted brokers may not know it yet."""


@dataclass(frozen=True)
class Extent:
    """Offsets [``floor``, ``safe``) are readable, under the full ``topic_id``, unless there is
    ``trouble``. For a ``remade`` topic, ``safe`` is the last known end of the old one, or 0.
    ``leader_epoch`` is that of the leader which reported ``safe``."""

    topic_id: str = ""
    floor: int = 0
    safe: int = 0
    trouble: str = ""
    remade: bool = False
    leader_epoch: int | None = None


class ExtentWatcher(EndWatcher[Extent]):
    """See ``EndWatcher``. Only ``compare`` blocks its caller."""

    def __init__(self, brokers: Brokers, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("kafka positions", clock)
        self._brokers = brokers
        # Used only by the watcher's thread:
        self._floors: dict[Place, int] = {}
        self._floors_at = float("-inf")
        self._absent: dict[str, int] = {}
        self._last: dict[str, Extent] = {}
        """The last sound extent of each partition, needed once its topic is remade."""

    def compare(self, partition: str, offset: int, leader_epoch: int) -> None:
        """Blocks; see ``Brokers``."""
        place = parse(partition)
        self._brokers.compare((place.topic, place.number), offset, leader_epoch)

    def failed(self, why: str) -> Extent:
        return Extent(trouble=why)

    def ask(self, wanted: frozenset[str]) -> dict[str, Extent]:
        partitions = {name: parse(name) for name in wanted}
        described = self._brokers.describe({one.topic for one in partitions.values()})
        troubles = self._troubles(partitions, described)
        places = {
            (one.topic, one.number): name
            for name, one in partitions.items()
            if name not in troubles and one.topic in described.topics
        }
        latest = self._brokers.offsets(places, "latest")
        ends = latest.found
        self._find_floors(places)
        found = {
            name: self._ended(name, partitions[name], described, why)
            for name, why in troubles.items()
        }
        for place, name in places.items():
            if place in ends and place in self._floors:
                topic_id = described.topics[place[0]].id
                floor = min(self._floors[place], ends[place])
                epoch = latest.epochs.get(place)
                found[name] = Extent(topic_id, floor, ends[place], leader_epoch=epoch)
        sound = {name: extent for name, extent in found.items() if not extent.trouble}
        self._last = {n: one for n, one in self._last.items() if n in partitions} | sound
        return found

    def _ended(self, name: str, one: KafkaPartition, described: Described, why: str) -> Extent:
        topic = described.topics.get(one.topic)
        if topic is None or topic.id[:ID_CHARACTERS] == one.topic_id:
            return Extent(trouble=why)
        last = self._last.get(name, Extent())
        return Extent(last.topic_id, safe=last.safe, trouble=why, remade=True)

    def _troubles(
        self, partitions: Mapping[str, KafkaPartition], described: Described
    ) -> dict[str, str]:
        """Partitions whose topic is missing, recreated or refused, with reasons."""
        self._absent = {topic: self._absent.get(topic, 0) + 1 for topic in described.absent}
        troubles: dict[str, str] = {}
        for name, one in partitions.items():
            topic = described.topics.get(one.topic)
            if topic is not None and topic.id[:ID_CHARACTERS] != one.topic_id:
                troubles[name] = f"the topic {one.topic} was deleted and recreated"
            elif topic is not None and one.number not in topic.partitions:
                troubles[name] = f"the topic {one.topic} has no partition {one.number}"
            elif self._absent.get(one.topic, 0) >= ABSENT_LOOKS:
                troubles[name] = f"the topic {one.topic} was deleted"
            elif one.topic in described.refused:
                troubles[name] = described.refused[one.topic]
        return troubles

    def _find_floors(self, places: Collection[Place]) -> None:
        """Refresh floors rarely: they move slowly, and reading a deleted range fails anyway."""
        now = self._clock()
        due = now - self._floors_at >= BEGINNINGS_SECONDS
        wanted = [place for place in places if due or place not in self._floors]
        if wanted:
            found = self._brokers.offsets(wanted, "earliest").found
            self._floors = {**(self._floors if not due else {}), **found}
        if due:
            self._floors_at = now
