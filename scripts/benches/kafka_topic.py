"""The topic that all sides of ``bench kafka`` read: messages of 200 bytes, in equal partitions."""

from __future__ import annotations

from random import Random

from confluent_kafka import Producer

from tests.testkit.servers.kafka import RealKafka

TOPIC = "bench"
PARTITIONS = 8
BODY_BYTES = 200
COMPRESSION = "lz4"
DISTINCT_BODIES = 10_000
RUN_MESSAGES = 10_000
"""So many follow each other in one partition."""


def fill(server: RealKafka, messages: int) -> None:
    """Each partition gets as many, and all are in Kafka at the end."""
    assert messages % (PARTITIONS * RUN_MESSAGES) == 0, "messages must fill the partitions evenly"
    server.create_topic(TOPIC, partitions=PARTITIONS)
    random = Random(1)
    bodies = [random.randbytes(BODY_BYTES // 2).hex() for _ in range(DISTINCT_BODIES)]
    producer = Producer(
        {
            "bootstrap.servers": server.address,
            "compression.type": COMPRESSION,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "enable.idempotence": True,
        }
    )
    for number in range(messages):
        place = number // RUN_MESSAGES % PARTITIONS
        while True:
            try:
                producer.produce(TOPIC, bodies[number % DISTINCT_BODIES], partition=place)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(120) == 0
