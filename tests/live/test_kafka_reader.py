"""Ranges of partitions of a real Kafka are read exactly, for any earlier changes of the topic."""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from flumeng.config.client_tls import ClientTls
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.kafka import access, admin, partition_names
from flumeng.connectors.kafka.access import Access
from flumeng.connectors.kafka.broker_options import KafkaBrokers
from flumeng.connectors.kafka.messages import MESSAGE_SCHEMA
from flumeng.connectors.kafka.reader import KafkaReader
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from flumeng.platform.scrubbing import Secret
from tests.live.own_server import need_own
from tests.testkit.servers.kafka import PASSWORD, USER, RealKafka
from tests.testkit.servers.tls import Authority

pytestmark = pytest.mark.long


@pytest.fixture
def topic(kafka: RealKafka) -> str:
    return make(kafka)


def make(kafka: RealKafka, name: str = "", **config: str) -> str:
    name = name or f"flumeng-test-{uuid.uuid4().hex}"
    kafka.create_topic(name, {key.replace("_", "."): value for key, value in config.items()})
    return name


class Reads:
    """The reads of a task of partition 0 of a topic in its present state."""

    def __init__(self, kafka: RealKafka, topic: str, **options: Any) -> None:
        source = KafkaSource(brokers=(kafka.address,), topics=(topic,), **options)
        self.reader: KafkaReader = pickle.loads(pickle.dumps(KafkaReader.of(source)))
        self._topic = topic
        self._asked = admin.shared(self.reader.access)
        self.address = self._asked.topic_id(self._asked.topics([topic])[topic])
        self.partition = partition_names.name_of(topic, 0, self.address)

    def batches(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        return self.reader.read(Range(self.partition, start, end), self.address)

    def rows(self, start: int, end: int) -> list[dict[str, Any]]:
        found = pa.Table.from_batches(self.batches(start, end), MESSAGE_SCHEMA)
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows

    def offsets(self, start: int, end: int) -> list[int]:
        return [row["seq"] for row in self.rows(start, end)]

    def bound(self, bound: admin.Bound, *, committed: bool = True) -> int:
        place = (self._topic, 0)
        future = self._asked.offsets([place], bound, committed=committed)[place]
        return int(self._asked.answer(future).offset)


def produce(kafka: RealKafka, topic: str, *messages: Mapping[str, Any], **settings: Any) -> None:
    from confluent_kafka import Producer  # noqa: PLC0415  an extra

    sure = {"bootstrap.servers": kafka.address, "enable.idempotence": True}
    producer = Producer({**sure, **settings})
    for message in messages:
        producer.produce(topic, partition=0, **message)
    producer.flush(30)


def values(count: int, first: int = 0) -> Sequence[Mapping[str, Any]]:
    return [{"value": b"%d" % number} for number in range(first, first + count)]


def transact(kafka: RealKafka, topic: str, count: int, *, end: str) -> Any:
    """A transaction of so many messages with this end; returns the producer of an ``open`` one."""
    from confluent_kafka import Producer  # noqa: PLC0415  an extra

    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    for message in values(count):
        producer.produce(topic, partition=0, **message)
    producer.flush(30)
    if end == "committed":
        producer.commit_transaction(30)
    elif end == "aborted":
        producer.abort_transaction(30)
    return producer


def test_range_is_read_exactly(kafka: RealKafka, topic: str) -> None:
    produce(kafka, topic, *values(30_000))
    reads = Reads(kafka, topic)
    for start, end in ((0, 1), (0, 30_000), (7, 19), (29_999, 30_000), (12_345, 23_456)):
        found = reads.rows(start, end)
        assert [row["seq"] for row in found] == list(range(start, end))
        assert [row["body"] for row in found] == [b"%d" % seq for seq in range(start, end)]
    assert reads.offsets(5, 5) == []


def test_event_has_all_fields_of_its_message(kafka: RealKafka, topic: str) -> None:
    large = bytes(range(256)) * 3_000
    produce(
        kafka,
        topic,
        {"value": b"\xff\x00body", "key": b"k\xff", "timestamp": 1_772_323_200_123},
        {"value": None, "key": b"gone"},
        {"value": b"", "key": b"", "headers": []},
        {"value": large, "headers": [("a", b"1"), ("b", None), ("a", b"\xfe"), ("c", b"")]},
        **{"message.max.bytes": 10_000_000},
    )
    reads = Reads(kafka, topic)
    first, tombstone, empty, last = reads.rows(0, 4)
    assert first == {
        "body": b"\xff\x00body",
        "ts": datetime(2026, 3, 1, 0, 0, 0, 123_000, tzinfo=UTC),
        "host": "",
        "attrs": [],
        "journal": reads.partition,
        "seq": 0,
        "replayed": False,
        "topic": topic,
        "partition": 0,
        "key": b"k\xff",
        "headers": [],
    }
    assert (tombstone["body"], tombstone["key"]) == (None, b"gone")
    assert (empty["body"], empty["key"], empty["headers"]) == (b"", b"", [])
    assert (last["body"], last["key"]) == (large, None)
    assert last["headers"] == [("a", b"\xfe"), ("b", None), ("c", b"")]


def test_events_possibly_delivered_before_are_marked_replayed(kafka: RealKafka, topic: str) -> None:
    produce(kafka, topic, *values(3))
    reads = Reads(kafka, topic)
    found = list(reads.reader.read(Range(reads.partition, 1, 3, replayed=True), reads.address))
    assert [(row["seq"], row["replayed"]) for batch in found for row in batch.to_pylist()] == [
        (1, True),
        (2, True),
    ]


def test_large_messages_come_in_batches_of_one(kafka: RealKafka) -> None:
    topic = make(kafka, max_message_bytes="20000000")
    large = [{"value": bytes([number]) * 9_000_000} for number in range(5)]
    produce(kafka, topic, *large, **{"message.max.bytes": 10_000_000})
    found = Reads(kafka, topic).rows(0, 5)
    assert [(row["seq"], row["body"][:1], len(row["body"])) for row in found] == [
        (number, bytes([number]), 9_000_000) for number in range(5)
    ]


def test_only_committed_messages_are_read(kafka: RealKafka, topic: str) -> None:
    transact(kafka, topic, 5, end="committed")  # 0 to 4, its marker 5
    transact(kafka, topic, 7, end="aborted")  # 6 to 12, its marker 13
    produce(kafka, topic, *values(2))  # 14 and 15
    transact(kafka, topic, 3, end="aborted")  # 16 to 18, its marker 19
    open_one = transact(kafka, topic, 4, end="open")  # 20 to 23
    reads = Reads(kafka, topic)
    assert reads.bound("latest") == 20
    assert reads.bound("latest", committed=False) == 24
    assert reads.offsets(0, 20) == [0, 1, 2, 3, 4, 14, 15]
    assert reads.offsets(5, 14) == []
    assert reads.offsets(3, 10) == [3, 4]
    assert reads.offsets(8, 15) == [14]
    assert reads.offsets(16, 20) == []
    everything = Reads(kafka, topic, isolation="uncommitted")
    assert everything.offsets(4, 24) == [4, *range(6, 13), *range(14, 19), *range(20, 24)]
    open_one.abort_transaction(30)
    assert reads.offsets(15, 25) == [15]


def test_offsets_removed_by_compaction_are_gaps(kafka: RealKafka) -> None:
    topic = make(
        kafka,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.01",
        segment_ms="50",
        max_compaction_lag_ms="100",
        delete_retention_ms="0",
    )
    keyed = [{"key": b"%d" % (number % 3), "value": b"%d" % number} for number in range(30)]
    produce(kafka, topic, *keyed)
    reads = Reads(kafka, topic)
    deadline = time.monotonic() + 60
    while len(reads.offsets(0, 30)) == 30 and time.monotonic() < deadline:
        time.sleep(0.2)  # a segment ends when the next message comes
        produce(kafka, topic, {"key": b"other", "value": b"new"})
    left = reads.offsets(0, 30)
    assert left == [27, 28, 29]
    assert reads.offsets(0, 27) == []
    assert reads.offsets(0, 28) == [27]
    assert reads.offsets(13, 29) == [27, 28]


def test_deleted_messages_are_an_error_and_not_skipped(kafka: RealKafka, topic: str) -> None:
    produce(kafka, topic, *values(20))
    delete_below(kafka, topic, 8)
    reads = Reads(kafka, topic)
    assert reads.bound("earliest") == 8
    assert reads.offsets(8, 20) == list(range(8, 20))
    with pytest.raises(CorruptError, match="are gone"):
        reads.rows(5, 20)


def delete_below(kafka: RealKafka, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition  # noqa: PLC0415  an extra
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    client = AdminClient({"bootstrap.servers": kafka.address})
    place = TopicPartition(topic, 0, offset)
    client.delete_records([place])[place].result(30)


def test_recreated_topic_is_another_partition(kafka: RealKafka, topic: str) -> None:
    produce(kafka, topic, *values(50_000))
    before = Reads(kafka, topic)
    reading = before.batches(0, 50_000)
    assert next(reading).column("seq")[0].as_py() == 0
    kafka.delete_topic(topic)
    make_again(kafka, topic)
    produce(kafka, topic, *values(20_000, 50_000))
    with pytest.raises((CorruptError, UserError), match=r"recreated|[Uu]nknown"):
        list(reading)
    with pytest.raises(CorruptError, match="recreated"):
        before.rows(0, 10)
    after = Reads(kafka, topic)
    assert after.partition != before.partition
    assert after.rows(0, 1)[0]["body"] == b"50000"


def make_again(kafka: RealKafka, topic: str) -> None:
    """Recreate the topic: it is deleted some time after the request."""
    from confluent_kafka import KafkaException  # noqa: PLC0415  an extra

    for _ in range(50):
        try:
            make(kafka, topic)
            return
        except KafkaException:
            time.sleep(0.1)
    raise AssertionError(topic)


def test_threads_read_ranges_concurrently(kafka: RealKafka, topic: str) -> None:
    produce(kafka, topic, *values(20_000))
    reads = Reads(kafka, topic)
    ranges = [(start, start + 2_500) for start in range(0, 20_000, 2_500)]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda bounds: reads.offsets(*bounds), ranges))
    assert found == [list(range(*bounds)) for bounds in ranges]


