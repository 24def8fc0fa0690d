"""A flow with dead letters goes on over unreadable input: real runner, jobs and Spark, each source.

Each kind of input is given something that it cannot read. The good events are in the lake once, and
the gap or standstill is reported as the docs of that input say.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.job import Jobs
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.runner import Runner
from flumeng.agent.collector.scheduler import Scheduler
from flumeng.agent.collector.status import FAILED, Status
from flumeng.agent.collector.takeover import Surroundings
from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.config import parse_flow, registry
from flumeng.connectors.api.finding import FindingTask
from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.dead_letters import replay_lists
from flumeng.connectors.dead_letters.directory import DeadLetterDirectory
from flumeng.connectors.dead_letters.input import DeadLettersInput
from flumeng.connectors.dead_letters.options import INPUT as DEAD_LETTERS
from flumeng.connectors.dead_letters.replay_lists import ListedFile
from flumeng.connectors.dead_letters.selection import Selection
from flumeng.connectors.kafka.input import KafkaInput
from flumeng.connectors.kafka.partition_names import INPUT as KAFKA
from flumeng.connectors.objects.input import ObjectsInput
from flumeng.connectors.polls.input import PollsInput
from flumeng.connectors.ranged.routing import Inputs
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot.partitions import OBJECTS, POLLS
from flumeng.control.zookeeper import tree
from tests.live.test_kafka_reader import delete_below, produce, values
from tests.testkit.files import files_below
from tests.testkit.servers.kafka import RealKafka
from tests.testkit.store import FakeStore
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from zkschema import paths

TASK = "collect.0"
OBJECTS_SOURCE = """\
sources:
  - objects:
      paths: ["{folder}/in/*"]
      format: {format}
      lanes: 1
      settle_seconds: 0
      discovery_seconds: 0.5
"""
FLOW = """\
flow: web
{source}delivery: {delivery}
batch: {{seconds: 0.1}}
filters: [{filters}]
sinks: [{sink}]
dead_letters: {{files: {{path: "{folder}/dead", format: {letters}, compression: none}}}}
"""
FILES = 'files: {{path: "{folder}/lake", format: json, compression: none}}'
DELTA = 'delta: {{path: "{folder}/delta"}}'


class Flow:
    """One flow with its discovery and one collect task, over a store in memory."""

    def __init__(self, spark: SparkSession, folder: Path, text: str) -> None:
        self.folder = folder
        self.store = FakeStore()
        tree.init(self.store)
        apply_flow(Operator(self.store, "test", "", 0.0), text)
        self.spec = parse_flow(text)
        finders = [
            registry.get("source", part.name).finder_class().of(
                part.options, self.store, FindingTask("web", 1)
            )
            for part in self.spec.partitioned
        ]  # fmt: skip
        self.discovery = DiscoveryTask(self.store, "web", 1, finders)
        self.statuses: list[Status] = []
        self.inputs = Inputs(
            {
                KAFKA: KafkaInput(),
                DEAD_LETTERS: DeadLettersInput(),
                OBJECTS: ObjectsInput(self.store),
                POLLS: PollsInput(self.store, spark),
            }
        )
        task = TaskRevision("web", TASK, 1)
        self._around = Surroundings(
            store=self.store,
            publisher=Publisher(self.store),
            scheduler=Scheduler(),
            jobs=Jobs(SparkEngine(spark), 1, on_stuck=pytest.fail),
            build=lambda _: SparkPipeline(spark, self.spec, task, self.inputs.reader(self.spec)),
            positions=self.inputs.positions,
            report=lambda _, status: self.statuses.append(status),
        )
        self._runner: Runner | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Discovery looks until it is closed."""
        self.discovery.discover()
        threading.Thread(target=self._look, daemon=True).start()
        wait_for(lambda: self.discovery.partitions, "partitions")
        wanted = Assignment("web", TASK, 1, 1, "", tuple(self.discovery.partitions))
        self._runner = Runner(wanted, self._around)
        self._runner.start()

    def _look(self) -> None:
        while not self._ended.wait(0.2):
            self.discovery.discover()

    @property
    def letters(self) -> list[dict[str, Any]]:
        found = []
        for file in (self.folder / "dead").glob("part-*"):
            if file.suffix == ".parquet":
                found += pq.read_table(file).to_pylist()
            else:
                found += [json.loads(line) for line in file.read_text().splitlines()]
        return found

    def lake(self) -> Counter[str]:
        files = [
            p for p in files_below(self.folder / "lake", "*.json") if "_flumeng" not in p.parts
        ]
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return Counter(row["body"] for row in rows)

    def said(self) -> str:
        return str(self.statuses[-1].error) if self.statuses else "nothing"

    def failures(self) -> int:
        return len(self.store.children(paths.queue_failures("web")))

    def check_never_failed(self) -> None:
        assert not [status for status in self.statuses if status.state == FAILED]

    def close(self) -> None:
        self._ended.set()
        if self._runner is not None:
            self._runner.cancel()
            assert self._runner.join(PATIENCE_SECONDS)


