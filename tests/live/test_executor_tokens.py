"""Batches whose executors read journals with tokens, and readers in notebooks with certificates.

Protects that a collector of a cluster with certificates reads with both kinds of plans; that it
goes on when certificates are renewed; and that Spark shows no key among the options of jobs.
"""

from __future__ import annotations

import base64
import itertools
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import Row, SparkSession

from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.agent.pyspark.options import Options
from flumeng.agent.pyspark.source import BatchReader
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.journals.executor_tokens import ExecutorTokens
from flumeng.connectors.journals.reader import JournalReader
from flumeng.connectors.ranged.reading import Reader
from flumeng.connectors.ranged.routing import RoutedReader
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot.partitions import FLOW, JOURNAL, subscribed
from flumeng.control.zookeeper import ABSENT, Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.events import lazy_batch
from flumeng.journal.log.errors import DeniedError
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.errors import UserError
from flumeng.platform.security.credentials import Keystore
from flumeng.platform.security.roles import DIRECTORY
from tests.testkit.certificates import Certificates
from tests.testkit.cluster import add_journal
from tests.testkit.collector import TASK
from tests.testkit.ingest_worker import flow_text
from tests.testkit.journal import numbered_events
from tests.testkit.store import RealZooKeeper
from zkschema import paths, records

WEB = "web.n1.0.00000000"
EVENTS = 60
SQL = "where: 'length(body) > 0'"
Write = Callable[..., list[Row]]


class Guarded:
    """A journal whose server requires a certificate."""

    def __init__(self, folder: Path) -> None:
        self.certificates = Certificates(folder / "certificates")
        self.folder = self.certificates.folder("node", "collector", "executor")
        self.journal = Journal.create(folder / "journal", WEB)
        self.journal.append(numbered_events(0, EVENTS))
        self.journal.sync()
        self.server = JournalServer(
            "127.0.0.1",
            journals=lambda: {WEB: self.journal},
            granted=lambda name: ["web"] if name == "research" else [],
            keystore=Keystore(self.folder, "node"),
        )
        self.executor_tokens = ExecutorTokens(
            Keystore(self.folder, "collector"), Keystore(self.folder, "executor")
        )

    def close(self) -> None:
        self.server.stop()
        self.journal.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    with closing(Guarded(tmp_path)) as guarded:
        yield guarded


@pytest.fixture
def write(spark: SparkSession, guarded: Guarded) -> Write:
    """Writes events ``start`` to ``end - 1`` as the batch of a pipeline, and gives its rows."""
    numbers = itertools.count()

    def write(pipeline: SparkPipeline, start: int, end: int, partition: str = WEB) -> list[Row]:
        staging = {root: f"{root}/staged{next(numbers)}" for root in pipeline.roots}
        for directory in staging.values():
            Path(directory).mkdir(parents=True)
        ranges = [Range(partition, start, end)]
        addresses = {partition: guarded.server.address}
        work = Work(pipeline, ranges, addresses, staging, 60.0, lambda _: None, None, 2)
        (outcome,) = SparkEngine(spark).write([work], "job", "slot")
        if isinstance(outcome, Exception):
            raise outcome
        return spark.read.json([source for source, _ in outcome[0].files]).collect()

    return write


def build(spark: SparkSession, tmp_path: Path, filters: str, reader: Reader) -> SparkPipeline:
    text = (
        "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], "
        f"filters: [{filters}], sinks: [files: {{path: '{tmp_path}/lake', format: json, "
        "compression: none}]}"
    )
    return SparkPipeline(spark, parse_flow(text), TASK, reader)


def seqs(rows: list[Row]) -> list[int]:
    return sorted(row.seq for row in rows)


