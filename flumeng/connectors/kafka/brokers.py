"""Requests of discovery tasks and collectors to Kafka's brokers, for many partitions at once. Calls
block for a limited time. Errors of a partition, or lasting ones of a topic, spare the others."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, TopicPartition

from flumeng.connectors.api.ranged import CutError
from flumeng.connectors.kafka import admin
from flumeng.connectors.kafka.access import Access, consumer_settings
from flumeng.connectors.kafka.admin import Bound, KafkaAdmin
from flumeng.connectors.kafka.errors import (
    GROUP,
    NO_TOPIC,
    PASSING,
    KafkaError,
    KafkaException,
    meaning,
)
from flumeng.connectors.kafka.partition_names import id_text
from flumeng.platform.errors import FlumengError, UnavailableError, UserError

TIMES_SECONDS = 1.0
TIMES_AT_ONCE = 256
"""Most partitions whose message times are read by one call."""
AHEAD_KBYTES = 64
COMPARE_SECONDS = 8.0
CUT = re.compile(r"log truncation detected .*broker end offset is (\d+)")
"""The text in which librdkafka reports where a log was truncated; there is no field for it."""

PartitionKey = tuple[str, int]


@dataclass(frozen=True)
class Topic:
    """A topic. ``id`` is the full topic id, as Kafka's own tools print it."""

    id: str
    partitions: tuple[int, ...]
    internal: bool = False


@dataclass(frozen=True)
class Described:
    """Descriptions of topics. ``absent`` ones certainly do not exist. ``refused``: other errors for
    a person; ``unanswered``: passing errors, such as a missing leader."""

    topics: Mapping[str, Topic] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)
    unanswered: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Offsets:
    """Offsets by partition. ``why``: errors of missing ones. ``epochs``: of leaders, if known."""

    by_partition: Mapping[PartitionKey, int]
    why: str = ""
    epochs: Mapping[PartitionKey, int] = field(default_factory=dict)


class Brokers(Protocol):
    """Requests to Kafka's brokers. They raise UnavailableError when no broker answers, UserError
    when a person has to act."""

    def names(self) -> list[str]:
        """Return all visible topics."""

    def describe(self, topics: Collection[str]) -> Described: ...

    def offsets(self, keys: Collection[PartitionKey], bound: Bound) -> Offsets:
        """Return the offsets of ``bound``; for a time after the last message, the end."""

    def times(self, at: Mapping[PartitionKey, int]) -> dict[PartitionKey, int]:
        """Return times, in microseconds, of the messages at these offsets, or of the next messages.
        Partitions that do not answer in time, or exceed TIMES_AT_ONCE, or whose messages have no
        time, are missing."""

    def compare(self, key: PartitionKey, offset: int, leader_epoch: int) -> None:
        """Raise CutError when the log was truncated below ``offset`` after the given leader epoch.
        A message at or above ``offset`` must exist."""

    def close(self) -> None: ...


