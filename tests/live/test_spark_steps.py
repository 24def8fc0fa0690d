"""Steps beyond Arrow: tables, Spark's writers, and functions of users."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame, SparkSession

from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.outcome import BatchFailedError, Outcome
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.config import parse_flow
from flumeng.config.tables import LookupTable
from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.api.sink import BatchId
from flumeng.connectors.journals.reader import JournalReader
from flumeng.connectors.spark import sink as spark_sink
from flumeng.connectors.spark.options import Spark
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.lookup import LookupFilter, LookupStage
from flumeng.filters.options.lookup import Lookup
from flumeng.filters.refreshed_table import Version
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.user_functions import FunctionError
from tests.testkit.collector import TASK
from tests.testkit.journal import numbered_events

JOURNAL = "web.n1.0.00000000"
EVENTS = 50
MODULE = '''
"""Functions as a user writes them."""

calls = []


def keep(rows, batch_id):
    calls.append((batch_id, batch_id.series, sorted(row.seq for row in rows.collect())))


def count(rows, batch_id, *, table, password):
    seqs = rows.select("seq").distinct()
    calls.append((batch_id + 0, table, password, rows.count(), seqs.count()))


def fail(rows, batch_id):
    raise LookupError(f"no warehouse for {batch_id}\\nand more")


def misname(rows, batch_id):
    rows.select("nonsense").collect()


def read(rows, batch_id):
    rows.collect()


number = 7
'''

Run = Callable[..., Outcome]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    """Runs a batch of all events under the number 7 through sinks and filters given as YAML."""
    journal = Journal.create(tmp_path / "journal", JOURNAL)
    journal.append(numbered_events(0, EVENTS))
    journal.sync()
    server = JournalServer("127.0.0.1", journals=lambda: {JOURNAL: journal})

    def run(sinks: str, filters: str = "[]", address: str = server.address) -> Outcome:
        source = "syslog: {listen: '127.0.0.1:0'}"
        text = f"{{flow: web, sources: [{source}], filters: {filters}, sinks: [{sinks}]}}"
        pipeline = SparkPipeline(spark, parse_flow(text), TASK, JournalReader())
        staging = {root: f"{root}/staged" for root in pipeline.roots}
        for directory in staging.values():
            Path(directory).mkdir(parents=True)
        ranges = [Range(JOURNAL, 0, EVENTS)]
        number = BatchId("web.0.x", 7)
        addresses = {JOURNAL: address}
        work = Work(pipeline, ranges, addresses, staging, 60.0, lambda _: None, number, 2)
        (outcome,) = SparkEngine(spark).write([work], "job", "slot")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    yield run
    server.stop()
    journal.close()


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module of the user's."""
    name = "flumeng_test_functions"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("more", ["", ", select: ['seq', 'upper(team) AS team']"])
def test_lookup_runs_in_arrow_also_behind_and_before_sql(
    run: Run, spark: SparkSession, tmp_path: Path, more: str
) -> None:
    """Without SQL as a unit of a job, with it as a DataFrame; the table is in a broadcast."""
    (tmp_path / "teams.csv").write_text("host,team\nhost,red\nh1,red\n")
    table = f"{{csv: '{tmp_path}/teams.csv', schema: 'host STRING, team STRING'}}"
    lookup = f"lookup: {{on: [host], table: {table}}}"
    chosen = "select: ['seq', 'concat(''h'', seq % 2) AS host']"
    for number, filters in enumerate([lookup + more, f"{chosen}, {lookup}{more}"]):
        outcome = run(
            f"files: {{path: '{tmp_path}/{number}', format: json, compression: none}}",
            f"[{filters}]",
        )
        assert isinstance(outcome, list)
        sources = [source for source, _ in outcome[0].files]
        found = {row.seq: row["team"] for row in spark.read.json(sources).collect()}
        red = "RED" if more else "red"
        wanted = {seq: red if number == 0 or seq % 2 else None for seq in range(EVENTS)}
        assert found == wanted


def test_spark_keeps_the_table_versions_of_the_last_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = LookupTable(schema="app STRING, team STRING", csv=str(tmp_path / "apps.csv"))
    step = LookupFilter(Lookup(on=("app",), table=options))
    rows = spark.createDataFrame([("web",)], "app STRING")
    batch = LazyBatch(spark, 1, rows, (), pa.schema([pa.field("app", pa.string())]))
    step.apply(batch)
    (table,) = step.tables
    paths: list[Path] = []
    for team in "abcd":
        table.version = Version(pa.table({"app": ["web"], "team": [team]}))
        for number in range(2):
            found = step.apply(batch)
            stage = found.pending[-1]
            assert isinstance(stage, LookupStage)
            assert isinstance(stage.directory, Broadcast)
            assert stage.directory._path is not None
            assert [row["team"] for row in found.collect()] == [team]
            if paths:
                assert paths[-1].exists() == (number == 0), "the batch before may still use it"
            used = Path(stage.directory._path)
        paths.append(used)
    assert [path.exists() for path in paths] == [False, False, False, True]


def test_missing_table_is_waited_for(run: Run, tmp_path: Path) -> None:
    table = f"{{csv: '{tmp_path}/none.csv', schema: 'host STRING, team STRING'}}"
    with pytest.raises(
        UnavailableError, match=r"the lookup table .*none\.csv: the file does not exist"
    ):
        run("noop", f"[lookup: {{on: [host], table: {table}}}]")