Begin = Callable[[str], Flow]


@pytest.fixture
def begin(spark: SparkSession, tmp_path: Path) -> Iterator[Begin]:
    flows = []

    def make(text: str) -> Flow:
        flows.append(Flow(spark, tmp_path, text))
        return flows[-1]

    yield make
    for flow in flows:
        flow.close()


def until(condition: Callable[[], object], what: str, flow: Flow) -> None:
    wait_for(condition, lambda: f"{what}; status: {flow.said()}")


def text_of(folder: Path, source: str, **given: str) -> str:
    settings = {"delivery": "exactly-once", "filters": "", "sink": FILES, "letters": "json"}
    settings |= given
    settings["sink"] = settings["sink"].format(folder=folder)
    return FLOW.format(folder=folder, source=source, **settings)


def truncated_gzip(folder: Path) -> None:
    lines = b"\n".join(b"line %d" % n for n in range(20_000))
    (folder / "bad.gz").write_bytes(gzip.compress(lines)[:3_000])


def damaged_avro(folder: Path) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}
    path = folder / "bad.avro"
    with path.open("wb") as out:
        fastavro.writer(out, schema, ({"n": n} for n in range(20_000)), sync_interval=1_000)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("write", "given"),
    [
        (truncated_gzip, {"delivery": "at-least-once"}),
        (truncated_gzip, {"letters": "parquet"}),
        pytest.param(
            truncated_gzip,
            {"filters": "{sql: 'SELECT * FROM events WHERE length(body) > 0'}"},
            marks=pytest.mark.long,
        ),
        (damaged_avro, {}),
        (truncated_gzip, {"sink": DELTA}),
    ],
)
def test_flow_with_dead_letters_reads_on_behind_a_damaged_object(
    tmp_path: Path, begin: Begin, write: Callable[[Path], None], given: dict[str, str]
) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in")
    form = "avro" if write is damaged_avro else "lines"
    good = tmp_path / "in" / "z-good"
    if form == "lines":
        good.write_text("good line\n")
    else:
        schema = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}
        with good.open("wb") as out:
            fastavro.writer(out, schema, [{"n": -1}])
    source = OBJECTS_SOURCE.format(folder=tmp_path, format=form)
    flow = begin(text_of(tmp_path, source, **given))
    flow.start()
    until(lambda: flow.letters, "a dead letter of the gap", flow)
    until(lambda: flow.failures() == 1, "the item to be set aside", flow)
    wanted = "good line" if form == "lines" else '{"n":-1}'
    bodies = flow.lake
    if "sink" in given:
        table = str(tmp_path / "delta")

        def bodies() -> Counter[str]:
            if not DeltaTable.is_deltatable(table):
                return Counter()
            return Counter(
                body.decode() for body in DeltaTable(table).to_pyarrow_table()["body"].to_pylist()
            )

    until(lambda: wanted in bodies(), "the object behind it", flow)
    found = bodies()
    assert set(found.values()) == {1}
    assert len(found) > 1, "what lies before the damage is read"
    (letter,) = flow.letters
    assert letter["dead_place"] == "sources"
    assert letter["dead_reason"].startswith("gap: the events of lane.")
    until(lambda: flow.statuses[-1].error is None, "a good status", flow)
    flow.check_never_failed()


