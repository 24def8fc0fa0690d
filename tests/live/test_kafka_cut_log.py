"""A log that Kafka has cut below an ack, as after an unclean election, loses nothing in silence."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.batch import Batch
from flumeng.agent.collector.claim import ClaimedTask
from flumeng.agent.collector.partitions import Partitions
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.ranges import BatchSize
from flumeng.config import parse_flow
from flumeng.connectors.api.sink import Written
from flumeng.connectors.kafka import admin, partition_names
from flumeng.connectors.kafka.access import Access
from flumeng.connectors.kafka.input import KafkaInput
from flumeng.connectors.kafka.positions import source_of
from flumeng.connectors.ranged.routing import Inputs
from flumeng.control.commands import acks
from flumeng.control.commands.flows import apply_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ANY, tree
from flumeng.platform.errors import UnavailableError, UserError
from tests.live.own_server import need_own
from tests.testkit.collector import ScriptedPipeline
from tests.testkit.servers.kafka import RealKafka
from tests.testkit.store import FakeStore
from zkschema import paths, records

pytestmark = pytest.mark.long

TOPIC = "orders"
PATIENCE_SECONDS = 90.0
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    ".kafka_cleanshutdown",
)


class CutLog:
    """A broker of its own with one partition, whose log can be put back as it was."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "kafka"
        self._copy = folder / "copy"
        self.server = RealKafka(self._folder)
        need_own(self.server)
        self.server.start()
        self.server.create_topic(TOPIC, partitions=1)

    def produce(self, *bodies: str) -> None:
        producer = Producer({"bootstrap.servers": self.server.address, "log_level": 0})
        for body in bodies:
            producer.produce(TOPIC, body)
        assert producer.flush(30) == 0

    def keep(self) -> None:
        self.server.kill()
        shutil.copytree(self._folder / "data" / f"{TOPIC}-0", self._copy)
        self.server.start()

    def cut(self) -> None:
        """Restore the broker's log to the copy; the broker has forgotten later records."""
        self.server.kill()
        data = self._folder / "data"
        shutil.rmtree(data / f"{TOPIC}-0")
        shutil.copytree(self._copy, data / f"{TOPIC}-0")
        for name in CHECKPOINTS:
            (data / name).unlink(missing_ok=True)
        self.server.start()


@pytest.fixture
def log(tmp_path: Path) -> CutLog:
    try:
        return CutLog(tmp_path)
    except (UserError, UnavailableError) as why:
        pytest.skip(f"no Kafka here: {why}")


