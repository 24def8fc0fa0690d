"""Reads ranges of Kafka partitions. A recreated topic has other messages at the same offsets. So
the topic id, which is never reused, is checked before reading, and before yielding messages."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from flumeng.connectors.api.ranged import Range
from flumeng.connectors.kafka import admin, messages
from flumeng.connectors.kafka.access import Access
from flumeng.connectors.kafka.messages import MESSAGE_SCHEMA
from flumeng.connectors.kafka.partition_names import KafkaPartition, parse
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.connection_pool import ConnectionPool
from flumeng.platform.errors import CorruptError

if TYPE_CHECKING:
    from flumeng.connectors.kafka.columns import Columns
    from flumeng.connectors.kafka.consumer import RangeConsumer

CONSUMER = "flumeng.connectors.kafka.consumer"
"""The module is imported only for reading, as its import compiles code."""
_idle: ConnectionPool[tuple[Access, bool], RangeConsumer] = ConnectionPool()


@dataclass(frozen=True)
class KafkaReader:
    """Implements ``Reader``; an address is the full topic id. ``committed``: skip aborted
    transactions. ``journaled``: messages are events of a flumeng journal."""

    access: Access
    committed: bool
    journaled: bool = False

    @classmethod
    def of(cls, source: KafkaSource, *, journaled: bool = False) -> KafkaReader:
        return cls(Access.of(source), source.isolation == "committed", journaled)

    @property
    def schema(self) -> pa.Schema:
        return READ_SCHEMA if self.journaled else MESSAGE_SCHEMA

    @property
    def modules(self) -> frozenset[str]:
        return frozenset({CONSUMER})

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        partition = parse(piece.partition)
        topic, number = partition.topic, partition.number
        asked: list[Future[Any]] = []

        def ask() -> None:
            asked.append(admin.shared(self.access).topics([topic])[topic])

        ask()
        self._require_id(asked.pop(), topic, address)
        with self._consumer() as consumer:
            for converted in consumer.read(topic, number, piece.start, piece.end, ask):
                self._require_id(asked.pop(), topic, address)
                for each in converted:
                    events = _events(each, piece, partition)
                    yield _as_journaled(events) if self.journaled else events

    def _require_id(self, asked: Future[Any], topic: str, expected: str) -> None:
        """Raise CorruptError unless the topic still has the expected id."""
        actual = admin.shared(self.access).topic_id(asked)
        if actual != expected:
            raise CorruptError(
                f"{self.access}: the topic {topic} was deleted and recreated: it has the id "
                f"{actual}, and had {expected}"
            )

    @contextmanager
    def _consumer(self) -> Iterator[RangeConsumer]:
        """Yield an idle or new consumer, which is reused later unless this read fails."""
        from flumeng.connectors.kafka.consumer import RangeConsumer  # noqa: PLC0415  see CONSUMER

        key = (self.access, self.committed)
        consumer = _idle.take(key) or RangeConsumer(self.access, committed=self.committed)
        try:
            yield consumer
        except BaseException:
            consumer.close()
            raise
        _idle.keep(key, consumer)


def _events(of_messages: Columns, piece: Range, partition: KafkaPartition) -> pa.RecordBatch:
    count = len(of_messages["seq"])
    same = {
        "host": pa.scalar("", pa.string()),
        "journal": pa.scalar(piece.partition, pa.string()),
        "replayed": pa.scalar(piece.replayed, pa.bool_()),
        "topic": pa.scalar(partition.topic, pa.string()),
        "partition": pa.scalar(partition.number, pa.int32()),
    }
    repeated = {name: pa.repeat(value, count) for name, value in same.items()}
    attrs = messages.empty_maps(MESSAGE_SCHEMA.field("attrs").type, count)
    return pa.RecordBatch.from_pydict({**of_messages, **repeated, "attrs": attrs}, MESSAGE_SCHEMA)


def _as_journaled(events: pa.RecordBatch) -> pa.RecordBatch:
    """Restore events of flumeng's journal. Raises CorruptError if key or headers are not UTF-8."""
    try:
        received = {
            "host": events["key"].cast(pa.string()).fill_null(""),
            "attrs": events["headers"].cast(READ_SCHEMA.field("attrs").type),
        }
    except pa.ArrowInvalid as error:
        raise CorruptError(
            "the topic of a journal has a message of another producer: its key or a header is not "
            f"UTF-8: {error}"
        ) from error
    columns = [received.get(name, events[name]) for name in READ_SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=READ_SCHEMA)
