"""Batched requests of a discovery task to Kafka's brokers. Calls block for a bounded time. A
refused topic or partition does not affect the others."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import Consumer, TopicPartition

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
from flumeng.connectors.kafka.names import id_text
from flumeng.platform.errors import FlumengError, UnavailableError, UserError

TIMES_SECONDS = 1.0
TIMES_AT_ONCE = 256
"""Most partitions whose message times one call reads."""
AHEAD_KBYTES = 64
COMPARE_SECONDS = 8.0
CUT = re.compile(r"log truncation detected .*broker end offset is (\d+)")
"""librdkafka reports where a log was truncated only in this text."""

Place = tuple[str, int]


@dataclass(frozen=True)
class Topic:
    """``id`` is the full topic id, as Kafka's own tools print it."""

    id: str
    partitions: tuple[int, ...]
    internal: bool = False


@dataclass(frozen=True)
class Described:
    """``absent`` topics certainly do not exist; brokers did not describe the ``refused`` ones."""

    topics: Mapping[str, Topic] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Offsets:
    """``why`` is the error of one missing partition. ``epochs``: leader epochs, where reported."""

    found: Mapping[Place, int]
    why: str = ""
    epochs: Mapping[Place, int] = field(default_factory=dict)


class Brokers(Protocol):
    """Calls raise UnavailableError when no broker answers, UserError when a person has to act."""

    def names(self) -> list[str]:
        """All visible topics."""

    def describe(self, topics: Collection[str]) -> Described: ...

    def offsets(self, places: Collection[Place], bound: Bound) -> Offsets:
        """For a time after the last message, the end of the partition."""

    def times(self, at: Mapping[Place, int]) -> dict[Place, int]:
        """Timestamps, in microseconds, of the messages at these offsets or of the next ones. Lacks
        partitions that do not answer in a bounded time."""

    def compare(self, place: Place, offset: int, leader_epoch: int) -> None:
        """Raises CutError when the log was truncated below ``offset`` since the leader of that
        epoch had it. A message at or above ``offset`` must exist."""

    def close(self) -> None: ...


class KafkaBrokers:
    """See ``Brokers``. ``committed``: partitions end at the last stable offset."""

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
        found: dict[str, Topic] = {}
        absent: set[str] = set()
        refused: dict[str, str] = {}
        for name, future in self._admin.topics(topics).items():
            try:
                said = self._admin.answer(future)
            except UserError as error:
                if _is_absent(error):
                    absent.add(name)
                else:
                    refused[name] = str(error)
            else:
                numbers = tuple(sorted(partition.id for partition in said.partitions))
                found[name] = Topic(id_text(str(said.topic_id)), numbers, said.is_internal)
        return Described(found, frozenset(absent), refused)

    def offsets(self, places: Collection[Place], bound: Bound) -> Offsets:
        if not places:
            return Offsets({})
        futures = self._admin.offsets(places, bound, committed=self._committed)
        first = self._answers(futures)
        beyond = [place for place, offset in first.found.items() if offset < 0]
        if not beyond:
            return first
        ends = self.offsets(beyond, "latest")
        found = {**first.found, **ends.found}
        return Offsets(found, first.why or ends.why, {**first.epochs, **ends.epochs})

    def _answers(self, futures: Mapping[Place, Future[Any]]) -> Offsets:
        """Raises UnavailableError or UserError when no partition was answered."""
        found: dict[Place, int] = {}
        epochs: dict[Place, int] = {}
        trouble: FlumengError | None = None
        for place, future in futures.items():
            try:
                answer = self._admin.answer(future)
            except (UnavailableError, UserError) as error:
                trouble = error
                continue
            found[place] = answer.offset
            if answer.leader_epoch is not None and answer.leader_epoch >= 0:
                epochs[place] = answer.leader_epoch
        if trouble is not None and not found:
            raise trouble
        return Offsets(found, str(trouble or ""), epochs)

    def times(self, at: Mapping[Place, int]) -> dict[Place, int]:
        found: dict[Place, int] = {}
        wanted = dict(list(at.items())[:TIMES_AT_ONCE])
        if not wanted:
            return found
        with self._reading:
            try:
                for message in self._first(wanted):
                    place = (message.topic(), message.partition())
                    found.setdefault(place, message.timestamp()[1] * 1000)
            except KafkaException:
                self._drop_consumer()
        return found

    def _first(self, wanted: Mapping[Place, int]) -> Iterator[Any]:
        consumer = self._consumer = self._consumer or Consumer(self._settings())
        consumer.assign([TopicPartition(*place, offset) for place, offset in wanted.items()])
        left = set(wanted)
        deadline = time.monotonic() + TIMES_SECONDS
        while left and time.monotonic() < deadline:
            for message in consumer.consume(len(left), 0.05):
                place = (message.topic(), message.partition())
                if place not in left:
                    continue
                left.discard(place)
                consumer.incremental_unassign([TopicPartition(*place)])
                if message.error() is None:
                    yield message
        consumer.unassign()

    def compare(self, place: Place, offset: int, leader_epoch: int) -> None:
        """Uses a new client: librdkafka compares epochs only before it knows the leader."""
        consumer = Consumer(self._settings() | {"enable.partition.eof": True})
        try:
            consumer.assign([TopicPartition(*place, offset, leader_epoch=leader_epoch)])
            deadline = time.monotonic() + COMPARE_SECONDS
            while time.monotonic() < deadline:
                message = consumer.poll(0.1)
                if message is not None and self._is_same(message, place):
                    return
        finally:
            consumer.close()
        raise UnavailableError(f"{self._access}: {place[0]} [{place[1]}] sends nothing")

    def _is_same(self, message: Any, place: Place) -> bool:
        """Whether librdkafka reads on: the leader's log then holds all offsets below."""
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            return True
        cut = CUT.search(error.str())
        if cut is not None:
            text = f"{self._access}: {place[0]} [{place[1]}]: {error.str()}"
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
