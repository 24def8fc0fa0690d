"""Adapter to librdkafka's producer, bounded in memory and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from flumeng.connectors.api.backoff import CONNECT_SECONDS, FRESH_SECONDS
from flumeng.connectors.kafka.access import connection
from flumeng.connectors.kafka.errors import (
    NOT_YET,
    PERSONS,
    REFUSED_ALONE,
    KafkaError,
    KafkaException,
)
from flumeng.connectors.kafka.sink_options import Kafka
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.scrubbing import Secret

try:
    from confluent_kafka import Producer
except ImportError as missing:
    raise UserError("the sink kafka needs a package: pip install 'flumeng[kafka]'") from missing

QUEUE_KBYTES = 32 * 1024
QUEUE_MESSAGES = 100_000
LARGEST_BYTES = 32 * 1024 * 1024
"""Larger messages are refused before any broker sees them."""
POLL_EVERY = 1_000
POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0
"""Extra waiting time, in which librdkafka reports a message's timeout."""
PROBES = 100
"""Most unlisted topics that one call requests one by one."""
CREATED_SECONDS = 1.0
"""Waiting time for brokers that create a topic when it is requested."""

Header = tuple[str, bytes]
Message = tuple[str, bytes, bytes | None, Sequence[Header] | None, int]
"""Topic, value, key, headers, and milliseconds since 1970, where 0 means now."""
Failure = tuple[Any, bytes]


