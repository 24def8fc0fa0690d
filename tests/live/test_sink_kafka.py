"""Messages in a real Kafka: each event at least once, also over failures of the broker."""

from __future__ import annotations

import json
import pickle
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flumeng.config.client_tls import ClientTls
from flumeng.connectors.api.dead_letters import DeadLetters, RefusedError
from flumeng.connectors.api.sink import Attempt, TaskRevision
from flumeng.connectors.kafka.sink import KafkaSink, Produce
from flumeng.connectors.kafka.sink_options import Kafka
from flumeng.events import identity
from flumeng.events.lazy_batch import Fused, LazyBatch
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.scrubbing import Secret
from tests.live.own_server import need_own
from tests.live.sink_examples import example, first_sink
from tests.testkit.collector import TASK
from tests.testkit.servers.kafka import PASSWORD, USER, RealKafka
from tests.testkit.servers.tls import Authority

pytestmark = pytest.mark.long

ATTRS = pa.map_(pa.string(), pa.string())


@pytest.fixture
def topic(kafka: RealKafka) -> str:
    name = f"flumeng-test-{uuid.uuid4().hex}"
    kafka.create_topic(name, {"max.message.bytes": "100000"})
    return name


def events(*bodies: bytes | None, start: int = 0) -> pa.RecordBatch:
    count = len(bodies)
    columns = {
        "body": pa.array(bodies, pa.binary()),
        "ts": pa.array([datetime(2026, 3, 1, tzinfo=UTC)] * count, pa.timestamp("us", "UTC")),
        "host": pa.array([f"h{number % 3}" for number in range(count)]),
        "attrs": pa.array([[("app", f"a{number % 2}")] for number in range(count)], ATTRS),
    }
    rows = pa.RecordBatch.from_pydict(columns)
    numbers = pa.array(range(start, start + count), pa.int64())
    rows = rows.append_column(identity.JOURNAL, pa.array(["web.n1"] * count))
    rows = rows.append_column(identity.SEQ, numbers)
    return rows.append_column(identity.SPLIT, pa.array([0] * count, pa.int32()))


class Letters:
    """A stage for dead letters that keeps them."""

    kept: list[dict[str, Any]]

    def __init__(self) -> None:
        self.kept = []

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.kept += batch.to_pylist()
        yield from ()


def produce(
    options: Kafka,
    *batches: pa.RecordBatch,
    letters: Letters | None = None,
    password: str | None = None,
) -> int:
    """Write through the sink's stage, pickled as for executors; returns the number of events."""
    sent = Produce(options, None if password is None else Secret(password))
    stage: Produce = pickle.loads(pickle.dumps(sent))
    around = DeadLetters("sinks[0].kafka", 1, letters).around(
        stage, pa.schema([pa.field("events", pa.int64())])
    )
    rows = [row for out in Fused((around,))(iter(batches)) for row in out.to_pylist()]
    return sum(row["events"] or 0 for row in rows)


def values(kafka: RealKafka, topic: str) -> list[bytes]:
    return sorted(message.value() for message in kafka.messages(topic))


def test_message_has_key_headers_and_id_of_its_event(kafka: RealKafka, topic: str) -> None:
    options = Kafka(
        brokers=(kafka.address,),
        topic=topic,
        key="host",
        headers=("host", "ts", "attrs"),
        event_id=True,
    )
    assert produce(options, events(b"one", b"caf\xe9"), events(b"three", start=2)) == 3
    found = {json.loads(one.value())["body"]: one for one in kafka.messages(topic)}
    assert set(found) == {"one", "caf\ufffd", "three"}
    assert json.loads(found["caf\ufffd"].value())["body_base64"] == "Y2Fm6Q=="
    assert identity.JOURNAL not in json.loads(found["one"].value())
    assert found["one"].key() == b"h0"
    assert found["one"].headers() == [
        ("host", b"h0"),
        ("ts", b"2026-03-01T00:00:00.000000Z"),
        ("app", b"a0"),
        ("event_id", b"web.n1-0"),
    ]
    assert dict(found["three"].headers())["event_id"] == b"web.n1-2"


