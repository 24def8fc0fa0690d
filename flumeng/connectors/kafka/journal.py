"""A journal in a Kafka topic: the events of one flow in one worker, one message an event.

Events are durable when all in-sync replicas have them. The idempotent producer retries without
limit: while the worker lives, each event is in the topic exactly once. When it ends, senders may
repeat unconfirmed events. Kafka trims the topic by its retention settings.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flumeng.config import FlowSpec
from flumeng.connectors.kafka.access import connection
from flumeng.connectors.kafka.errors import NO_TOPIC, PERSONS, KafkaException
from flumeng.connectors.kafka.journal_options import KafkaJournal
from flumeng.journal.log.errors import HeldError, JournalFailedError
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.rate_limited_log import RateLimitedLog
from flumeng.platform.secrets import resolve

log = logging.getLogger(__name__)

try:
    from confluent_kafka import Producer, TopicCollection
    from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
except ImportError as missing:
    raise UserError("a journal in Kafka needs a package: pip install 'flumeng[kafka]'") from missing

ANSWER_SECONDS = 0.5
"""How long a thread waits for brokers at once: many journals share the threads."""
OPEN_SECONDS = 10.0
QUEUE_KBYTES = 32 * 1024
OVERHEAD_BYTES = 200
"""Upper bound of a message's size in a request, not counting value, key and headers."""
HEADER_BYTES = 20
TRUNCATED = ("truncated", "true")


@dataclass(eq=False)
class Messages:
    """Encoded rows: body, host, time in microseconds, attributes. ``next``: first unqueued row."""

    rows: list[tuple[bytes, str, int, list[tuple[str, str | bytes | None]]]]
    next: int = 0


