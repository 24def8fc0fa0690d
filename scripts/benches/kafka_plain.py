"""What reading costs without flumeng: a loop of confluent-kafka that takes the value of each
message.

    python -m benches.kafka_plain ADDRESS TOPIC PARTITION...

reads to the ends of these partitions for each line ``AT_ONCE SETTINGS``: as many messages as
``consume`` is asked for, and whether librdkafka has its own settings (``own``) or the ``reader``'s.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache

from confluent_kafka import Consumer, TopicPartition

from benches.kafka_side import serve
from flumeng.connectors.kafka.access import Access, consumer_settings
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
    at_once, settings = int(words[0]), words[1]
    consumer, wanted = _consumer(settings)
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in PARTITIONS])
    found = 0
    while found < wanted:
        for message in consumer.consume(at_once, WAIT_SECONDS):
            assert message.error() is None, message.error()
            message.value()
            found += 1
    consumer.unassign()
    return found


if __name__ == "__main__":
    serve(read)
