"""The sink ``kafka``: one message per event, at least once.

A split is done when brokers have answered for all its messages. Permanently refused messages become
dead letters. Brokers refuse the whole request that has such a message, so messages of refused
requests are sent again singly. Any other failure fails the batch; its repetition may write
duplicates.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.api import dead_letters
from flumeng.connectors.api.dead_letters import Refuse
from flumeng.connectors.api.sink import Attempt, Row, TaskRevision, Written
from flumeng.connectors.kafka.sink_options import COLUMN, TOPIC, Kafka
from flumeng.events import identity, json_text
from flumeng.events.columns import check_plain, texts
from flumeng.events.lazy_batch import LazyBatch
from flumeng.platform.connection_pool import ConnectionPool
from flumeng.platform.errors import UserError
from flumeng.platform.scrubbing import Secret
from flumeng.platform.secrets import resolve

if TYPE_CHECKING:
    from flumeng.connectors.kafka.producer import Header, KafkaProducer, Message

EVENT_ID = "event_id"
HELD_BYTES = 32 * 1024 * 1024
"""Most bytes of events that are kept until brokers have answered for them."""
TOPIC_CHARACTERS = 249
COUNT_SCHEMA = pa.schema([pa.field("events", pa.int64())])

_Key = tuple[Kafka, Secret | None, bool]
_idle: ConnectionPool[_Key, KafkaProducer] = ConnectionPool()


class KafkaSink:
    roots = ()
    writes_at_once = False

    def __init__(self, options: Kafka, _task: TaskRevision) -> None:
        from flumeng.connectors.kafka import producer as kafka_producer  # noqa: F401, PLC0415  an extra: is it there?

        password = None if options.password is None else resolve(options.password)
        self._options = options
        self._stage = Produce(options, password)

    @property
    def identified(self) -> bool:
        return self._options.event_id

    def probe(self) -> None:
        """Raise UserError for a missing topic without columns, even if brokers would create it."""
        with self._stage.producer() as producer:
            topics = producer.listed()
        topic = self._options.topic
        if not COLUMN.search(topic) and topic not in topics:
            raise UserError(
                f"kafka: there is no topic {topic}, or it is not visible to this user: create it, "
                "or check whether the brokers create topics themselves"
            )

    def stage(self, batch: LazyBatch, attempt: Attempt) -> LazyBatch:
        self._check(batch.schema)
        stage = attempt.dead_letters.around(self._stage, COUNT_SCHEMA)
        return batch.arrow(stage, dead_letters.schema_around(COUNT_SCHEMA))

    def written(self, rows: Sequence[Row]) -> Written:
        return Written(sum(row["events"] for row in rows))

    def _check(self, events: pa.Schema) -> None:
        options = self._options
        check_plain(events, COLUMN.findall(options.topic), "kafka: topic")
        check_plain(events, [] if options.key is None else [options.key], "kafka: key")
        plain = [name for name in options.headers if not _is_attributes(events, name)]
        check_plain(events, plain, "kafka: headers")
        if options.value == "body":
            check_plain(events, ["body"], "kafka: value")


@dataclass(frozen=True)
class Produce:
    """Stage that produces a split's events and yields their number."""

    options: Kafka
    password: Secret | None

    def __call__(
        self, batches: Iterator[pa.RecordBatch], refuse: Refuse
    ) -> Iterator[pa.RecordBatch]:
        count = held_bytes = 0
        held: list[_Messages] = []
        with self.producer() as producer:
            for events in batches:
                count += events.num_rows
                messages = _Messages(self._with_topic(producer, events, refuse), self.options)
                producer.send(messages.rows())
                held.append(messages)
                held_bytes += events.nbytes
                if held_bytes >= HELD_BYTES:
                    self._settle(producer, held, refuse)
                    held, held_bytes = [], 0
            self._settle(producer, held, refuse)
        yield pa.RecordBatch.from_pylist([{"events": count}], COUNT_SCHEMA)

    @contextmanager
    def producer(self, *, alone: bool = False) -> Iterator[KafkaProducer]:
        """Yield an idle or new producer, which is reused later unless an error occurs."""
        from flumeng.connectors.kafka.producer import KafkaProducer  # noqa: PLC0415  an extra

        key = (self.options, self.password, alone)
        producer = _idle.take(key) or KafkaProducer(self.options, self.password, alone=alone)
        try:
            yield producer
        except BaseException:
            producer.close()
            raise
        _idle.keep(key, producer)

    def _with_topic(
        self, producer: KafkaProducer, events: pa.RecordBatch, refuse: Refuse
    ) -> pa.RecordBatch:
        """Refuse events without a topic; return the others. UserError if a fixed one is missing."""
        topic = self.options.topic
        if not COLUMN.search(topic):
            for reason in producer.missing([topic]).values():
                raise UserError(f"kafka: topic {topic}: {reason}")
            return events
        topics = _topics(events, topic)
        why = {name: _illegal(name) for name in pc.unique(topics).to_pylist()}
        missing = producer.missing(name.decode() for name in why if name and not why[name])
        why |= {name.encode(): reason for name, reason in missing.items()}
        bad = [name for name in why if why[name]]
        if not bad:
            return events
        unsendable = pc.is_in(topics, value_set=pa.array(bad, topics.type))
        reasons = [
            f"topic {_shown(name)[:TOPIC_CHARACTERS]}: {why[name]}"
            for name in topics.filter(unsendable).to_pylist()
        ]
        refuse(events.filter(unsendable), reasons)
        return events.filter(pc.invert(unsendable))

    def _settle(self, producer: KafkaProducer, held: Sequence[_Messages], refuse: Refuse) -> None:
        refused = producer.refusals()
        if refused:
            with self.producer(alone=True) as single:
                for messages in held:
                    messages.send_alone(single, refused.keys(), refuse)