def test_any_writer_of_spark_appends_the_batch(
    run: Run, spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    sink = f"spark: {{format: parquet, path: '{lake}', partition_by: [part]}}"
    chosen = "[select: [seq, body, 'seq % 2 AS part']]"
    run(sink, chosen)
    run(sink, chosen)
    found = spark.read.parquet(str(lake))
    assert sorted(row.seq for row in found.collect()) == sorted([*range(EVENTS)] * 2)
    assert sorted(path.name for path in lake.glob("part=*")) == ["part=0", "part=1"]
    assert not list((lake / "_temporary").iterdir())


def test_options_reach_the_writer_with_their_secrets(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUMENG_SECRET_SEPARATOR", "~")
    given = "{sep: '${secret:separator}', header: 'true'}"
    run(f"spark: {{format: csv, path: '{tmp_path}/x', options: {given}}}", "[select: [seq, host]]")
    (file, *_) = sorted((tmp_path / "x").glob("*.csv"))
    assert file.read_text().startswith("seq~host\n0~")


def test_batches_of_one_directory_do_not_take_files_from_each_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Eight at once, as of several tasks, and some end while others begin."""
    lake = tmp_path / "it's a lake"
    options = Spark(format="parquet", path=str(lake))

    def write(number: int) -> None:
        rows = spark.range(number * 100, (number + 1) * 100, 1, 1 + number % 3)
        spark_sink.write(options, {}, rows)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(12)))
    found = spark.read.parquet(str(lake)).collect()
    assert sorted(row.id for row in found) == list(range(1200))
    assert not list((lake / "_temporary").iterdir())


def test_missing_format_is_named(run: Run, tmp_path: Path) -> None:
    with pytest.raises(BatchFailedError, match=r"\A.*nosuch.*\Z"):
        run(f"spark: {{format: nosuch, path: '{tmp_path}/x'}}")
    with pytest.raises(BatchFailedError, match=r"(?i)\A.*csv.*map.*\Z"):
        run(f"spark: {{format: csv, path: '{tmp_path}/x'}}")


def test_function_gets_the_batch_and_its_number(run: Run, functions: str) -> None:
    run(f"python: {{function: '{functions}:keep'}}")
    assert sys.modules[functions].calls == [(7, "web.0.x", list(range(EVENTS)))]


def test_function_beside_other_sinks_gets_the_same_batch(
    run: Run, functions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUMENG_SECRET_WAREHOUSE", "hush hush")
    given = "{table: events, password: '${secret:warehouse}'}"
    outcome = run(
        f"{{python: {{function: '{functions}:count', options: {given}}}}}, noop, "
        f"{{files: {{path: '{tmp_path}/lake'}}}}"
    )
    assert isinstance(outcome, list)
    assert [written.events for written in outcome] == [0, EVENTS, EVENTS]
    assert sys.modules[functions].calls == [(7, "events", "hush hush", EVENTS, EVENTS)]


def test_error_of_a_function_is_reported_with_its_name_and_line(run: Run, functions: str) -> None:
    with pytest.raises(FunctionError) as caught:
        run(f"python: {{function: '{functions}:fail'}}")
    text = str(caught.value)
    assert text.startswith(f"python {functions}:fail raised LookupError: no warehouse for 7 and")
    assert text.endswith(f"{functions}.py)")
    with pytest.raises(BatchFailedError, match=rf"\Apython {functions}:misname: .*nonsense.*\Z"):
        run(f"python: {{function: '{functions}:misname'}}")


def test_unreadable_journal_is_not_reported_as_an_error_of_the_function(
    run: Run, functions: str
) -> None:
    with pytest.raises(UnreadableError, match=r"127\.0\.0\.1:1 does not answer"):
        run(f"python: {{function: '{functions}:read'}}", address="127.0.0.1:1")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("flumeng_test_functions:nothing", "there is no function nothing in flumeng_test_function"),
        ("flumeng_test_functions:number", "there is no function number in flumeng_test_functions"),
        ("no.such.module:f", "importing no.such.module raised ModuleNotFoundError: No module"),
    ],
)
def test_missing_function_is_an_error_of_the_flow(
    run: Run, functions: str, function: str, said: str
) -> None:
    del functions
    with pytest.raises(UserError, match=said):
        run(f"python: {{function: '{function}'}}")


def test_dataframe_sinks_cannot_take_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    text = (
        "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], sinks: [noop], "
        f"dead_letters: {{spark: {{format: parquet, path: '{tmp_path}'}}}}}}"
    )
    with pytest.raises(UserError, match="cannot take dead letters"):
        SparkPipeline(spark, parse_flow(text), TASK, JournalReader())


def test_function_for_foreach_batch_takes_the_same_dataframe(
    spark: SparkSession, tmp_path: Path, functions: str
) -> None:
    """The same function under Spark's own foreachBatch."""
    from importlib import import_module  # noqa: PLC0415  the module is made by the test

    from flumeng.connectors.python.sink import BatchNumber  # noqa: PLC0415

    del functions, tmp_path
    module = import_module("flumeng_test_functions")
    rows: DataFrame = spark.range(3).withColumnRenamed("id", "seq")
    module.keep(rows, BatchNumber(BatchId("s", 2)))
    (number, _, _) = module.calls[-1]
    assert isinstance(number, int)
    assert (number, number + 1, f"{number}", {2: "x"}[number]) == (2, 3, "2", "x")