class Collector:
    """The tasks of a flow of the topic, one claim after the other; ``read`` has all bodies."""

    def __init__(self, log: CutLog, on_gone: str) -> None:
        self.store = FakeStore()
        tree.init(self.store)
        text = (
            f"flow: web\nsources: [kafka: {{brokers: ['{log.server.address}'], "
            f"topics: [{TOPIC}], on_gone: {on_gone}}}]\ndelivery: exactly-once\n"
            "sinks: [{files: {path: /lake}}]\n"
        )
        apply_flow(Operator(self.store, "test", "", 0.0), text)
        self._spec = parse_flow(text)
        source = source_of(self._spec)
        assert source is not None
        asked = admin.shared(Access.of(source))
        self.address = asked.topic_id(asked.topics([TOPIC])[TOPIC])
        self.partition = partition_names.name_of(TOPIC, 0, self.address)
        found = records.Partitions(partitions={self.partition: records.Partition()})
        self.store.write(paths.partitions("web"), found, ANY)
        inputs = Inputs({"kafka": KafkaInput()})
        reader = inputs.reader(self._spec)
        self.reader = reader
        self.partitions = Partitions(inputs.positions(lambda: None))
        self.read: list[str] = []
        self.gaps: list[tuple[int, int]] = []
        self._epoch = 0

    @property
    def ack(self) -> records.Ack:
        found = self.store.read(paths.ack("web", "main", self.partition))
        assert found is not None
        return found.value

    def claim(self) -> ClaimedTask:
        self._epoch = max(self._epoch, self.ack.epoch if self._epoch else 0) + 1
        self.partitions.open(self._spec)
        return ClaimedTask(
            Assignment("web", "collect.0", self._epoch, 1, "", (self.partition,)),
            self.store,
            Publisher(self.store, gap_seconds=0.0),
            ScriptedPipeline(self._spec),
            self.partitions,
            size=BatchSize(1000),
        )

    def turn(self, task: ClaimedTask) -> None:
        if task.may_start and task.backlog(eager=True).due_seconds is not None:
            batch = task.start()
            if batch is not None:
                self._write(batch)
                task.settle(batch, [Written(batch.events)])
                task.commit()
        time.sleep(0.05)

    def until(self, task: ClaimedTask, ask: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not ask():
            assert time.monotonic() < deadline, (self.ack, self.partitions.trouble, self.read)
            self.turn(task)

    def _write(self, batch: Batch) -> None:
        self.gaps += [(gap.reported.start, gap.reported.end) for gap in batch.gaps]
        for piece in () if batch.gaps else batch.ranges:
            for events in self.reader.read(piece, batch.addresses[piece.partition]):
                self.read += [body.decode() for body in events["body"].to_pylist()]


def numbered(word: str, count: int) -> list[str]:
    return [f"{word}{number}" for number in range(count)]


def read_and_cut(log: CutLog, collector: Collector) -> None:
    """60 messages are acked, the last 20 are lost, and 60 others are appended behind the first
    40."""
    log.produce(*numbered("kept", 40))
    log.keep()
    log.produce(*numbered("lost", 20))
    task = collector.claim()
    collector.until(task, lambda: collector.ack.offset == 60)
    assert collector.ack.leader_epoch is not None
    task.close()
    log.cut()
    log.produce(*numbered("new", 60))
    assert collector.read == numbered("kept", 40) + numbered("lost", 20)


def test_cut_log_is_read_on_with_a_gap_under_on_gone_earliest(log: CutLog) -> None:
    try:
        collector = Collector(log, "earliest")
        read_and_cut(log, collector)
        before = collector.ack.leader_epoch
        task = collector.claim()
        collector.until(task, lambda: collector.ack.offset == 100)
        assert collector.gaps == [(40, 60)]
        assert collector.read[60:] == numbered("new", 60)[20:]
        assert collector.ack.leader_epoch != before
        log.produce("last")
        task = collector.claim()
        collector.until(task, lambda: collector.ack.offset == 101)
        assert collector.gaps == [(40, 60)], "it is recorded once"
        task.close()
    finally:
        log.server.kill()


def test_partition_with_a_cut_log_waits_for_the_operators_reset(log: CutLog) -> None:
    try:
        collector = Collector(log, "fail")
        read_and_cut(log, collector)
        task = collector.claim()
        collector.until(task, lambda: collector.partitions.trouble is not None)
        assert collector.partitions.trouble == (
            "the log of partition orders.0 was cut at offset 40, and offset 60 is acked: another "
            "leader in Kafka has written other messages from 40 to 59, which were not read; to "
            "read them: pause the flow, and `flumeng flow reset --to orders.0=40 --partitions "
            f"{collector.partition}`; to skip them: the same with orders.0=60, or set "
            "on_gone: earliest"
        )
        assert (len(collector.read), collector.ack.offset) == (60, 60)
        task.close()
        set_flow_state(Operator(collector.store, "t", "", 0.0), "web", "suspended")
        acks.reset_acks(Operator(collector.store, "t", "", 0.0), "web", {collector.partition: 40})
        task = collector.claim()
        collector.until(task, lambda: collector.ack.offset == 100)
        assert collector.read[60:] == numbered("new", 60)
        task.close()
    finally:
        log.server.kill()


def test_leader_with_all_acked_messages_is_read_on(log: CutLog) -> None:
    try:
        collector = Collector(log, "fail")
        log.produce(*numbered("a", 60))
        task = collector.claim()
        collector.until(task, lambda: collector.ack.offset == 60)
        before = collector.ack.leader_epoch
        log.server.kill()
        log.server.start()
        log.produce(*numbered("b", 40))
        collector.until(task, lambda: collector.ack.offset == 100)
        assert collector.read == numbered("a", 60) + numbered("b", 40)
        assert collector.ack.leader_epoch != before, "another leader was compared"
        assert collector.gaps == []
        task.close()
    finally:
        log.server.kill()
