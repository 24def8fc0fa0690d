"""Whole pipelines in a real Spark: the files in a lake, as others read them."""

from __future__ import annotations

import base64
import gc
import gzip
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.outcome import BatchFailedError
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.api.sink import Attempt, BatchTooWideError, Written
from flumeng.connectors.files.options import Files
from flumeng.connectors.files.sink import FilesSink
from flumeng.connectors.journals.reader import JournalReader
from flumeng.events.lazy_batch import LazyBatch
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from flumeng.platform import file_store
from flumeng.platform.errors import UserError
from tests.live.sink_examples import example
from tests.testkit.collector import TASK
from tests.testkit.journal import numbered_events

JOURNAL = "web.n1.0.00000000"
BODIES = (b"<13>1 - h1 a p m - one", b"caf\xe9 \x00", b'{"quoted": "\\"}', "grün".encode())
HOURS = [0, 1, 0, 1]

Write = Callable[..., list[Written]]


class CountingJournal:
    """Notes in ``reads`` the first event of each read."""

    def __init__(self, journal: Journal, reads: list[int]) -> None:
        self._journal = journal
        self._reads = reads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def read_frames(self, start: int, end: int) -> Iterator[Any]:
        self._reads.append(start)
        return self._journal.read_frames(start, end)


@pytest.fixture
def reads() -> list[int]:
    return []


@pytest.fixture
def write(spark: SparkSession, tmp_path: Path, reads: list[int]) -> Iterator[Write]:
    """Runs a batch of BODIES through the sinks and filters given as YAML, and shows its files."""
    journal = Journal.create(tmp_path, JOURNAL)
    counting: Any = CountingJournal(journal, reads)
    server = JournalServer("127.0.0.1", journals=lambda: {JOURNAL: counting})
    times = [datetime(2026, 3, 1, hour, 30, 0, 1, tzinfo=UTC) for hour in HOURS]
    columns = [
        pa.array(BODIES, pa.binary()),
        pa.array(times, pa.timestamp("us", "UTC")),
        pa.array(["192.0.2.1"] * 4),
        pa.array(
            [[("source", "syslog")]] * 3 + [[("ts_refused", "x")]],
            pa.map_(pa.string(), pa.string()),
        ),
    ]
    journal.append(pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA))
    journal.sync()

    def run(sinks: str, filters: str = "[]", address: str = server.address) -> list[Written]:
        source = "syslog: {listen: '127.0.0.1:0'}"
        text = f"{{flow: web, sources: [{source}], filters: {filters}, sinks: [{sinks}]}}"
        pipeline = SparkPipeline(spark, parse_flow(text), TASK, JournalReader())
        staging = {root: f"{root}/_flumeng/{JOURNAL}.1.0" for root in pipeline.roots}
        for directory in staging.values():
            file_store.LOCAL.make_directory(directory)
        ranges = [Range(JOURNAL, 0, 4)]
        work = Work(pipeline, ranges, {JOURNAL: address}, staging, 60.0, lambda _: None)
        (written,) = SparkEngine(spark).write([work], "job", "slot")
        if isinstance(written, Exception):
            raise written
        for part in written:
            assert file_store.LOCAL.rename(part.files) == []
        return written

    yield run
    server.stop()
    journal.close()


@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark 4.0 talks to its workers over TCP")
def test_small_job_is_not_slowed_by_sockets_or_garbage_collection(
    spark: SparkSession, write: Write, tmp_path: Path
) -> None:
    """TCP holds small messages back for 40 ms; to look through all modules for garbage takes 50."""
    write(f"files: {{path: '{tmp_path / 'lake'}'}}")

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sockets = Path(os.environ["PYTHON_WORKER_FACTORY_SOCK_DIR"]).resolve()
        for _ in batches:
            yield pa.RecordBatch.from_pydict(
                {"sockets": [str(sockets)], "frozen": [gc.get_freeze_count()]}
            )

    workers = spark.sparkContext.defaultParallelism
    numbers = spark.range(0, workers, 1, workers)
    seen = numbers.mapInArrow(look, "sockets string, frozen bigint").collect()
    scratch = Path(spark.conf.get("spark.local.dir") or "")
    assert {Path(sockets) for sockets, _ in seen} == {scratch.resolve()}
    assert max(frozen for _, frozen in seen) > 10_000
    assert list(scratch.glob(".*.sock"))
    assert scratch.stat().st_mode & 0o777 == 0o700  # a client of the socket may run code here


