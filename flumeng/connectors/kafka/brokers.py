"""What brokers say to a discovery task: about many topics and partitions in few requests.

A call waits for a bounded time. One answer that is refused costs the others nothing.
"""

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
"""Of so many partitions the time of a message is read, at most, each time that one asks."""
AHEAD_KBYTES = 64
COMPARE_SECONDS = 8.0
CUT = re.compile(r"log truncation detected .*broker end offset is (\d+)")
"""librdkafka says only in this text where the log was cut."""

Place = tuple[str, int]
"""A topic and the number of a partition."""


@dataclass(frozen=True)
class Topic:
    """``id`` is the whole one, as Kafka's tools write it."""

    id: str
    partitions: tuple[int, ...]
    internal: bool = False


@dataclass(frozen=True)
class Described:
    """``absent`` topics are certainly not there; of those ``refused`` nobody knows, and why."""

    topics: Mapping[str, Topic] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Offsets:
    """``why`` says it for one of those that are not among them. ``epochs`` are of the leaders that
    answered, where they say it."""

    found: Mapping[Place, int]
    why: str = ""
    epochs: Mapping[Place, int] = field(default_factory=dict)


class Brokers(Protocol):
    """Each call raises UnavailableError when nobody answers, and UserError."""

    def names(self) -> list[str]:
        """All topics that may be seen."""

    def describe(self, topics: Collection[str]) -> Described: ...

    def offsets(self, places: Collection[Place], bound: Bound) -> Offsets:
        """For a time after the last message, the end."""

    def times(self, at: Mapping[Place, int]) -> dict[Place, int]:
        """The times of these messages, in microseconds, or of the next ones, as far as they come in
        a bounded time."""

    def compare(self, place: Place, offset: int, leader_epoch: int) -> None:
        """Raises CutError when the log was cut below ``offset`` since the leader of that epoch had
        it. There is a message at or above ``offset``."""

    def close(self) -> None: ...


class KafkaBrokers:
    """See ``Brokers``; ``committed``: the end is that of what is committed."""

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
        """Raises UnavailableError when there is none at all."""
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
        """The next message of each partition, as they come."""
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
        """By a client of its own: librdkafka compares only where it did not know the leader."""
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
        """Whether librdkafka reads on, as it does when its leader has all below."""
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
    """Whether brokers know no such topic."""
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() in NO_TOPIC
