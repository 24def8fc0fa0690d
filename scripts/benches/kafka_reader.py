"""What reading costs with flumeng's reader alone: its consumer, without collector or Spark.

    python -m benches.kafka_reader ADDRESS TOPIC PARTITION...

reads these partitions, one after the other, to their ends for each line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from confluent_kafka import Consumer, TopicPartition

from benches.kafka_side import serve
from flumeng.connectors.kafka.access import Access, consumer_settings
from flumeng.connectors.kafka.consumer import RangeConsumer
from flumeng.connectors.kafka.source_options import KafkaSource

ADDRESS, TOPIC = sys.argv[1:3]
PARTITIONS = [int(number) for number in sys.argv[3:]]
ACCESS = Access.of(KafkaSource(brokers=(ADDRESS,), topics=(TOPIC,)))
CONSUMER = RangeConsumer(ACCESS, committed=True)


def ends() -> dict[int, int]:
    client = Consumer(consumer_settings(ACCESS, committed=True))
    found = {one: client.get_watermark_offsets(TopicPartition(TOPIC, one)) for one in PARTITIONS}
    client.close()
    return {number: end for number, (_, end) in found.items()}


def read(_words: Sequence[str]) -> int:
    return sum(
        len(columns["body"])
        for number, end in ENDS.items()
        for found in CONSUMER.read(TOPIC, number, 0, end, lambda: None)
        for columns in found
    )


ENDS = ends()
if __name__ == "__main__":
    serve(read)
