"""What reading costs without flumeng: a loop of confluent-kafka that takes the value of each
message.

    python -m benches.kafka_plain ADDRESS TOPIC PARTITION...

reads to the ends of these partitions for each line ``AT_ONCE SETTINGS [columns]``: as many messages
as ``consume`` is asked for, and whether librdkafka has its own settings (``own``) or the
``reader``'s. With ``columns`` it makes Arrow arrays of what flumeng's reader makes arrays of.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition

from benches.kafka_side import serve
from flumeng.connectors.kafka.access import Access, consumer_settings
from flumeng.connectors.kafka.messages import HEADERS
from flumeng.connectors.kafka.source_options import KafkaSource

WAIT_SECONDS = 0.05
ADDRESS, TOPIC = sys.argv[1:3]
PARTITIONS = [int(number) for number in sys.argv[3:]]


@cache
def _consumer(settings: str) -> tuple[Consumer, int]:
    """It is kept from round to round, and the number of messages in its partitions."""
    chosen = {"bootstrap.servers": ADDRESS, "group.id": "plain", "enable.auto.commit": False}
    if settings == "reader":
        source = KafkaSource(brokers=(ADDRESS,), topics=(TOPIC,))
        chosen = consumer_settings(Access.of(source), committed=True)
    consumer = Consumer(chosen | {"enable.partition.eof": False})
    marks = [consumer.get_watermark_offsets(TopicPartition(TOPIC, one)) for one in PARTITIONS]
    return consumer, sum(end - start for start, end in marks)


def read(words: Sequence[str]) -> int:
    at_once, settings, columns = int(words[0]), words[1], "columns" in words
    consumer, wanted = _consumer(settings)
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in PARTITIONS])
    found = 0
    while found < wanted:
        messages = consumer.consume(at_once, WAIT_SECONDS)
        for message in messages:
            assert message.error() is None, message.error()
            if not columns:
                message.value()
        if columns:
            _columns(messages)
        found += len(messages)
    consumer.unassign()
    return found


def _columns(messages: Sequence[Message]) -> dict[str, pa.Array]:
    """Of the columns of ``flumeng.connectors.kafka.columns`` those that these messages have."""
    return {
        "body": pa.array([message.value() for message in messages], pa.binary()),
        "ts": pa.array([message.timestamp()[1] for message in messages], pa.timestamp("ms", "UTC")),
        "seq": pa.array([message.offset() for message in messages], pa.int64()),
        "key": pa.array([message.key() for message in messages], pa.binary()),
        "headers": pa.array([message.headers() or [] for message in messages], HEADERS),
    }


if __name__ == "__main__":
    serve(read)