def test_user_reads_over_tls_the_topics_it_may_read(
    kafka: RealKafka, topic: str, authority: Authority
) -> None:
    need_own(kafka)
    produce(kafka, topic, *values(10))
    address = Reads(kafka, topic).address
    whole = Range(partition_names.name_of(topic, 0, address), 0, 10)

    def read(password: str) -> list[int]:
        brokers = KafkaBrokers(
            brokers=(kafka.secure_address,),
            tls=ClientTls(ca=str(authority.ca)),
            username=USER,
            password="${secret:kafka}",
            mechanism="PLAIN",
        )
        reader = KafkaReader(Access(brokers, Secret(password), "flumeng"), committed=True)
        found = pa.Table.from_batches(reader.read(whole, address), MESSAGE_SCHEMA)
        offsets: list[int] = found["seq"].to_pylist()
        return offsets

    with pytest.raises(UserError, match=r"[Uu]nknown topic|[Aa]uthorization"):
        read(PASSWORD)
    kafka.allow(USER, topic, "READ")
    assert read(PASSWORD) == list(range(10))
    with pytest.raises((UserError, UnavailableError)) as caught:
        read("wrong-password-1")
    assert "wrong-password" not in str(caught.value)


def test_missing_topic_is_reported(kafka: RealKafka) -> None:
    source = KafkaSource(brokers=(kafka.address,), topics=("none",))
    with pytest.raises(UserError, match=f"kafka {kafka.address}: .*"):
        list(KafkaReader.of(source).read(Range("none.0.AAAAAAAA@kafka", 0, 1), "A" * 22))