class _Messages:
    def __init__(self, events: pa.RecordBatch, options: Kafka) -> None:
        self._events = events
        self._options = options

    def rows(self) -> Iterator[Message]:
        events, options, count = self._events, self._options, self._events.num_rows
        topics: Iterable[str] = repeat(options.topic, count)
        if COLUMN.search(options.topic):
            topics = map(_shown, _topics(events, options.topic).to_pylist())
        keys: Iterable[bytes | None] = repeat(None, count)
        if options.key is not None:
            keys = texts(events.column(options.key)).to_pylist()
        if options.value == "body":
            values = pc.fill_null(texts(events.column("body")), b"")
        else:
            values = json_text.rows(identity.strip(events))
        return zip(topics, values.to_pylist(), keys, self._headers(), _times(events), strict=True)

    def send_alone(self, single: KafkaProducer, values: Collection[bytes], refuse: Refuse) -> None:
        """Send the events with these values one by one; refused ones become dead letters."""
        again = self._of(values)
        single.send(again.rows())
        if refused := single.refusals():
            letters = again._of(refused.keys())
            rows = letters.rows()
            reasons = [f"Kafka refuses the message: {refused[value]}" for _, value, *_ in rows]
            refuse(letters._events, reasons)

    def _of(self, values: Collection[bytes]) -> _Messages:
        numbers = [number for number, (_, value, *_) in enumerate(self.rows()) if value in values]
        return _Messages(self._events.take(pa.array(numbers, pa.int64())), self._options)

    def _headers(self) -> Iterable[Sequence[Header] | None]:
        columns = [self._header(name) for name in self._options.headers]
        if self._options.event_id and identity.present(self._events.schema):
            columns.append([[(EVENT_ID, text)] for text in _ids(self._events).to_pylist()])
        if not columns:
            return repeat(None, self._events.num_rows)
        return map(list, map(chain.from_iterable, zip(*columns, strict=True)))

    def _header(self, name: str) -> Iterable[Sequence[Header]]:
        column = self._events.column(name)
        if pa.types.is_map(column.type):
            return [entries or () for entries in column.to_pylist()]
        return [() if text is None else ((name, text),) for text in texts(column).to_pylist()]


def _topics(events: pa.RecordBatch, template: str) -> pa.BinaryArray:
    """Return the topic of each event; null where a column in ``template`` is null."""
    parts = [
        texts(events.column(part)) if number % 2 else part.encode()
        for number, part in enumerate(COLUMN.split(template))
    ]
    return pc.binary_join_element_wise(*parts, b"")


def _times(events: pa.RecordBatch) -> Iterable[int]:
    """Return times in milliseconds since 1970. Times that brokers refuse (missing, before 1970, or
    in the future) become 0, which means now."""
    index = events.schema.get_field_index("ts")
    if index < 0 or not pa.types.is_timestamp(events.schema.field(index).type):
        return repeat(0, events.num_rows)
    times = events.column(index).cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    now = pa.scalar(round(time.time() * 1000), pa.int64())
    valid = pc.and_(pc.greater(times, 0), pc.less_equal(times, now))
    milliseconds: list[int] = pc.if_else(pc.fill_null(valid, False), times, 0).to_pylist()
    return milliseconds


def _shown(name: bytes | None) -> str:
    return "null" if name is None else name.decode("utf-8", "replace")


def _illegal(name: bytes | None) -> str:
    """Return why a topic cannot have that name; empty for a legal one."""
    if name is None:
        return "a column in the topic's name is null"
    legal = TOPIC.fullmatch(_shown(name)) and name not in (b".", b"..")
    return "" if legal else "invalid topic name"


def _ids(events: pa.RecordBatch) -> pa.BinaryArray:
    journal, seq = (events.column(name) for name in (identity.JOURNAL, identity.SEQ))
    return pc.binary_join_element_wise(texts(journal), texts(seq), b"-")


def _is_attributes(events: pa.Schema, name: str) -> bool:
    if name not in events.names:
        return False
    return bool(events.field(name).type == pa.map_(pa.string(), pa.string()))
