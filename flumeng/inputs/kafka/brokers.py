"""What brokers say to a discovery task: about many topics and partitions in few requests.

A call waits for a bounded time. One answer that is refused costs the others nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import Consumer, TopicPartition

from flumeng.errors import FlumengError, UnavailableError, UserError
from flumeng.inputs.kafka import admin
from flumeng.inputs.kafka.access import Access, consumer_settings
from flumeng.inputs.kafka.admin import Bound, KafkaAdmin
from flumeng.inputs.kafka.library import NO_TOPIC, KafkaException
from flumeng.inputs.kafka.names import id_text

TIMES_SECONDS = 1.0
TIMES_AT_ONCE = 256
"""Of so many partitions the time of a message is read, at most, each time that one asks."""
AHEAD_KBYTES = 64

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
    """``why`` says it for one of those that are not among them."""

    found: Mapping[Place, int]
    why: str = ""


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
        found, why = self._answers(futures)
        beyond = [place for place, offset in found.items() if offset < 0]
        if not beyond:
            return Offsets(found, why)
        ends = self.offsets(beyond, "latest")
        before = {place: offset for place, offset in found.items() if offset >= 0}
        return Offsets({**before, **ends.found}, why or ends.why)

    def _answers(self, futures: Mapping[Place, Future[Any]]) -> tuple[dict[Place, int], str]:
        """Raises UnavailableError when there is none at all."""
        found: dict[Place, int] = {}
        trouble: FlumengError | None = None
        for place, future in futures.items():
            try:
                found[place] = self._admin.answer(future).offset
            except (UnavailableError, UserError) as error:
                trouble = error
        if trouble is not None and not found:
            raise trouble
        return found, str(trouble or "")

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