def test_gap_of_a_topic_is_a_dead_letter(kafka: RealKafka, tmp_path: Path, begin: Begin) -> None:
    kafka.create_topic("orders", partitions=1)
    produce(kafka, "orders", *values(20))
    source = (
        f'sources: [kafka: {{brokers: ["{kafka.address}"], topics: [orders], '
        "on_gone: earliest, discovery_seconds: 0.5}]\n"
    )
    flow = begin(text_of(tmp_path, source))
    flow.discovery.discover()
    wait_for(lambda: flow.discovery.discover() and flow.discovery.partitions, "the partition")
    delete_below(kafka, "orders", 8)
    flow.start()
    until(lambda: flow.lake() == Counter(str(n) for n in range(8, 20)), "what is left", flow)
    (letter,) = flow.letters
    assert "from 0 to 7: they were deleted before they were read" in letter["dead_reason"]
    flow.check_never_failed()


def test_damaged_answer_of_a_poll_is_waited_for(tmp_path: Path, begin: Begin) -> None:
    answers = tmp_path / "answers"
    source = (
        "sources: [exec: {command: [/bin/date], once_per: cluster, "
        "schedule: {every_seconds: 3600}, "
        f'answers: {{path: "{answers}"}}}}]\n'
    )
    flow = begin(text_of(tmp_path, source).replace("batch: {seconds: 0.1}", "batch: {seconds: 3}"))
    flow.start()
    until(lambda: list(files_below(answers, "*.parquet")), "the first answer", flow)
    time.sleep(0.5)  # its name is in ZooKeeper
    (answer,) = files_below(answers, "*.parquet")
    content = answer.read_bytes()
    answer.write_bytes(content[:40])
    until(lambda: "stands still at answer 0" in flow.said(), "a standstill", flow)
    answer.write_bytes(content)
    until(lambda: flow.lake().total() == 1, "the answer that was restored", flow)
    assert flow.letters == []
    flow.check_never_failed()


def test_replay_waits_for_damaged_letters(tmp_path: Path, begin: Begin) -> None:
    """The replay goes on when the file is restored. Dead letters of its own go elsewhere."""
    root = tmp_path / "letters"
    root.mkdir()
    letters = [
        {"body": f"b{n}", "journal": "web.n1.0.00000000", "seq": n, "dead_reason": "x",
         "dead_place": "sinks", "dead_revision": 1, "dead_time": "2026-11-28T00:00:00Z"}
        for n in range(9)
    ]  # fmt: skip
    file = root / "part-0.json"
    file.write_text("".join(json.dumps(letter) + "\n" for letter in letters))
    content = file.read_bytes()
    listed = ListedFile(file.name, len(content), 9, 9)
    found = replay_lists.ReplayList.of("replay-1", Selection(), [listed])
    replay_lists.write(DeadLetterDirectory(str(root)), "other", found)
    source = f'sources: [letters: {{path: "{root}", of: other, replay: replay-1, rows: [9]}}]\n'
    file.write_bytes(content[:-7])
    flow = begin(text_of(tmp_path, source))
    flow.start()
    until(lambda: "were purged after the file" in flow.said(), "a standstill", flow)
    file.write_bytes(content)
    until(lambda: flow.lake() == Counter(f"b{n}" for n in range(9)), "all dead letters", flow)
    assert flow.letters == []
    flow.check_never_failed()
