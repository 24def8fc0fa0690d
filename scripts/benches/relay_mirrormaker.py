"""MirrorMaker 2 over the same line: a broker at each end, and one MirrorMaker beside the target, as
its manual advises. Its settings are those that it comes with; the topic has eight partitions."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from flumeng.platform.java import find_java
from tests.testkit.ip_link import Ends
from tests.testkit.servers.kafka import RealKafka
from tests.testkit.servers.maven import jars
from tests.testkit.servers.server_process import ServerProcess

VERSION = "4.2.0"
ARTIFACTS = [f"org.apache.kafka:{name}:{VERSION}" for name in ("connect-mirror", "connect-runtime")]
TOPIC, PARTITIONS = "bench", 8
BODY_BYTES = 1000
MIRROR = """\
clusters = fra, nyc
fra.bootstrap.servers = {source}
nyc.bootstrap.servers = {target}
fra->nyc.enabled = true
fra->nyc.topics = {topic}
nyc->fra.enabled = false
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
"""
FIRST_SECONDS, MEASURED_SECONDS = 90.0, 20.0


class _Kafka(RealKafka):
    """A broker at one end of the line."""

    variable = "FLUMENG_TEST_KAFKA_IS_NEVER_GIVEN"

    def __init__(self, data: Path, host: str) -> None:
        super().__init__(data)
        self._local, self.address = self.address, f"{host}:{self.address.rpartition(':')[2]}"

    def _properties(self) -> str:
        return super()._properties().replace(f"//{self._local}", f"//{self.address}")


class _MirrorMaker(ServerProcess):
    name = "MirrorMaker"
    variable = "FLUMENG_TEST_MIRRORMAKER_IS_NEVER_GIVEN"

    def __init__(self, folder: Path, classes: Path, source: str, target: str) -> None:
        super().__init__(folder / "mirrormaker.log")
        self._classes = classes
        self._settings = folder / "mm2.properties"
        self._settings.write_text(MIRROR.format(source=source, target=target, topic=TOPIC))

    def start(self) -> None:
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        command = ["-Xmx1g", "-cp", f"{self._classes}/*", main, str(self._settings)]
        self._launch([find_java(), *command])


def measure(folder: Path, ends: Ends, line: float) -> float:
    """Share of the line, in bytes of messages, once the first have arrived. ``line``: bytes/s."""
    classes = jars(*ARTIFACTS)  # not from within a namespace, which has no way to the Internet
    with _brokers(folder, ends) as (source, target):
        with ends.inside(0):
            fill(source, int(line * (MEASURED_SECONDS + 10)))
        with ends.inside(1):
            target.create_topic(f"fra.{TOPIC}", partitions=PARTITIONS)
            mirror = _MirrorMaker(folder, classes, source.address, target.address)
            mirror.start()
            try:
                return _rate(target) / line
            finally:
                mirror.stop()


@contextmanager
def _brokers(folder: Path, ends: Ends) -> Iterator[tuple[_Kafka, _Kafka]]:
    brokers = [_Kafka(folder / f"kafka{end}", ends.addresses[end]) for end in (0, 1)]
    try:
        for end, broker in enumerate(brokers):
            with ends.inside(end):
                broker.start()
        yield brokers[0], brokers[1]
    finally:
        for broker in brokers:
            broker.stop()


def fill(server: RealKafka, size: int) -> None:
    """Produce messages of so many bytes in all, evenly over the partitions."""
    server.create_topic(TOPIC, partitions=PARTITIONS)
    noise = base64.b64encode(os.urandom(1000 * BODY_BYTES))
    producer = Producer({"bootstrap.servers": server.address, "linger.ms": 50})
    for number in range(size // BODY_BYTES):
        at = number % 1000 * BODY_BYTES
        while True:
            try:
                producer.produce(TOPIC, noise[at : at + BODY_BYTES], partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(120) == 0


def _rate(server: RealKafka) -> float:
    """Bytes a second that arrive, from the first ones on."""
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "none"})

    def arrived() -> int:
        places = (TopicPartition(f"fra.{TOPIC}", number) for number in range(PARTITIONS))
        return BODY_BYTES * sum(consumer.get_watermark_offsets(place, 30)[1] for place in places)

    deadline = time.monotonic() + FIRST_SECONDS
    while not arrived():
        assert time.monotonic() < deadline, "MirrorMaker copies nothing"
        time.sleep(0.2)
    began, before = time.monotonic(), arrived()
    time.sleep(MEASURED_SECONDS)
    rate = (arrived() - before) / (time.monotonic() - began)
    consumer.close()
    return rate