def test_message_has_the_time_of_its_event(kafka: RealKafka, topic: str) -> None:
    """Without one that a broker takes, the time at which it is written."""
    began = round(time.time() * 1000)
    times = [1_772_323_200_123_456, None, -5, 253_402_214_400_000_000]
    batch = events(b"a", b"b", b"c", b"d")
    ts = batch.schema.get_field_index("ts")
    batch = batch.set_column(ts, "ts", pa.array(times, pa.timestamp("us", "UTC")))
    produce(Kafka(brokers=(kafka.address,), topic=topic, value="body"), batch)
    found = {one.value(): one.timestamp()[1] for one in kafka.messages(topic)}
    assert found[b"a"] == 1_772_323_200_123
    assert all(found[body] >= began - 1000 for body in (b"b", b"c", b"d"))


def test_body_is_sent_as_message_byte_for_byte(kafka: RealKafka, topic: str) -> None:
    bodies = (b"\x00\xff\n", b"", None, "grün".encode())
    produce(Kafka(brokers=(kafka.address,), topic=topic, value="body"), events(*bodies))
    assert values(kafka, topic) == sorted(body or b"" for body in bodies)


def test_columns_of_every_plain_type_are_keys_and_headers(kafka: RealKafka, topic: str) -> None:
    columns = {
        "decimal": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "date": pa.array([date(1, 1, 1), date(9999, 12, 31)]),
        "time": pa.array([datetime(1, 1, 1), datetime(9999, 12, 31)], pa.timestamp("us", "UTC")),
        "real": pa.array([float("nan"), float("inf")]),
        "flag": pa.array([True, None]),
        "whole": pa.array([-1, 2**63 - 1]),
        "raw": pa.array([b"\xff\x00", None]),
    }
    names = tuple(columns)
    for key in names:
        options = Kafka(brokers=(kafka.address,), topic=topic, key=key, headers=names)
        assert produce(options, pa.RecordBatch.from_pydict(columns)) == 2
    found = kafka.messages(topic)
    assert len(found) == 2 * len(names)
    by_header = {tuple(one.headers()) for one in found}
    assert (
        ("decimal", b"1.50"),
        ("date", b"0001-01-01"),
        ("time", b"0001-01-01T00:00:00.000000Z"),
        ("real", b"nan"),
        ("flag", b"true"),
        ("whole", b"-1"),
        ("raw", b"\xff\x00"),
    ) in by_header
    assert {one.key() for one in found} >= {None, b"9999-12-31", b"true", b"inf"}


def test_too_large_message_is_a_dead_letter_and_others_are_delivered(
    kafka: RealKafka, topic: str
) -> None:
    """The broker refuses all of a request for it; the others come through all the same."""
    large = b"\x00\x01" * 100_000
    bodies = [b"%d" % number for number in range(2000)]
    bodies[500], bodies[1500] = large, b"x" * 40_000_000
    letters = Letters()
    options = Kafka(brokers=(kafka.address,), topic=topic, value="body", compression="none")
    assert produce(options, events(*bodies), letters=letters) == 2000
    assert [len(letter["body"]) for letter in letters.kept] == [len(large), 40_000_000]
    assert "Message size too large" in letters.kept[0]["dead_reason"]
    assert identity.JOURNAL not in letters.kept[0]
    found = values(kafka, topic)
    assert set(found) == set(bodies) - {large, bodies[1500]}
    with pytest.raises(
        RefusedError, match=r"refuses the event web\.n1-500: Kafka refuses the message"
    ):
        produce(options, events(*bodies[:501]))