def test_parquet_is_read_back_by_spark_with_all_columns(
    write: Write, spark: SparkSession, tmp_path: Path
) -> None:
    path = f"{tmp_path}/lake/dt=%Y-%m-%d/hour=%H"
    (written,) = write(f"files: {{path: '{path}'}}", "[parse: {format: syslog}]")
    assert written.events == 4
    read = spark.read.parquet(f"{tmp_path}/lake").orderBy("seq")
    assert [bytes(row.body) for row in read.collect()] == list(BODIES)
    assert [row.hour for row in read.collect()] == HOURS
    assert [row.severity for row in read.collect()] == [5, None, None, None]
    assert read.columns[:7] == ["body", "ts", "host", "attrs", "journal", "seq", "replayed"]
    assert [row.seq for row in read.collect()] == [0, 1, 2, 3]


def test_json_has_the_whole_event_and_base64_of_bodies_that_are_not_text(
    write: Write, tmp_path: Path
) -> None:
    write(f"files: {{path: '{tmp_path}/lake/hour=%H', format: json, compression: none}}")
    lines = [
        line
        for f in (tmp_path / "lake").glob("hour=*/*.json")
        for line in f.read_bytes().splitlines()
    ]
    events = sorted((json.loads(line) for line in lines), key=lambda event: event["seq"])
    assert [event["body"] for event in events] == [b.decode("utf-8", "replace") for b in BODIES]
    assert [
        base64.b64decode(event["body_base64"]) for event in events if "body_base64" in event
    ] == [BODIES[1]]
    assert events[0]["ts"] == "2026-03-01T00:30:00.000001Z"
    assert events[0]["attrs"] == {"source": "syslog"}
    assert events[0]["replayed"] is False


def test_dead_letters_can_be_json_files(spark: SparkSession, tmp_path: Path) -> None:
    source = "syslog: {listen: '127.0.0.1:0'}"
    dead = f"files: {{path: '{tmp_path}/dead', format: json}}"
    text = f"{{flow: web, sources: [{source}], sinks: [noop], dead_letters: {{{dead}}}}}"
    assert SparkPipeline(spark, parse_flow(text), TASK, JournalReader()).shareable


def test_json_files_count_refused_times(write: Write, tmp_path: Path) -> None:
    for form in ("json", "parquet"):
        (written,) = write(f"files: {{path: '{tmp_path}/{form}/%H', format: {form}}}")
        assert (written.events, written.refused) == (4, 1)


def test_text_is_read_back_by_spark(write: Write, spark: SparkSession, tmp_path: Path) -> None:
    write(f"files: {{path: '{tmp_path}/lake', format: text, compression: gzip}}")
    read = spark.read.text(f"{tmp_path}/lake").collect()
    assert sorted(row.value for row in read) == sorted(b.decode("utf-8", "replace") for b in BODIES)


def test_the_example_of_the_page_runs(write: Write, tmp_path: Path) -> None:
    flow = example("flow: tidy", {"/data/lake": str(tmp_path / "lake")})
    write(json.dumps(flow["sinks"][0]), json.dumps(flow["filters"]))
    files = list((tmp_path / "lake").glob("dt=2026-03-01/app=*/*.csv.gz"))
    assert "app=a" in {file.parent.name for file in files}
    assert sum(len(gzip.decompress(file.read_bytes()).splitlines()) - 1 for file in files) == 4


