"""Discovery of the source ``kafka``: finds topics and partitions, and their start offsets.

Rules
1. Partition names contain the topic id. A known topic with another id was recreated, and its
   offsets belong to other messages. It is read only after an operator has chosen an offset; with
   ``on_gone: earliest`` it is read from its beginning, with a note.
2. The start of a partition is decided when it is first seen. If its topic is new to the source, the
   source's options decide. If the topic or its pattern was searched before, it is read from its
   beginning.
3. Topics that may only be hidden from this user are neither found nor reported as deleted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping

from flumeng.connectors.api.finding import Before, Bounds, Findings, FindingTask, Offer
from flumeng.connectors.kafka.access import Access
from flumeng.connectors.kafka.admin import Bound
from flumeng.connectors.kafka.brokers import (
    Brokers,
    Described,
    KafkaBrokers,
    Offsets,
    PartitionKey,
    Topic,
)
from flumeng.connectors.kafka.partition_names import (
    ID_CHARACTERS,
    TOPIC_CHARACTERS,
    KafkaPartition,
    parsed,
)
from flumeng.connectors.kafka.source_options import PARTITION, KafkaSource
from flumeng.control.snapshot.partitions import label_of
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.options.texts import time_of

NAMED = 3
TOPIC, PATTERN = "topic ", "pattern "


class KafkaFinder:
    """Implements ``Finder``. The constructor raises UserError when the password is not found."""

    def __init__(self, options: KafkaSource, brokers: Brokers | None = None) -> None:
        self._options = options
        self._brokers: Brokers = brokers or KafkaBrokers(
            Access.of(options), committed=options.isolation == "committed"
        )
        self._ids: Mapping[str, str] = {}
        """First characters of the topic ids of the last search, by topic."""

    @classmethod
    def of(cls, options: KafkaSource, store: Store, task: FindingTask) -> KafkaFinder:
        del store, task  # Kafka alone knows the topics
        return cls(options)

    @classmethod
    def probe(cls, options: KafkaSource) -> None:
        """Implements ``ProbedFinder``. Raises UserError for a missing or forbidden named topic."""
        brokers = KafkaBrokers(Access.of(options), committed=options.isolation == "committed")
        try:
            described = brokers.describe(options.topics)
            if options.pattern is not None:
                brokers.names()
        finally:
            brokers.close()
        if described.refused:
            raise UserError(next(iter(described.refused.values())))
        if described.unanswered:
            raise UnavailableError(next(iter(described.unanswered.values())))
        if described.absent:
            raise UserError(
                f"kafka: there is no topic {', '.join(sorted(described.absent))}, or it is not "
                "visible to this user"
            )

    def find(self, before: Before) -> Findings:
        described = self._brokers.describe(self._topics(before))
        self._ids = {name: topic.id[:ID_CHARACTERS] for name, topic in described.topics.items()}
        return _Search(self._options, self._brokers, before, described).findings()

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        names = self._current(partitions)
        floors = self._brokers.offsets(names, "earliest").by_partition
        ends = self._brokers.offsets(names, "latest").by_partition
        return {
            name: Bounds(min(floors[key], ends[key]), ends[key])
            for key, name in names.items()
            if key in floors and key in ends
        }

    def offsets(self, partitions: Collection[str], to: str) -> dict[str, int]:
        names = self._current(partitions)
        offsets = self._brokers.offsets(names, bound_of(to)).by_partition
        return {names[key]: offset for key, offset in offsets.items()}

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        names = self._current(at)
        moments = self._brokers.times({key: at[name] for key, name in names.items()})
        return {names[key]: moment for key, moment in moments.items()}

    def finished(self) -> None:
        """Do nothing: there is nothing to record."""

    def close(self) -> None:
        self._brokers.close()

    def _topics(self, before: Before) -> set[str]:
        topics = set(self._options.topics)
        if self._options.pattern is not None:
            earlier = {partition.topic for partition in parsed(before.partitions).values()}
            topics.update(filter(self._options.reads, {*self._brokers.names(), *earlier}))
        return topics

    def _current(self, partitions: Collection[str]) -> dict[PartitionKey, str]:
        """Return names of partitions whose topics still have the same id, by topic and number."""
        return {
            (partition.topic, partition.number): name
            for name, partition in parsed(partitions).items()
            if self._ids.get(partition.topic) == partition.topic_id
        }


class _Search:
    def __init__(
        self, options: KafkaSource, brokers: Brokers, before: Before, described: Described
    ) -> None:
        self._options = options
        self._brokers = brokers
        self._before = before
        self._described = described
        self._earlier: defaultdict[str, dict[str, KafkaPartition]] = defaultdict(dict)
        for name, partition in parsed(before.partitions).items():
            self._earlier[partition.topic][name] = partition
        self._offers: dict[str, Offer] = {}
        self._fresh: defaultdict[str, dict[PartitionKey, str]] = defaultdict(dict)
        self._gone: set[str] = set()
        self._kept: set[str] = set()
        self._held: dict[str, str] = {}
        self._notes: list[str] = []
        self._troubles: list[str] = []
        self._lacks: list[str] = []

    def findings(self) -> Findings:
        for name in sorted(self._described.topics):
            self._take(name, self._described.topics[name])
        self._miss()
        for to, fresh in self._fresh.items():
            self._begin(fresh, to)
        ends = self._options.end_offsets
        return Findings(
            self._offers,
            _scope(self._options),
            frozenset(self._gone),
            frozenset(self._kept),
            self._held,
            tuple(self._notes),
            bool(ends) and len(self._offers) == len(ends),
            troubles=tuple(self._troubles),
            lacks=tuple(self._lacks),
        )

    def _take(self, name: str, topic: Topic) -> None:
        if topic.internal and name not in self._options.topics:
            return
        if len(name) > TOPIC_CHARACTERS:
            self._lacks.append(f"the name of topic {name} exceeds {TOPIC_CHARACTERS} characters")
            return
        own = topic.id[:ID_CHARACTERS]
        earlier = self._earlier[name]
        others = {full for full, partition in earlier.items() if partition.topic_id != own}
        new = not earlier and not _was_searched(name, self._before.scope)
        begin = self._options.start_from if new else "earliest"
        if others and len(others) == len(earlier):
            start = self._start_of_recreated(name, own)
            if start is None:
                self._kept |= others
                return
            begin = start
        self._gone |= others
        starts = self._options.start_offsets if new else {}
        for number in topic.partitions:
            self._offer(KafkaPartition(name, number, own), begin, starts)

    def _start_of_recreated(self, name: str, own: str) -> str | None:
        """Return where to start a recreated topic; None until an operator has decided."""
        key = f"{name}.{own}"
        if key in self._before.accepted:
            return self._before.accepted[key]
        lost = f"topic {name} was deleted and recreated: unread messages are lost"
        if self._options.on_gone == "earliest":
            self._notes.append(f"{lost}, and the new topic is read from offset 0")
            return "earliest"
        self._held[key] = (
            f"{lost}, and the new topic is not read. To read the new topic: `flumeng flow reset "
            "FLOW --to earliest` (or latest, or a time)"
        )
        return None

    def _offer(self, partition: KafkaPartition, begin: str, starts: Mapping[str, int]) -> None:
        label, name = partition.label, str(partition)
        ends = self._options.end_offsets
        if ends and label not in ends:
            return
        self._offers[name] = Offer(starts.get(label, 0), ends.get(label))
        if name not in self._before.partitions and label not in starts:
            self._fresh[begin][partition.topic, partition.number] = name

    def _begin(self, fresh: Mapping[PartitionKey, str], to: str) -> None:
        """Set the start of new partitions. Partitions whose start is unknown are left out."""
        try:
            starts = self._brokers.offsets(fresh, bound_of(to))
        except UnavailableError as error:
            starts = Offsets({}, str(error))
        missing = [name for key, name in fresh.items() if key not in starts.by_partition]
        for name in missing:
            del self._offers[name]
        if missing:
            self._troubles.append(f"the start of {_named(missing)} is unknown: {starts.why}")
        for key, offset in starts.by_partition.items():
            name = fresh[key]
            self._offers[name] = Offer(offset, self._offers[name].end)

    def _miss(self) -> None:
        for topic, why in {**self._described.refused, **self._described.unanswered}.items():
            self._kept |= self._earlier[topic].keys()
            self._troubles.append(why)
        for topic in self._described.absent:
            self._gone |= self._earlier[topic].keys()
            if topic in self._options.topics:
                self._lacks.append(f"Kafka has no topic {topic}: create it, or change the flow")
        there = {label_of(name) for name in self._offers}
        for label in self._options.end_offsets:
            match = PARTITION.fullmatch(label)
            if label not in there and match and match["topic"] in self._described.topics:
                self._lacks.append(f"Kafka has no partition {label}, which end_offsets names")


def bound_of(to: str) -> Bound:
    """Return the bound for a text of ``start_from``. Raises UserError for an unknown text."""
    if to == "earliest":
        return "earliest"
    try:
        return "latest" if to == "latest" else time_of(to)
    except ValueError as error:
        raise UserError(f"kafka: cannot start from {to!r}: {error}") from error


def _scope(options: KafkaSource) -> tuple[str, ...]:
    pattern = () if options.pattern is None else (f"{PATTERN}{options.pattern}",)
    return (*(f"{TOPIC}{name}" for name in options.topics), *pattern)


def _was_searched(topic: str, scope: Collection[str] | None) -> bool:
    """Return whether the last search covered the topic."""
    patterns = (text[len(PATTERN) :] for text in scope or () if text.startswith(PATTERN))
    return f"{TOPIC}{topic}" in (scope or ()) or any(
        re.fullmatch(pattern, topic) for pattern in patterns
    )


def _named(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:NAMED])
    more = len(names) - NAMED
    return f"{shown} and {more} more" if more > 0 else shown