class KafkaProducer:
    """Used for one split at a time. ``alone``: each message is sent in its own request."""

    def __init__(self, options: Kafka, password: Secret | None, *, alone: bool = False) -> None:
        self._options = options
        self._topics: set[str] = set()
        self._trouble: Any = None
        """The last connection error, except "all brokers are down", which names no cause."""
        self._all_down_since: float | None = None
        config = producer_config(options, password)
        self._failures: list[Failure] = []
        config |= {"error_cb": self._on_trouble, "on_delivery": partial(_note, self._failures)}
        if alone:
            config["batch.num.messages"] = 1
        try:
            self._producer = Producer(config)
        except KafkaException as error:
            raise UserError(f"kafka: {error.args[0].str()}") from error

    def listed(self) -> set[str]:
        """Return all visible topics, without creating any. Raises UnavailableError when no broker
        answers, UserError when the user is rejected."""
        return {name for name, topic in self._ask(None).topics.items() if topic.error is None}

    def missing(self, names: Iterable[str]) -> dict[str, str]:
        """Return topics that cannot be written to, with reasons. Raises like ``listed``."""
        unknown = set(names) - self._topics
        if not unknown:
            return {}
        self._topics |= self.listed()
        why = dict.fromkeys(unknown - self._topics, "Kafka has no such topic")
        for attempt in range(2):
            for name in list(why)[:PROBES]:
                error = self._ask(name).topics[name].error
                if error is None:
                    self._topics.add(name)
                    del why[name]
                elif error.code() not in NOT_YET:
                    why[name] = error.str()
            if why and attempt == 0:
                time.sleep(CREATED_SECONDS)
        return why

    def send(self, messages: Iterable[Message]) -> None:
        """Queue messages; those refused are returned by the next ``refusals``."""
        produce: Callable[..., None] = self._producer.produce
        for number, (topic, value, key, headers, time_ms) in enumerate(messages):
            try:
                produce(topic, value, key, -1, None, None, time_ms, headers)
            except BufferError:
                self._send_when_there_is_room(topic, value, key, headers, time_ms)
            except KafkaException as error:
                self._failures.append((error.args[0], value))
            if number % POLL_EVERY == 0:
                self._poll(0)

    def refusals(self) -> dict[bytes, str]:
        """Wait for the brokers' answers. Return refused values with reasons, including values that
        shared a request with a refused one. Raises an error for any other failure."""
        began = time.monotonic()
        if self._all_down_since is not None:
            self._all_down_since = began
        limit = self._options.timeout_seconds + GRACE_SECONDS
        with self._translated():
            left = self._producer.flush(POLL_SECONDS)
            while left:
                before, left = left, self._producer.flush(POLL_SECONDS)
                if left < before:
                    self._all_down_since = None
                if self._is_down_for(CONNECT_SECONDS) or time.monotonic() - began > limit:
                    raise UnavailableError(self._no_answer(time.monotonic() - began))
        for error, _ in self._failures:
            if error.code() not in REFUSED_ALONE:
                raise self._meaning(error)
        refused = {value: error.str() for error, value in self._failures}
        self._failures.clear()
        return refused

    def close(self) -> None:
        """Close at once; unanswered messages may or may not have been written."""
        with suppress(KafkaException):
            self._producer.purge()
            self._producer.flush(0)

    def _meaning(self, error: Any) -> FlumengError:
        text = f"kafka {self._brokers}: {error.str()}"
        if error.code() in PERSONS:
            return UserError(text)
        if error.code() == KafkaError._MSG_TIMED_OUT:
            return UnavailableError(self._no_answer(self._options.timeout_seconds))
        return UnavailableError(text)

    def _on_trouble(self, error: Any) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = error
        elif self._all_down_since is None:
            self._all_down_since = time.monotonic()

    def _is_down_for(self, seconds: float) -> bool:
        since = self._all_down_since
        return since is not None and time.monotonic() - since > seconds

    def _send_when_there_is_room(
        self, topic: str, value: bytes, key: bytes | None, headers: Any, time_ms: int
    ) -> None:
        """Wait for room in the queue, then send: queued messages are answered or expire."""
        while True:
            self._poll(POLL_SECONDS)
            try:
                self._producer.produce(topic, value, key, -1, None, None, time_ms, headers)
                return
            except BufferError:
                continue

    def _ask(self, topic: str | None) -> Any:
        """Return metadata of one or all topics. Raises UnavailableError, UserError."""
        began = time.monotonic()
        limit = min(self._options.timeout_seconds, CONNECT_SECONDS)
        while True:
            try:
                metadata = self._producer.list_topics(topic, timeout=POLL_SECONDS)
            except KafkaException as error:
                self._poll(0)
                if self._trouble is not None and self._trouble.code() in PERSONS:
                    raise self._meaning(self._trouble) from error
                waited = time.monotonic() - began
                if self._is_down_for(FRESH_SECONDS) or waited > limit:
                    raise UnavailableError(self._no_answer(waited)) from error
            else:
                self._all_down_since = None
                return metadata

    def _poll(self, seconds: float) -> None:
        with self._translated():
            self._producer.poll(seconds)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate fatal producer errors, which any call may raise."""
        try:
            yield
        except KafkaException as error:
            raise self._meaning(error.args[0]) from error

    def _no_answer(self, seconds: float) -> str:
        cause = self._trouble.str().partition(" (after ")[0] if self._trouble is not None else ""
        suffix = f": {cause}" if cause else ""
        return f"kafka {self._brokers}: no answer within {seconds:.0f} s{suffix}"

    @property
    def _brokers(self) -> str:
        return ",".join(self._options.brokers)


def _note(failures: list[Failure], error: Any, message: Any) -> None:
    """Record a failed message. Callbacks for successes would take as long as producing."""
    failures.append((error, message.value() or b""))


def producer_config(options: Kafka, password: Secret | None) -> dict[str, Any]:
    return connection(options, password) | {
        "enable.idempotence": True,
        "delivery.report.only.error": True,
        "compression.type": options.compression,
        "partitioner": options.partitioner,
        "message.timeout.ms": round(options.timeout_seconds * 1000),
        "message.max.bytes": LARGEST_BYTES,
        "queue.buffering.max.kbytes": QUEUE_KBYTES,
        "queue.buffering.max.messages": QUEUE_MESSAGES,
    }