def test_several_sinks_get_the_same_batch(
    write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    written = write(
        f"console, noop, {{files: {{path: '{tmp_path}/a', format: text}}}}, "
        f"{{files: {{path: '{tmp_path}/b'}}}}"
    )
    assert [part.events for part in written] == [4, 4, 4, 4]
    shown = capfd.readouterr().err
    assert "one" in shown
    assert "\x00" not in shown


@pytest.mark.parametrize("filters", ["[]", "[parse: {format: syslog}, select: [body, ts, seq]]"])
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_each_event_is_read_once_for_all_sinks(
    write: Write, tmp_path: Path, reads: list[int], filters: str, form: str
) -> None:
    """In Arrow, in Spark SQL, and when one of the sinks needs SQL."""
    written = write(
        f"noop, {{files: {{path: '{tmp_path}/a', format: text, compression: none}}}}, "
        f"{{files: {{path: '{tmp_path}/b', format: {form}}}}}",
        filters,
    )
    assert [part.events for part in written] == [4, 4, 4]
    assert reads == [0]
    (text,) = (tmp_path / "a").glob("*.log")
    assert text.read_bytes() == b"".join(body + b"\n" for body in BODIES)


def test_batch_whose_events_are_all_dropped_makes_no_files(write: Write, tmp_path: Path) -> None:
    (written,) = write(f"files: {{path: '{tmp_path}/lake'}}", "[where: 'seq > 100']")
    assert written == Written(0)


def test_failed_batch_reports_its_cause_in_one_line(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\A.*severitee.*\Z"):
        write("noop", "[where: 'severitee > 1']")
    with pytest.raises(UnreadableError, match=r"\Apartition .* 127.0.0.1:1 does not answer.*\Z"):
        write("noop", address="127.0.0.1:1")
    with pytest.raises(UserError, match="text writes the column body"):
        write(f"files: {{path: '{tmp_path}/x', format: text}}", "[select: [ts]]")
    with pytest.raises(UserError, match="needs the column ts"):
        write(f"files: {{path: '{tmp_path}/y/%H'}}", "[select: [body]]")


def test_too_wide_batch_has_an_error_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    minutes = "sequence(timestamp'2026-01-01', timestamp'2026-01-04 00:00', interval 1 minute)"
    one = LazyBatch(spark, 1, spark.range(1), (), pa.schema([pa.field("id", pa.int64())]))
    batch = one.sql(lambda rows: rows.selectExpr(f"explode({minutes}) AS ts"))
    sink = FilesSink(Files(path=f"{tmp_path}/lake/%Y/%m/%d/%H/%M"), TASK)
    (root,) = sink.roots
    staging = f"{root}/_flumeng/{JOURNAL}.1.0"
    file_store.LOCAL.make_directory(staging)
    rows = sink.stage(batch, Attempt({root: staging})).collect()
    with pytest.raises(BatchTooWideError):
        sink.written([row.asDict() for row in rows])


def test_flows_that_share_a_job_fail_independently(spark: SparkSession, tmp_path: Path) -> None:
    """Of five batches in one job one has a sink that fails, and one a server that is away."""
    journal = Journal.create(tmp_path, JOURNAL)
    journal.append(numbered_events(0, 50))
    journal.sync()
    server = JournalServer("127.0.0.1", journals=lambda: {JOURNAL: journal})
    (tmp_path / "obstacle").write_text("a file where a directory should be")

    def work(sinks: str, address: str = server.address) -> Work:
        text = f"{{flow: web, sources: [syslog: {{listen: '127.0.0.1:0'}}], sinks: [{sinks}]}}"
        pipeline = SparkPipeline(spark, parse_flow(text), TASK, JournalReader())
        staging = {root: f"{root}/staged" for root in pipeline.roots}
        ranges = [Range(JOURNAL, 0, 50)]
        return Work(pipeline, ranges, {JOURNAL: address}, staging, 60.0, lambda _: None)

    (tmp_path / "a" / "staged").mkdir(parents=True)
    good = [work(f"noop, {{files: {{path: '{tmp_path}/a'}}}}") for _ in range(3)]
    broken = work(f"files: {{path: '{tmp_path}/obstacle/x'}}")
    away = work("noop", "127.0.0.1:1")
    assert all(each.pipeline.shareable for each in [*good, broken, away])
    outcomes = SparkEngine(spark).write([good[0], broken, good[1], away, good[2]], "job", "slot")
    for outcome in (outcomes[0], outcomes[2], outcomes[4]):
        assert isinstance(outcome, list)
        assert [part.events for part in outcome] == [50, 50]
        ((source, _),) = outcome[1].files
        assert pq.read_table(source)["seq"].to_pylist() == list(range(50))
    assert isinstance(outcomes[1], BatchFailedError)
    assert "obstacle" in str(outcomes[1])
    assert isinstance(outcomes[3], UnreadableError)
    server.stop()
    journal.close()


def test_spark_sql_takes_a_slot_of_its_own(spark: SparkSession) -> None:
    text = "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], sinks: [noop], filters: [%s]}"
    with_sql = SparkPipeline(
        spark, parse_flow(text % "select: [upper(host) AS host]"), TASK, JournalReader()
    )
    without = SparkPipeline(spark, parse_flow(text % "where: 'seq > 100'"), TASK, JournalReader())
    assert (with_sql.shareable, without.shareable) == (False, True)


@pytest.mark.parametrize("together", [1, 2])
def test_large_job_leaves_no_files_behind(
    spark: SparkSession, tmp_path: Path, together: int
) -> None:
    """Spark keeps a file of each command over 1 MB until the session ends."""
    journal = Journal.create(tmp_path, JOURNAL)
    journal.append(numbered_events(0, 50))
    journal.sync()
    server = JournalServer("127.0.0.1", journals=lambda: {JOURNAL: journal})
    addresses = {f"web.n{number}.0.00000000": server.address for number in range(50_000)}
    pipeline = SparkPipeline(
        spark,
        parse_flow("{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], sinks: [noop]}"),
        TASK,
        JournalReader(),
    )
    works = [
        Work(
            pipeline,
            [Range(JOURNAL, 0, 50)],
            {JOURNAL: server.address, **addresses},
            {},
            60.0,
            lambda _: None,
        )
        for _ in range(together)
    ]
    kept = Path(spark.sparkContext._temp_dir)
    before = sorted(kept.iterdir())
    assert SparkEngine(spark).write(works, "job", "slot") == [[Written(50)]] * together
    assert sorted(kept.iterdir()) == before
    server.stop()
    journal.close()


@pytest.mark.parametrize(
    "letters",
    [
        "elasticsearch: {hosts: ['http://127.0.0.1:1'], index: dead}",
        "sql: {url: 'postgresql://127.0.0.1:1/logs', username: flumeng, table: dead}",
        "http: {url: 'http://127.0.0.1:1/dead', idempotent: true}",
        "delta: {path: 'TMP/dead', shared: true}",
        "files: {path: 'TMP/dead', shared: true, format: json}",
    ],
)
def test_exactly_once_sinks_of_a_flow_can_take_dead_letters(
    spark: SparkSession, tmp_path: Path, letters: str
) -> None:
    """Also behind a sink that does not name the event of a row, such as files."""
    text = (
        "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], delivery: exactly-once, "
        "sinks: [files: {path: 'TMP/lake', shared: true}, "
        "elasticsearch: {hosts: ['http://127.0.0.1:1'], index: web}], dead_letters: {%s}}"
    )
    spec = parse_flow((text % letters).replace("TMP", str(tmp_path)))
    assert SparkPipeline(spark, spec, TASK, JournalReader()).shareable