def test_events_with_missing_or_invalid_topic_names_are_dead_letters(kafka: RealKafka) -> None:
    prefix = f"flumeng-test-{uuid.uuid4().hex}"
    apps = ("web", "db", "app")
    for app in apps:
        kafka.create_topic(f"{prefix}.{app}")
    names = ["web", "db", None, "../x", "absent", "a" * 300, "app", "web"]
    batch = pa.RecordBatch.from_pydict(
        {"body": [str(number).encode() for number in range(len(names))], "app": names}
    )
    letters = Letters()
    options = Kafka(brokers=(kafka.address,), topic=f"{prefix}.{{app}}", value="body")
    assert produce(options, batch, letters=letters) == len(names)
    assert values(kafka, f"{prefix}.web") == [b"0", b"7"]
    assert values(kafka, f"{prefix}.db") + values(kafka, f"{prefix}.app") == [b"1", b"6"]
    assert [letter["dead_reason"].partition(": ")[2] for letter in letters.kept] == [
        "a column in the topic's name is null",
        "invalid topic name",
        "Kafka has no such topic",
        "invalid topic name",
    ]
    for app in apps:
        kafka.delete_topic(f"{prefix}.{app}")


def test_missing_topic_is_an_error_for_the_user(kafka: RealKafka) -> None:
    options = Kafka(brokers=(kafka.address,), topic="absent")
    with pytest.raises(UserError, match="kafka: topic absent: Kafka has no such topic"):
        produce(options, events(b"x"))


def test_topic_is_looked_up_before_the_first_batch_and_not_created(
    kafka: RealKafka, topic: str
) -> None:
    task = TaskRevision("web", "", 0)
    absent = f"flumeng-absent-{uuid.uuid4().hex}"
    for name in (topic, "web-{host}"):
        KafkaSink(Kafka(brokers=(kafka.address,), topic=name), task).probe()
    for _ in range(2):
        with pytest.raises(UserError, match=f"there is no topic {absent}"):
            KafkaSink(Kafka(brokers=(kafka.address,), topic=absent), task).probe()


def test_user_over_tls_may_write_the_topics_it_is_allowed(
    kafka: RealKafka, topic: str, authority: Authority
) -> None:
    need_own(kafka)
    options = Kafka(
        brokers=(kafka.secure_address,),
        topic=topic,
        value="body",
        tls=ClientTls(ca=str(authority.ca)),
        username=USER,
        password="${secret:kafka}",
        mechanism="PLAIN",
        timeout_seconds=10,
    )
    with pytest.raises(UserError, match=r"no such topic|authorization failed"):
        produce(options, events(b"x"), password=PASSWORD)
    kafka.allow(USER, topic)
    assert produce(options, events(b"x"), password=PASSWORD) == 1
    assert values(kafka, topic) == [b"x"]
    with pytest.raises(UserError, match="Authentication failed") as caught:
        produce(options, events(b"x"), password="wrong-password-1")
    assert "wrong-password" not in str(caught.value)


def test_client_is_authenticated_by_its_certificate(
    kafka: RealKafka, topic: str, authority: Authority, tmp_path: Path
) -> None:
    need_own(kafka)
    kafka.allow("CN=client", topic)
    shown = {"client": authority.issue("client"), "other": Authority(tmp_path).issue("other")}

    def options(name: str | None) -> Kafka:
        files = map(str, shown[name]) if name else (None, None)
        tls = ClientTls(str(authority.ca), *files)
        brokers = (kafka.certified_address,)
        return Kafka(brokers=brokers, topic=topic, value="body", tls=tls, timeout_seconds=2)

    assert produce(options("client"), events(b"x")) == 1
    for name in ("other", None):
        with pytest.raises(UnavailableError, match=r"no answer within 2 s: .*ssl"):
            produce(options(name), events(b"y"))
    assert values(kafka, topic) == [b"x"]


