"""A flow's journal in a real Kafka: senders are answered when their events are there, once each."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.kafka import admin, partition_names
from flumeng.connectors.kafka.reader import KafkaReader
from flumeng.events.schema import READ_SCHEMA
from tests.live.one_host import Standalone
from tests.live.own_server import need_own
from tests.testkit.ingest_worker import WorkerProcess, flow_text
from tests.testkit.servers.kafka import RealKafka
from tests.testkit.waiting import wait_for

LINES = 20_000


@pytest.fixture
def topic(kafka: RealKafka) -> str:
    name = f"flumeng-test-{uuid.uuid4().hex}"
    kafka.create_topic(name, {"max.message.bytes": "20000"})
    return name


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(tmp_path / "node")
    yield worker
    if worker.process.poll() is None:
        worker.kill()


def in_kafka(kafka: RealKafka, topic: str, *sources: str, name: str = "f") -> str:
    journal = json.dumps({"kafka": {"brokers": [kafka.address], "topic": topic}})
    return f"{flow_text(name, *sources)}journal: {journal}\n"


def listening(name: str, **options: Any) -> str:
    return f"{name}: {json.dumps({'listen': '127.0.0.1:0', **options})}"


def post(worker: WorkerProcess, body: bytes, seconds: float = 60.0) -> int:
    host, _, port = worker.task("f")["listen"][0].rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=seconds)
    try:
        connection.request("POST", "/", body, {"Content-Type": "text/plain"})
        return connection.getresponse().status
    finally:
        connection.close()


def values(kafka: RealKafka, topic: str) -> list[bytes]:
    return sorted(message.value() for message in kafka.messages(topic))


def numbered(count: int) -> list[bytes]:
    return [b"%08d" % number for number in range(count)]


@pytest.mark.long
def test_event_becomes_a_message(kafka: RealKafka, topic: str, worker: WorkerProcess) -> None:
    worker.run(in_kafka(kafka, topic, listening("http")))
    before = time.time()
    assert post(worker, b"one\ntwo\n") == 200
    found = kafka.messages(topic)
    assert sorted(message.value() for message in found) == [b"one", b"two"]
    for message in found:
        headers = dict(message.headers())
        assert headers["source"] == b"http"
        assert headers["path"] == b"/"
        assert message.key() == b"127.0.0.1"
        assert before - 1 <= message.timestamp()[1] / 1000 <= time.time() + 1
    assert worker.journals("f") == {}


def test_events_are_read_back_as_received(
    kafka: RealKafka, topic: str, worker: WorkerProcess
) -> None:
    text = in_kafka(kafka, topic, listening("tcp"))
    worker.run(text)
    with worker.connect("f") as sender:
        sender.sendall(b"one\n\xff two\n")
    worker.eventually(lambda: worker.counters("f")["events"] == 2)
    (source,) = parse_flow(text).partitioned
    options: Any = source.options
    reader = KafkaReader.of(options, journaled=True)
    asked = admin.shared(reader.access)
    topic_id = asked.topic_id(asked.topics([topic])[topic])
    ends = Counter(message.partition() for message in kafka.messages(topic))
    found = [
        row
        for number, end in ends.items()
        for batch in reader.read(
            Range(partition_names.name_of(topic, number, topic_id), 0, end), topic_id
        )
        for row in batch.to_pylist()
    ]
    assert sorted(row["body"] for row in found) == [b"one", b"\xff two"]
    for row in found:
        assert row.keys() == set(READ_SCHEMA.names)
        assert row["host"] == "127.0.0.1"
        assert dict(row["attrs"])["source"] == "tcp"
        assert abs(time.time() - row["ts"].timestamp()) < 600


def test_every_sent_line_is_a_message_once(
    kafka: RealKafka, topic: str, worker: WorkerProcess
) -> None:
    worker.run(in_kafka(kafka, topic, listening("tcp")))
    with worker.connect("f") as sender:
        sender.sendall(b"".join(b"%s\n" % line for line in numbered(LINES)))
    worker.eventually(lambda: values(kafka, topic) == numbered(LINES))


def test_frozen_brokers_hold_up_senders_and_nothing_is_doubled(
    kafka: RealKafka, topic: str, worker: WorkerProcess
) -> None:
    need_own(kafka)
    worker.run(in_kafka(kafka, topic, listening("http")))
    assert post(worker, b"before") == 200
    kafka.freeze()
    try:
        assert post(worker, b"meanwhile") == 429
        assert "Kafka does not answer" in worker.counters("f")["held_by"]
    finally:
        kafka.thaw()
    worker.eventually(lambda: values(kafka, topic) == [b"before", b"meanwhile"])
    assert post(worker, b"after") == 200
    assert values(kafka, topic) == [b"after", b"before", b"meanwhile"]


@pytest.mark.long
def test_killed_broker_loses_and_doubles_nothing(
    kafka: RealKafka, topic: str, worker: WorkerProcess
) -> None:
    need_own(kafka)
    worker.run(in_kafka(kafka, topic, listening("tcp")))
    with worker.connect("f") as sender:
        for number, line in enumerate(numbered(LINES)):
            sender.sendall(b"%s\n" % line)
            if number == LINES // 2:
                kafka.kill()
                kafka.start()
    worker.eventually(lambda: values(kafka, topic) == numbered(LINES))


def test_body_beyond_the_topics_limit_is_truncated(
    kafka: RealKafka, topic: str, worker: WorkerProcess
) -> None:
    worker.run(in_kafka(kafka, topic, listening("tcp")))
    with worker.connect("f") as sender:
        sender.sendall(b"small\n" + b"x" * 30_000 + b"\nlast\n")
    worker.eventually(lambda: worker.counters("f")["events"] == 3)
    found = {bytes(one.value()[:5]): one for one in kafka.messages(topic)}
    assert found.keys() == {b"small", b"xxxxx", b"last"}
    assert dict(found[b"xxxxx"].headers())["truncated"] == b"true"
    assert 19_000 < len(found[b"xxxxx"].value()) < 20_000
    assert "truncated" not in dict(found[b"small"].headers())


def test_missing_topic_is_reported(kafka: RealKafka, worker: WorkerProcess) -> None:
    worker.configure(in_kafka(kafka, "absent", listening("http")))
    worker.eventually(lambda: "create the topic" in (worker.task("f").get("error") or ""))


def test_compacted_topic_is_refused(kafka: RealKafka, worker: WorkerProcess) -> None:
    name = f"flumeng-test-{uuid.uuid4().hex}"
    kafka.create_topic(name, {"cleanup.policy": "compact"})
    worker.configure(in_kafka(kafka, name, listening("http")))
    worker.eventually(lambda: "is compacted" in (worker.task("f").get("error") or ""))
    kafka.delete_topic(name)


def test_flow_that_moves_to_kafka_closes_its_journal(
    kafka: RealKafka, topic: str, worker: WorkerProcess
) -> None:
    worker.run(flow_text("f", listening("http")))
    assert post(worker, b"on disk") == 200
    ((name, position),) = worker.journals("f").items()
    assert not position.closed
    worker.run(in_kafka(kafka, topic, listening("http")), revision=2)
    assert post(worker, b"in Kafka") == 200
    assert values(kafka, topic) == [b"in Kafka"]
    assert worker.journals("f")[name].closed
    assert [event["body"] for event in worker.events("f")] == [b"on disk"]


@pytest.mark.long
def test_flow_delivers_the_events_of_its_journal_in_kafka(
    kafka: RealKafka, topic: str, tmp_path: Path
) -> None:
    host = Standalone(tmp_path)
    with host.flow.open("a") as file:
        file.write(f"journal: {{kafka: {{brokers: ['{kafka.address}'], topic: {topic}}}}}\n")
    host.start("--flow", str(host.flow))
    try:
        host.send(LINES // 2)
        host.send(LINES // 2)
        wait_for(lambda: host.rows() >= LINES, "the events are not in the lake")
        assert host.rows() == LINES
        found = ds.dataset(host.lake, format="parquet").to_table(["journal", "seq", "host", "app"])
        assert pc.all(pc.ends_with(found["journal"], "@kafka")).as_py()
        assert found.group_by(["journal", "seq"]).aggregate([]).num_rows == LINES
        assert set(found["app"].to_pylist()) == {"app"}
        assert host.command("journal", "list").count("\n") <= 1, "nothing is on the node's disk"
        assert "0 events behind" in host.command("flow", "lag", "web")
    finally:
        host.stop()