def test_frozen_broker_ends_a_read_as_unavailable(kafka: RealKafka, topic: str) -> None:
    """In the middle of a range, of which more is left than is fetched ahead."""
    need_own(kafka)
    large = b"x" * 1_500
    count = 64 * access.AHEAD_KBYTES * 1024 // len(large)
    produce(kafka, topic, *({"value": large} for _ in range(count)))
    reads = Reads(kafka, topic)
    assert len(reads.offsets(0, 10)) == 10
    reading = reads.batches(0, count)
    next(reading)
    kafka.freeze()
    try:
        began = time.monotonic()
        with pytest.raises(UnavailableError, match=f"kafka {kafka.address}"):
            list(reading)
        assert time.monotonic() - began < 30
    finally:
        kafka.thaw()
    assert when_it_answers(lambda: reads.offsets(0, count)) == list(range(count))


def test_killed_broker_is_read_on_after_its_restart(kafka: RealKafka, topic: str) -> None:
    need_own(kafka)
    produce(kafka, topic, *values(10))
    reads = Reads(kafka, topic)
    assert reads.offsets(0, 10) == list(range(10))
    kafka.kill()
    with pytest.raises(UnavailableError, match=f"kafka {kafka.address}"):
        reads.rows(0, 10)
    kafka.start()
    assert when_it_answers(lambda: reads.offsets(0, 10)) == list(range(10))


def when_it_answers(read: Callable[[], list[int]]) -> list[int]:
    """Read, with retries until clients reach the restarted broker."""
    for _ in range(10):
        try:
            return read()
        except UnavailableError:
            continue
    return read()


def test_message_of_another_producer_in_a_journal_is_damage(kafka: RealKafka, topic: str) -> None:
    produce(kafka, topic, {"value": b"ours", "key": b"host"}, {"value": b"", "key": b"\xff"})
    reads = Reads(kafka, topic)
    reader = replace(reads.reader, journaled=True)
    (batch,) = reader.read(Range(reads.partition, 0, 1), reads.address)
    assert batch["host"].to_pylist() == ["host"]
    with pytest.raises(CorruptError, match="of another producer"):
        list(reader.read(Range(reads.partition, 0, 2), reads.address))
