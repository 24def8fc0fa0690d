"""Spark writes into a flow: each row is in its journals, whichever process ends in between, and
ids tell repeated events from others."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from flumeng.agent.pyspark import FlumengDataSource
from flumeng.agent.standalone.embedded import free_port
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY, Store, tree
from tests.testkit.cluster import add_journal
from tests.testkit.ingest_worker import WorkerProcess, flow_text
from tests.testkit.waiting import wait_for
from zkschema import paths, records

ROWS = 200_000
NODE = "here"
SIGN = ("a", "", 0.0)


class Flow:
    """A flow ``web`` with a source ``http``, in one ingest worker."""

    def __init__(self, hosts: str, store: Store, worker: WorkerProcess, source: str = "") -> None:
        self.hosts, self.store, self.worker = hosts, store, worker
        self.port = free_port()
        self.text = flow_text("web", f'http: {{listen: "127.0.0.1:{self.port}"{source}}}')
        tree.init(store)
        apply_flow(Operator(store, *SIGN), self.text)
        self.run()
        for name in worker.journals("web"):
            add_journal(store, name, flow="web", node=NODE)

    def run(self) -> None:
        """Run the flow and write what its node would into ZooKeeper."""
        self.worker.run(self.text)
        live = records.LiveNode(
            uuid="",
            incarnation="",
            addresses=(self.worker.ready["address"],),
            pid=0,
            version="",
            since=0,
        )
        path = paths.live_node(NODE)
        self.store.write(path, live, ANY if self.store.exists(path) else ABSENT)

    @property
    def end(self) -> int:
        return sum(position.safe for position in self.worker.journals("web").values())

    def kill_after(self, events: int) -> None:
        """Kill the worker when it has so many events, and start it again."""
        wait_for(lambda: self.end >= events, "no events")
        self.worker.kill()
        time.sleep(1)
        self.worker.start()
        self.run()

    def bodies(self) -> dict[str, bytes]:
        """The body of each id; a repeated id must have the same one. ``events``: of the journal."""
        found: dict[str, bytes] = {}
        self.events = 0
        for batch in self.worker._batches("web"):
            for body, attrs in zip(
                batch["body"].to_pylist(), batch["attrs"].to_pylist(), strict=True
            ):
                event = dict(attrs)["spark_id"]
                assert found.setdefault(event, body) == body, "two events have one id"
                self.events += 1
        return found

    def options(self, **more: str) -> dict[str, str]:
        return {"zookeeper": self.hosts, "flow": "web", **more}


@pytest.fixture
def flow(hosts: str, store: Store, worker: WorkerProcess) -> Flow:
    return Flow(hosts, store, worker)


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(FlumengDataSource)
    return spark


def numbers(spark: SparkSession, rows: int, tasks: int = 4) -> DataFrame:
    return spark.range(0, rows, 1, tasks).select(f.concat(f.lit("event "), "id").alias("body"))


def expected(rows: int) -> list[bytes]:
    return sorted(b"event %d" % number for number in range(rows))


def write(rows: DataFrame, options: dict[str, str]) -> None:
    rows.write.format("flumeng").options(**options).mode("append").save()


def test_batch_and_its_columns_are_in_the_flow(spark: SparkSession, flow: Flow) -> None:
    rows = spark.sql(
        "SELECT binary('up') body, timestamp'2026-11-20 12:00:00' ts, 'a' host,"
        " map('team', 'shop', 'peer', 'x', 'none', NULL) attrs"
        " UNION ALL SELECT binary('x'), NULL, NULL, NULL"
    ).coalesce(1)
    write(rows, flow.options(writeId="monday"))
    first, second = flow.worker.events("web")
    digest, other = (dict(event["attrs"])["spark_id"][-12:] for event in (first, second))
    assert (first["body"], first["host"], str(first["ts"])) == (
        b"up",
        "a",
        "2026-11-20 12:00:00+00:00",
    )
    assert first["attrs"][:3] == [
        ("team", "shop"),
        ("spark_id", f"monday-0-0-{digest}"),
        ("source", "http"),
    ]
    assert second["attrs"][0] == ("spark_id", f"monday-0-1-{other}")
    assert second["host"]
    assert time.time() - second["ts"].timestamp() < 600
    write(spark.createDataFrame([("one line",)], ["value"]), flow.options())
    assert flow.worker.bodies("web")[2:] == ["one line"]


@pytest.mark.long
def test_batch_is_whole_though_the_worker_is_killed(spark: SparkSession, flow: Flow) -> None:
    killing = threading.Thread(target=flow.kill_after, args=(ROWS // 4,))
    killing.start()
    write(numbers(spark, ROWS), flow.options())
    killing.join()
    found = flow.bodies()
    assert sorted(found.values()) == expected(ROWS)
    assert flow.events >= ROWS


def fail_once(batches: Iterator[object], place: str) -> Iterator[object]:
    """Fail the first attempt of each task behind most of its rows."""
    task = TaskContext.get()
    assert task is not None
    mark = Path(place) / str(task.partitionId())
    last = None
    for batch in batches:
        if last is not None:
            yield last
        last = batch
    if not mark.exists():
        mark.touch()
        raise RuntimeError("the first attempt fails")
    if last is not None:
        yield last


@pytest.mark.long
def test_repeated_write_has_the_same_ids(spark: SparkSession, flow: Flow, tmp_path: Path) -> None:
    """A local session has one attempt for each task, so the write is repeated as a whole."""
    place = str(tmp_path)
    rows = numbers(spark, 30_000 * 2, 2)
    failing = rows.mapInArrow(lambda batches: fail_once(batches, place), rows.schema)
    while True:
        try:
            write(failing, flow.options(writeId="again"))
            break
        except PySparkException as error:
            assert "the first attempt fails" in str(error)
    found = flow.bodies()
    assert sorted(found.values()) == expected(30_000 * 2)
    assert flow.events > len(found), "no event came twice"


@pytest.mark.long
def test_stream_is_whole_though_worker_and_tasks_fail(
    spark: SparkSession, flow: Flow, tmp_path: Path
) -> None:
    source, marks = tmp_path / "source", tmp_path / "marks"
    marks.mkdir()
    for part in range(4):
        part_rows = spark.range(part * ROWS // 4, (part + 1) * ROWS // 4, 1, 1)
        part_rows.select(f.concat(f.lit("event "), "id").alias("body")).write.mode(
            "append"
        ).parquet(str(source))
    place = str(marks)
    rows = (
        spark.readStream.schema("body string").option("maxFilesPerTrigger", 1).parquet(str(source))
    )
    failing = rows.mapInArrow(lambda batches: fail_once(batches, place), rows.schema)
    writer = failing.writeStream.format("flumeng").options(**flow.options())
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    )
    killing = threading.Thread(target=flow.kill_after, args=(ROWS // 3,))
    killing.start()
    for _ in range(5):
        query = writer.start()
        try:
            query.awaitTermination()
            break
        except PySparkException as error:
            assert "the first attempt fails" in str(error)
    killing.join()
    found = flow.bodies()
    assert sorted(found.values()) == expected(ROWS)
    assert len({event.rpartition("-")[0] for event in found}) == ROWS
    epochs = Counter(event.split("-")[5] for event in found)
    assert epochs == {str(epoch): ROWS // 4 for epoch in range(4)}
    assert flow.events > ROWS, "no event came twice"


@pytest.mark.parametrize(
    ("columns", "options", "why"),
    [
        ("id AS body", {}, "column body is bigint, not binary or string: cast it"),
        ("'x' AS body; id AS seq", {}, "column seq is set by the journal: remove it"),
        ("'x' AS body", {"flow": "wbe"}, 'there is no flow "wbe"'),
        ("'x' AS body", {"cursor": "a"}, 'there is no option "cursor"'),
        ("CAST(NULL AS STRING) AS body", {}, "has no body: filter such rows"),
        ("repeat('x', 2000000) AS body", {}, "max_line_bytes of this source, 1048576"),
        ("'x' AS body", {"url": "http://127.0.0.1:9/", "retrySeconds": "1"}, "no source accepted"),
    ],
)
def test_unfit_write_fails_with_the_reason(
    spark: SparkSession, flow: Flow, columns: str, options: dict[str, str], why: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        write(spark.range(1).selectExpr(*columns.split("; ")), flow.options(**options))
    assert why in str(raised.value)


def test_tokens_are_sent_and_refusals_shown(
    spark: SparkSession, hosts: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUMENG_SECRET_LAB", "s3cret-token")
    worker = WorkerProcess(tmp_path / "node")
    flow = Flow(hosts, store, worker, ', auth: {tokens: {lab: "${secret:lab}"}}')
    with pytest.raises(PySparkException) as raised:
        write(numbers(spark, 10), flow.options())
    assert "Authorization is missing" in str(raised.value)
    token = tmp_path / "token"
    token.write_text("s3cret-token\n")
    write(numbers(spark, 10, 1), flow.options(tokenFile=str(token)))
    assert {dict(event["attrs"])["client"] for event in worker.events("web")} == {"lab"}
    worker.kill()