class InKafka:
    """Implements ``FlowJournal`` and ``Appendable``. Used by one thread at a time."""

    restless = False

    def __init__(self, flow: str, options: KafkaJournal) -> None:
        """Check the topic. Raises UnavailableError; UserError when the topic is unusable."""
        self.id = f"{flow} in the topic {options.topic}"
        self.state: Mapping[str, object] = {}
        self._options = options
        self._troubles: deque[Any] = deque(maxlen=1)
        self._refused: deque[Any] = deque(maxlen=1)
        self._appended = 0
        self._cuts = RateLimitedLog(log)
        password = None if options.password is None else resolve(options.password)
        settings = connection(options, password) | {"error_cb": self._troubles.append}
        self._most_bytes = self._check_topic(settings)
        try:
            self._producer = Producer(
                settings
                | {
                    "enable.idempotence": True,
                    "compression.type": options.compression,
                    "delivery.report.only.error": True,
                    "message.timeout.ms": 0,
                    "message.max.bytes": self._most_bytes,
                    "partitioner": "murmur2_random",
                    "queue.buffering.max.kbytes": QUEUE_KBYTES,
                    "on_delivery": lambda error, _message: self._refused.append(error),
                }
            )
        except KafkaException as error:
            raise UserError(f"journal.kafka: {error.args[0].str()}") from error

    @property
    def appendable(self) -> InKafka:
        return self

    def fits(self, spec: FlowSpec) -> bool:
        return spec.journal.kafka == self._options

    def give_back(self, acked: int, *, failed: bool) -> None:
        """Drop the producer's queue; unconfirmed events may or may not be in the topic."""
        del acked, failed
        with suppress(KafkaException):
            self._producer.purge()
            self._producer.flush(0)

    def encode(self, batch: pa.RecordBatch, state: Mapping[str, object] | None = None) -> Messages:
        """Encode events. A body that makes a message too large for the topic is truncated. Raises
        UserError for an event that is too large without its body."""
        assert not state, "flows with sources that journal their state are refused"
        body, ts, host, attrs = (batch.column(name) for name in ("body", "ts", "host", "attrs"))
        times = ts.cast(pa.int64()).to_pylist()
        rows = list(zip(body.to_pylist(), host.to_pylist(), times, attrs.to_pylist(), strict=True))
        for number, (value, key, micros, headers) in enumerate(rows):
            excess = OVERHEAD_BYTES + len(value) + len(key.encode()) - self._most_bytes
            excess += sum(len(n.encode()) + len(v.encode()) + HEADER_BYTES for n, v in headers)
            if excess > 0:
                rows[number] = (self._cut(value, excess), key, micros, [*headers, TRUNCATED])
        return Messages(rows)

    def append_encoded(self, messages: Messages) -> int:
        """Queue messages; return their total. Raises as ``sync``; after HeldError, call again."""
        produce, topic = self._producer.produce, self._options.topic
        while messages.next < len(messages.rows):
            value, key, micros, headers = messages.rows[messages.next]
            try:
                produce(topic, value, key or None, timestamp=micros // 1000, headers=headers)
            except BufferError:
                self.sync()
                continue
            except KafkaException as error:
                raise JournalFailedError(f"journal {self.id}: {error.args[0].str()}") from error
            messages.next += 1
        self._appended += len(messages.rows)
        return self._appended

    def sync(self) -> int:
        """Wait until all in-sync replicas have all events; return the number of events. Raises
        HeldError after ANSWER_SECONDS, JournalFailedError when an event is refused for good."""
        left = self._producer.flush(ANSWER_SECONDS)
        self._require_sound()
        if left:
            raise self._held()
        return self._appended

    def confirms(self, end: int) -> bool:
        """Return True: ``sync`` returns only after the brokers' confirmation."""
        del end
        return True

    def on_confirmed(self, wake: Callable[[], None]) -> None:
        """Ignore ``wake``: ``confirms`` is always true."""

    def maintain(self) -> None:
        """Do nothing."""

    def trim(self, ack: int) -> None:
        """Do nothing: Kafka deletes old messages by its retention settings."""

    def _cut(self, value: bytes, excess: int) -> bytes:
        left = len(value) - excess
        if left < 0:
            raise UserError(
                f"host and attributes of an event exceed the limit of {self._most_bytes} bytes "
                f"(max.message.bytes) of the topic {self._options.topic}"
            )
        self._cuts.warning(
            "journal %s: a message of more than %d bytes (max.message.bytes) was cut",
            self.id,
            self._most_bytes,
        )
        return value[:left]

    def _require_sound(self) -> None:
        fatal = next((error for error in self._troubles if error.fatal()), None)
        refused = self._refused[0] if self._refused else fatal
        if refused is not None:
            raise JournalFailedError(f"journal {self.id}: {refused.str()}")

    def _held(self) -> HeldError:
        cause = f": {self._troubles[0].str()}" if self._troubles else ""
        brokers = ",".join(self._options.brokers)
        text = f"journal {self.id}: the brokers {brokers} do not answer{cause}"
        return HeldError(text, f"Kafka does not answer{cause}")

    def _check_topic(self, settings: Mapping[str, Any]) -> int:
        """Check that the topic is usable; return its largest message size in bytes."""
        topic = self._options.topic
        admin = AdminClient(dict(settings))
        deadline = time.monotonic() + OPEN_SECONDS
        try:
            # Unlike list_topics, it never creates the topic.
            described = admin.describe_topics(TopicCollection([topic]))
            described[topic].result(OPEN_SECONDS)
            asked = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)])
            (config,) = asked.values()
            entries = config.result(max(0.1, deadline - time.monotonic()))
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() in NO_TOPIC:
                raise UserError(
                    f"journal.kafka: the topic {topic}: {cause.str()}; create the topic, with a "
                    "partition for each task that reads it"
                ) from error
            if cause.code() in PERSONS:
                raise UserError(f"journal.kafka: the topic {topic}: {cause.str()}") from error
            trouble = f": {self._troubles[0].str()}" if self._troubles else ""
            raise UnavailableError(f"journal.kafka: {cause.str()}{trouble}") from error
        except TimeoutError as error:
            raise UnavailableError("journal.kafka: the brokers do not answer") from error
        if "delete" not in entries["cleanup.policy"].value:
            raise UserError(
                f"journal.kafka: the topic {topic} is compacted and would lose events: set its "
                "cleanup.policy to delete"
            )
        return int(entries["max.message.bytes"].value)
