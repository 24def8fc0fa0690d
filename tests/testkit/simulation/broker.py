"""A modelled Kafka: a topic for each flow, which grows, gets more partitions, and is recreated."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count

from flumeng.connectors.api.finding import Before, Bounds, Findings, Offer
from tests.testkit.simulation.partition_file import PartitionFile


class Broker:
    """A recreated topic has empty partitions with other names."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, PartitionFile]] = {}
        self._ids: dict[str, int] = {}
        self._made = count(1)

    def topic(self, flow: str) -> Mapping[str, PartitionFile]:
        """The partitions of the flow's topic by name; a new topic has one."""
        if flow not in self._topics:
            self.make_anew(flow)
        return self._topics[flow]

    def make_anew(self, flow: str) -> None:
        self._ids[flow] = next(self._made)
        self._topics[flow] = {}
        self.add_partition(flow)

    def add_partition(self, flow: str) -> None:
        number = len(self.topic(flow))
        self._topics[flow][f"{flow}.{number}.{self._ids[flow]:08}@kafka"] = PartitionFile(flow)

    def file(self, partition: str) -> PartitionFile | None:
        return next((t[partition] for t in self._topics.values() if partition in t), None)


class ModelFinder:
    """See ``Finder``: the partitions of one flow's topic. A recreated topic is read at once."""

    def __init__(self, broker: Broker, flow: str) -> None:
        self._broker = broker
        self._flow = flow

    def find(self, before: Before) -> Findings:
        there = self._broker.topic(self._flow)
        gone = frozenset(name for name in before.partitions if name not in there)
        return Findings({name: Offer() for name in there}, (self._flow,), gone)

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        there = self._broker.topic(self._flow)
        return {name: Bounds(0, there[name].end) for name in partitions if name in there}

    def offsets(self, partitions: Collection[str], to: str) -> dict[str, int]:
        found = self.bounds(partitions)
        return {name: 0 if to == "earliest" else one.safe for name, one in found.items()}

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        return dict.fromkeys(at, 0)

    def finished(self) -> None:
        """Nothing to report."""

    def close(self) -> None:
        """It has no connection."""