@pytest.mark.parametrize("filters", ["", SQL])
def test_batches_read_with_tokens_also_after_certificates_were_renewed(
    spark: SparkSession, tmp_path: Path, guarded: Guarded, write: Write, filters: str
) -> None:
    pipeline = build(
        spark, tmp_path, filters, JournalReader(executor_tokens=guarded.executor_tokens)
    )
    assert pipeline.shareable == (not filters)
    assert seqs(write(pipeline, 0, 20)) == list(range(20))
    guarded.certificates.folder("collector", "executor")
    assert seqs(write(pipeline, 20, EVENTS)) == list(range(20, EVENTS))
    with pytest.raises(UnreadableError):
        write(build(spark, tmp_path, filters, JournalReader()), 0, 20)


def test_journals_of_another_flow_are_read_with_tokens_too(
    spark: SparkSession, tmp_path: Path, guarded: Guarded, write: Write
) -> None:
    own = JournalReader(executor_tokens=guarded.executor_tokens)
    reader = RoutedReader({JOURNAL: own, FLOW: own})
    pipeline = build(spark, tmp_path, "", reader)
    assert seqs(write(pipeline, 5, 25, subscribed(WEB))) == list(range(5, 25))
    assert seqs(write(pipeline, 5, 25)) == list(range(5, 25))


def test_spark_shows_no_key_in_the_arguments_of_a_job(
    spark: SparkSession,
    tmp_path: Path,
    guarded: Guarded,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[bytes] = []
    dumps = pickle.dumps

    def keep(given: object) -> bytes:
        shown.append(dumps(given))
        return shown[-1]

    monkeypatch.setattr(lazy_batch, "pickle", SimpleNamespace(loads=pickle.loads, dumps=keep))
    pipeline = build(spark, tmp_path, SQL, JournalReader(executor_tokens=guarded.executor_tokens))
    assert seqs(write(pipeline, 0, 20)) == list(range(20))
    (given,) = shown
    assert WEB.encode() in given
    for role in ("collector", "executor"):
        lines = (guarded.folder / f"{role}.key").read_bytes().splitlines()
        assert lines[1] not in given
        assert base64.b64encode(lines[1])[:40] not in given


@pytest.fixture
def zookeeper_over_tls(guarded: Guarded, tmp_path: Path) -> Iterator[str]:
    folder = guarded.certificates.folder("zookeeper", name="zookeeper")
    server = RealZooKeeper(tmp_path / "zookeeper", folder)
    server.start()
    yield f"{server.address}/flumeng"
    server.kill()


@pytest.fixture
def options(
    zookeeper_over_tls: str, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Options]:
    monkeypatch.setenv(DIRECTORY, str(guarded.certificates.folder("admin", name="root")))
    with closing(connect(zookeeper_over_tls)) as store:
        register(store, guarded)
        yield Options(zookeeper=zookeeper_over_tls, flow="web")


def register(store: Store, guarded: Guarded) -> None:
    tree.init(store)
    apply_flow(Operator(store, "a", "", 0.0), flow_text("web", 'syslog: {listen: "127.0.0.1:0"}'))
    add_journal(store, WEB)
    live = records.LiveNode(
        uuid="", incarnation="", addresses=(guarded.server.address,), pid=0, version="", since=0
    )
    store.write(paths.live_node("n1"), live, ABSENT)


def read(options: Options) -> int:
    """Read as Spark does: plan here, and read the pickled partitions elsewhere."""
    reader = BatchReader(options)
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    return sum(batch.num_rows for part in parts for batch in reader.read(part))


def test_notebook_reads_as_its_subscriber(
    options: Options, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    research = guarded.certificates.folder("subscriber", name="research")
    monkeypatch.setenv(DIRECTORY, str(research))
    assert read(options) == EVENTS
    stranger = guarded.certificates.folder("subscriber", name="stranger")
    monkeypatch.setenv(DIRECTORY, str(stranger))
    with pytest.raises(DeniedError, match="name it in `subscribers`"):
        read(options)
    viewer = guarded.certificates.folder("viewer", name="viewer")
    monkeypatch.setenv(DIRECTORY, str(viewer))
    with pytest.raises(UserError, match="subscriber"):
        read(options)