class KafkaBrokers:
    """Implements ``Brokers``. ``committed``: partitions end at the last stable offset."""

    def __init__(self, access: Access, *, committed: bool) -> None:
        self._access = access
        self._committed = committed
        self._admin: KafkaAdmin = admin.shared(access)
        self._consumer: Any = None
        self._reading = threading.Lock()

    def names(self) -> list[str]:
        return self._admin.names()

    def describe(self, topics: Collection[str]) -> Described:
        if not topics:
            return Described()
        existing: dict[str, Topic] = {}
        absent: set[str] = set()
        refused: dict[str, str] = {}
        unanswered: dict[str, UnavailableError] = {}
        for name, future in self._admin.topics(topics).items():
            try:
                description = self._admin.answer(future)
            except UserError as error:
                if _is_absent(error):
                    absent.add(name)
                else:
                    refused[name] = str(error)
            except UnavailableError as error:
                unanswered[name] = error
            else:
                numbers = tuple(sorted(partition.id for partition in description.partitions))
                existing[name] = Topic(
                    id_text(str(description.topic_id)), numbers, description.is_internal
                )
        if len(unanswered) == len(topics):
            raise next(iter(unanswered.values()))
        texts = {name: str(error) for name, error in unanswered.items()}
        return Described(existing, frozenset(absent), refused, texts)

    def offsets(self, keys: Collection[PartitionKey], bound: Bound) -> Offsets:
        if not keys:
            return Offsets({})
        futures = self._admin.offsets(keys, bound, committed=self._committed)
        first = self._answers(futures)
        beyond = [key for key, offset in first.by_partition.items() if offset < 0]
        if not beyond:
            return first
        ends = self.offsets(beyond, "latest")
        offsets = {**first.by_partition, **ends.by_partition}
        return Offsets(offsets, first.why or ends.why, {**first.epochs, **ends.epochs})

    def _answers(self, futures: Mapping[PartitionKey, Future[Any]]) -> Offsets:
        """Wait for the offsets. Raises UnavailableError or UserError when none is known."""
        offsets: dict[PartitionKey, int] = {}
        epochs: dict[PartitionKey, int] = {}
        trouble: FlumengError | None = None
        for key, future in futures.items():
            try:
                answer = self._admin.answer(future)
            except (UnavailableError, UserError) as error:
                trouble = error
                continue
            offsets[key] = answer.offset
            if answer.leader_epoch is not None and answer.leader_epoch >= 0:
                epochs[key] = answer.leader_epoch
        if trouble is not None and not offsets:
            raise trouble
        return Offsets(offsets, str(trouble or ""), epochs)

    def times(self, at: Mapping[PartitionKey, int]) -> dict[PartitionKey, int]:
        times: dict[PartitionKey, int] = {}
        requested = dict(list(at.items())[:TIMES_AT_ONCE])
        if not requested:
            return times
        with self._reading:
            try:
                for message in self._first(requested):
                    key = (message.topic(), message.partition())
                    kind, milliseconds = message.timestamp()
                    if kind != TIMESTAMP_NOT_AVAILABLE and milliseconds >= 0:
                        times.setdefault(key, milliseconds * 1000)
            except KafkaException:
                self._drop_consumer()
        return times

    def _first(self, requested: Mapping[PartitionKey, int]) -> Iterator[Any]:
        consumer = self._consumer = self._consumer or Consumer(self._settings())
        consumer.assign([TopicPartition(*key, offset) for key, offset in requested.items()])
        left = set(requested)
        deadline = time.monotonic() + TIMES_SECONDS
        while left and time.monotonic() < deadline:
            for message in consumer.consume(len(left), 0.05):
                key = (message.topic(), message.partition())
                if key not in left:
                    continue
                left.discard(key)
                consumer.incremental_unassign([TopicPartition(*key)])
                if message.error() is None:
                    yield message
        consumer.unassign()

    def compare(self, key: PartitionKey, offset: int, leader_epoch: int) -> None:
        """Compare with a new client: librdkafka compares epochs only before it knows the leader."""
        consumer = Consumer(self._settings() | {"enable.partition.eof": True})
        try:
            consumer.assign([TopicPartition(*key, offset, leader_epoch=leader_epoch)])
            deadline = time.monotonic() + COMPARE_SECONDS
            while time.monotonic() < deadline:
                message = consumer.poll(0.1)
                if message is not None and self._is_same(message, key):
                    return
        finally:
            consumer.close()
        raise UnavailableError(f"{self._access}: partition {key[0]} [{key[1]}] sends no message")

    def _is_same(self, message: Any, key: PartitionKey) -> bool:
        """Return True when the log is not truncated, False while unknown; otherwise raise."""
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            return True
        cut = CUT.search(error.str())
        if cut is not None:
            text = f"{self._access}: {key[0]} [{key[1]}]: {error.str()}"
            raise CutError(text, int(cut[1]))
        if error.code() not in PASSING and error.code() not in GROUP:
            raise meaning(error, self._access)
        return False

    def close(self) -> None:
        with self._reading:
            self._drop_consumer()

    def _settings(self) -> dict[str, Any]:
        return consumer_settings(self._access, committed=self._committed) | {
            "queued.min.messages": 1,
            "queued.max.messages.kbytes": AHEAD_KBYTES,
            "fetch.message.max.bytes": AHEAD_KBYTES * 1024,
            "enable.partition.eof": False,
            "error_cb": lambda _error: None,
        }

    def _drop_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with suppress(KafkaException):
                consumer.close()


def _is_absent(error: UserError) -> bool:
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() in NO_TOPIC
