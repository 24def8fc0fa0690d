"""The options of the source ``kafka``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.config.column_kinds import EVENT, MESSAGE, Columns
from flumeng.config.component import Guarantee, OffsetBounds, Placing, SourceOptions
from flumeng.connectors.kafka.broker_options import KafkaBrokers
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.texts import time_of

TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}", re.ASCII)
PARTITION = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})\.(?P<number>[0-9]{1,9})", re.ASCII)


def check_topic(text: str) -> None:
    if not TOPIC.fullmatch(text):
        raise ValueError("expected the name of a topic, of letters, digits, ., _ and -")


def check_pattern(text: str) -> None:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"expected a regular expression: {error}") from None


def check_partition(text: str) -> None:
    if not PARTITION.fullmatch(text):
        raise ValueError("expected a topic and the number of a partition, like orders.3")


def check_start(text: str) -> None:
    if text not in ("earliest", "latest"):
        time_of(text)


@dataclass(frozen=True, kw_only=True)
class KafkaSource(KafkaBrokers, SourceOptions):
    """Reads topics of Kafka, each message once, by offsets that flumeng keeps itself.

    An event's body is the message's value, and its time the message's. Its columns `topic`,
    `partition`, `key` and `headers` are the message's too, and `seq` is its offset.
    """

    implementation: ClassVar[str] = "flumeng.connectors.kafka.finder:KafkaFinder"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"replayable"})

    topics: tuple[str, ...] = option(
        doc="The topics, by name.", check=check_topic, example="[orders, payments]", default=()
    )
    pattern: str | None = option(
        doc="All topics whose whole name matches this regular expression, also those that appear "
        "later.",
        check=check_pattern,
        example="logs[.].*",
        default=None,
    )
    start_from: str = option(
        doc="Where to begin partitions that were never read: `earliest`, `latest`, or a time. "
        "Those that appear later are read from the beginning.",
        check=check_start,
        example='"2026-11-22T08:00:00Z"',
        default="earliest",
    )
    start_offsets: Mapping[str, int] = option(
        doc="Partitions that begin at an offset instead.",
        check=check_partition,
        example="{orders.0: 1200, orders.1: 0}",
        factory=dict,
    )
    end_offsets: Mapping[str, int] = option(
        doc="Partitions that end before an offset. With any, only these are read, and the flow "
        "stops by itself when it has read them.",
        check=check_partition,
        example="{orders.0: 5000}",
        factory=dict,
    )
    isolation: Literal["committed", "uncommitted"] = option(
        doc="`committed` reads no message of a transaction that was aborted or is open.",
        default="committed",
    )
    on_gone: Literal["fail", "earliest"] = option(
        doc="When Kafka has deleted unread messages: `fail` stops the partition until an operator "
        "decides, `earliest` goes on at the first that is left, and puts a record of the gap among "
        "the dead letters.",
        default="fail",
    )
    discovery_seconds: float = option(
        doc="How often to look for new topics and partitions.", between=(0.5, 3600), default=30.0
    )
    client_id: str = option(doc="The client id, for quotas of the brokers.", default="flumeng")

    def needs(self) -> Iterator[Need]:
        for broker in self.brokers:
            yield "input", f"kafka://{broker}"
        if self.tls is not None:
            yield from self.tls.needs()

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if not self.topics and self.pattern is None:
            yield "", "expected topics or a pattern"
        for name, start in self.start_offsets.items():
            if (end := self.end_offsets.get(name)) is not None and end < start:
                yield "end_offsets", f"{name} would end at {end}, before it begins at {start}"

    def reads(self, topic: str) -> bool:
        """Return whether the source reads the topic of this name."""
        return topic in self.topics or (
            self.pattern is not None and re.fullmatch(self.pattern, topic) is not None
        )

    alone: ClassVar[str] = "make a flow of each, or name all topics in one"

    @property
    def placing(self) -> Placing:
        return "partitioned"

    @property
    def read_columns(self) -> Columns:
        return {**EVENT, **MESSAGE}

    @property
    def bounds(self) -> OffsetBounds:
        return OffsetBounds("start_offsets", "end_offsets", ("start_from",))

    def arrival(self) -> str:
        return "each message that Kafka still has when it is read is taken once"