def test_the_example_of_the_page_runs(kafka: RealKafka, authority: Authority) -> None:
    need_own(kafka)
    options = first_sink(
        example(
            "- kafka:",
            {
                '"kafka-1.example:9093", "kafka-2.example:9093"': f'"{kafka.secure_address}"',
                "/etc/flumeng/tls/kafka.pem": str(authority.ca),
                "username: flumeng": f"username: {USER}\n      mechanism: PLAIN",
            },
        )
    )
    kafka.create_topic("logs.page")
    kafka.allow(USER, "logs.page")
    batch = events(b"one").append_column("app", pa.array(["page"]))
    batch = batch.append_column("severity", pa.array([6], pa.int8()))
    assert produce(options, batch, password=PASSWORD) == 1
    (message,) = kafka.messages("logs.page")
    assert message.key() == b"h0"
    assert message.headers() == [("severity", b"6"), ("app", b"a0"), ("event_id", b"web.n1-0")]


def test_server_of_another_authority_is_refused(kafka: RealKafka, topic: str) -> None:
    need_own(kafka)
    options = Kafka(
        brokers=(kafka.secure_address,), topic=topic, tls=ClientTls(), timeout_seconds=2
    )
    with pytest.raises(UnavailableError, match=r"no answer within 2 s.*certificate verify failed"):
        produce(options, events(b"x"))


def test_kills_of_the_broker_lose_nothing(kafka: RealKafka, topic: str) -> None:
    """A batch is repeated until it comes through, as the loop does; brokers end in the middle."""
    need_own(kafka)
    options = Kafka(
        brokers=(kafka.address,), topic=topic, value="body", event_id=True, timeout_seconds=1
    )
    batches = [
        events(*[b"%d" % n for n in range(start, start + 2500)], start=start)
        for start in range(0, 50_000, 2500)
    ]
    wanted = {b"%d" % number for number in range(50_000)}
    failures: list[FlumengError] = []
    failed = threading.Event()

    def slowly() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(0.05)
            yield batch

    def repeat() -> None:
        for _ in range(60):
            try:
                stage = Produce(options, None)
                list(stage(slowly(), lambda _events, _reasons: None))
                return
            except FlumengError as error:
                failures.append(error)
                failed.set()
                time.sleep(0.2)

    loop = threading.Thread(target=repeat)
    loop.start()
    time.sleep(0.5)
    kafka.kill()
    assert failed.wait(60)
    kafka.start()
    loop.join(120)
    assert not loop.is_alive()
    assert {type(error) for error in failures} == {UnavailableError}
    found = kafka.messages(topic)
    assert {message.value() for message in found} == wanted
    ids = {dict(message.headers())["event_id"] for message in found}
    assert len(ids) == 50_000


def test_frozen_broker_is_waited_for_until_the_configured_timeout(
    kafka: RealKafka, topic: str
) -> None:
    """Also by a cached producer of the batch before."""
    need_own(kafka)
    options = Kafka(brokers=(kafka.address,), topic=topic, value="body", timeout_seconds=2)
    produce(options, events(b"before"))
    kafka.freeze()
    try:
        for fresh in (options, Kafka(**{**vars(options), "timeout_seconds": 1})):
            began = time.monotonic()
            with pytest.raises(UnavailableError, match="no answer within"):
                produce(fresh, events(*[b"x" * 1000] * 50_000))
            assert time.monotonic() - began < 10
    finally:
        kafka.thaw()
    produce(options, events(b"after"))
    assert {b"before", b"after"} <= set(values(kafka, topic))


def test_columns_that_do_not_fit_are_reported_before_the_first_batch() -> None:
    cases: Sequence[tuple[dict[str, Any], str]] = (
        ({"topic": "logs.{nobody}"}, "topic: the events have no column nobody"),
        (
            {"topic": "t", "key": "attrs"},
            "key: expected a text, number or time in the column attrs",
        ),
        ({"topic": "t", "headers": ("nobody",)}, "headers: the events have no column nobody"),
    )
    batch = LazyBatch(None, 1, None, (), READ_SCHEMA)  # type: ignore[arg-type]
    for options, expected in cases:
        sink = KafkaSink(Kafka(brokers=("127.0.0.1:1",), **options), TASK)
        with pytest.raises(UserError, match=expected):
            sink.stage(batch, Attempt())
