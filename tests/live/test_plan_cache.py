"""Batches after the first one of a flow with SQL in it run by a plan that is kept."""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.agent.collector.plan_cache import PlanCache
from flumeng.agent.collector.spark_reports import AccumulatedReports
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.journals.reader import JournalReader
from flumeng.connectors.ranged.reading import Reader
from flumeng.events import lazy_batch
from flumeng.events.lazy_batch import LazyBatch
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from tests.testkit.collector import TASK
from tests.testkit.journal import numbered_events

JOURNAL = "web.n1.0.00000000"
EVENTS = 60
LARGE = 80
"""Events of a megabyte behind those."""
TEAMS = "{{csv: '{}/teams.csv', schema: 'number BIGINT, team STRING', refresh_seconds: 1}}"

Write = Callable[..., list[Row]]


class CountedPlans(PlanCache):
    """``made`` has one entry for each prepared plan."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[object] = []

    def take(
        self, pipeline: Any, splits: int, versions: Any, prepare: Callable[[], LazyBatch]
    ) -> LazyBatch:
        def counted() -> LazyBatch:
            self.made.append(pipeline)
            return prepare()

        return super().take(pipeline, splits, versions, counted)


@pytest.fixture
def plans() -> CountedPlans:
    return CountedPlans()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[str]:
    """The address of its server."""
    journal = Journal.create(tmp_path / "journal", JOURNAL)
    journal.append(numbered_events(0, EVENTS))
    for number in range(EVENTS, EVENTS + LARGE, 20):
        large = numbered_events(number, 20)
        body = pa.array([b"x" * 1_000_000] * 20, pa.binary())
        place = large.schema.get_field_index("body")
        journal.append(large.set_column(place, large.schema.field(place), body))
    journal.sync()
    server = JournalServer("127.0.0.1", journals=lambda: {JOURNAL: journal})
    yield server.address
    server.stop()
    journal.close()


@dataclass(frozen=True)
class ReaderWithPassword(JournalReader):
    password: str = "never-shown"


def build(
    spark: SparkSession,
    tmp_path: Path,
    filters: str,
    reader: Reader | None = None,
    **plans: PlanCache,
) -> SparkPipeline:
    text = (
        "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], "
        f"filters: [{filters}], sinks: [files: {{path: '{tmp_path}/lake', format: json, "
        "compression: none}]}"
    )
    return SparkPipeline(spark, parse_flow(text), TASK, reader or JournalReader(), **plans)


@pytest.fixture
def write(spark: SparkSession, journal: str) -> Write:
    """Writes a batch of events ``start`` to ``end - 1`` and gives its rows."""
    numbers = itertools.count()

    def write(
        pipeline: SparkPipeline, start: int, end: int, *, splits: int = 2, address: str = journal
    ) -> list[Row]:
        staging = {root: f"{root}/staged{next(numbers)}" for root in pipeline.roots}
        for directory in staging.values():
            Path(directory).mkdir(parents=True)
        work = Work(
            pipeline,
            [Range(JOURNAL, start, end)],
            {JOURNAL: address},
            staging,
            60.0,
            lambda _: None,
            None,
            splits,
        )
        (outcome,) = SparkEngine(spark).write([work], "job", "slot")
        if isinstance(outcome, Exception):
            raise outcome
        sources = [source for source, _ in outcome[0].files]
        return spark.read.json(sources).collect() if sources else []

    return write


def seqs(rows: list[Row]) -> list[int]:
    return sorted(row.seq for row in rows)


@pytest.mark.parametrize(
    "filters",
    [
        "select: [seq, 'upper(host) AS host']",
        "{sql: 'SELECT seq, upper(host) AS host FROM events'}, {where: 'seq >= 0'}",
        "{sql: 'SELECT seq, host FROM events'}, {select: [seq, 'upper(host) AS host']}",
        "sql: 'SELECT seq, upper(min(host)) AS host FROM events GROUP BY seq'",
    ],
)
def test_batches_have_their_own_events_and_share_one_plan(
    spark: SparkSession, tmp_path: Path, write: Write, plans: CountedPlans, filters: str
) -> None:
    pipeline = build(spark, tmp_path, filters, plans=plans)
    for start, end in ((0, 20), (20, 22), (22, 60), (0, 60)):
        rows = write(pipeline, start, end)
        assert seqs(rows) == list(range(start, end))
        assert {row.host for row in rows} == {"HOST"}
    assert len(plans.made) == 1
    assert seqs(write(pipeline, 5, 25, splits=3)) == list(range(5, 25))
    assert len(plans.made) == 2


def test_statement_that_moves_no_row_is_planned_once(
    spark: SparkSession, tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of such a statement are broadcast once, too. The files of each batch go elsewhere."""
    planned: list[pa.Schema] = []
    rows = AccumulatedReports.rows

    def noting(self: AccumulatedReports, source: Any, stage: Any, schema: pa.Schema) -> Any:
        planned.append(schema)
        return rows(self, source, stage, schema)

    monkeypatch.setattr(AccumulatedReports, "rows", noting)
    pipeline = build(spark, tmp_path, "sql: 'SELECT seq FROM events WHERE seq % 2 = 0'")
    write(pipeline, 0, 20)
    once = len(planned)
    for start, end in ((20, 40), (0, 60)):
        assert seqs(write(pipeline, start, end)) == list(range(start, end, 2))
    assert len(planned) == once


def test_job_properties_do_not_contain_the_readers_credentials(
    spark: SparkSession, tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark shows the properties of jobs on its pages and in its event logs."""
    shown: list[bytes] = []
    dumps = pickle.dumps

    def keep(given: object) -> bytes:
        shown.append(dumps(given))
        return shown[-1]

    monkeypatch.setattr(lazy_batch, "pickle", SimpleNamespace(loads=pickle.loads, dumps=keep))
    pipeline = build(spark, tmp_path, "select: [seq, 'upper(host) AS host']", ReaderWithPassword())
    assert seqs(write(pipeline, 0, 20)) == list(range(20))
    (given,) = shown
    assert JOURNAL.encode() in given
    assert b"never-shown" not in given


@pytest.mark.parametrize(
    "query",
    [
        "SELECT seq FROM events WHERE seq IN (SELECT max(seq) AS last FROM events)",
        "SELECT max(seq) AS seq FROM events",
        "SELECT seq FROM (SELECT seq, row_number() OVER (ORDER BY seq DESC) AS n FROM events) "
        "AS numbered WHERE n = 1",
    ],
)
def test_result_of_a_statement_is_not_reused_by_the_next_batch(
    spark: SparkSession, tmp_path: Path, write: Write, query: str
) -> None:
    pipeline = build(spark, tmp_path, f"sql: '{query}'")
    found = [seqs(write(pipeline, *ends)) for ends in ((0, 20), (20, 40), (5, 9))]
    assert found == [[19], [39], [8]]


def test_existence_subquery_is_computed_for_each_batch(
    spark: SparkSession, tmp_path: Path, write: Write
) -> None:
    """Spark computes that before all else, and its answer is in the plan."""
    query = "SELECT seq FROM events WHERE EXISTS (SELECT 1 AS one FROM events WHERE seq = 25)"
    pipeline = build(spark, tmp_path, f"sql: '{query}'")
    found = [seqs(write(pipeline, *ends)) for ends in ((0, 20), (20, 40), (5, 9))]
    assert found == [[], list(range(20, 40)), []]


def test_refreshed_table_is_used_by_the_next_batch(
    spark: SparkSession, tmp_path: Path, write: Write, plans: CountedPlans
) -> None:
    teams = tmp_path / "teams.csv"
    query = "SELECT e.seq, t.team FROM events e JOIN teams t ON e.seq % 2 = t.number"
    pipeline = build(
        spark,
        tmp_path,
        f"sql: {{query: '{query}', tables: {{teams: {TEAMS.format(tmp_path)}}}}}",
        plans=plans,
    )
    for turn, team in enumerate(("red", "blue", "blue")):
        teams.write_text(f"number,team\n0,{team}\n")
        time.sleep(1.1)
        rows = write(pipeline, 10, 20)
        assert {row.team for row in rows} == {team}
        assert seqs(rows) == [10, 12, 14, 16, 18]
        assert len(plans.made) == min(turn, 1) + 1


@pytest.mark.parametrize(
    ("filters", "step"),
    [("sql: 'SELECT seq FROM events WHERE seq % 2 = 0'", 2), ("select: [seq]", 1)],
    ids=["sql", "arrow"],
)
def test_flows_with_the_same_text_do_not_share_results(
    spark: SparkSession, tmp_path: Path, write: Write, filters: str, step: int
) -> None:
    """Flows without SQL all run by one plan, at the same time."""
    pipelines = [build(spark, tmp_path, filters) for _ in range(3)]
    found: dict[int, list[list[int]]] = {}

    def work(number: int) -> None:
        begin = number * 20
        found[number] = [seqs(write(pipelines[number], begin, begin + 20)) for _ in range(4)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [list(range(n * 20, n * 20 + 20, step))] * 4 for n in range(3)}


def test_batch_after_a_failure_is_planned_again(
    spark: SparkSession, tmp_path: Path, write: Write, plans: CountedPlans
) -> None:
    pipeline = build(spark, tmp_path, "sql: 'SELECT seq FROM events'", plans=plans)
    write(pipeline, 0, 10)
    with pytest.raises(UnreadableError):
        write(pipeline, 10, 20, address="127.0.0.1:1")
    assert seqs(write(pipeline, 10, 20)) == list(range(10, 20))
    assert len(plans.made) == 2


@pytest.mark.long
def test_large_events_go_through_spark_in_small_batches(
    spark: SparkSession, tmp_path: Path, write: Write, plans: CountedPlans
) -> None:
    query = "sql: 'SELECT seq, length(body) AS bytes, body FROM events'"
    pipeline = build(spark, tmp_path, query, plans=plans)
    assert seqs(write(pipeline, 0, EVENTS)) == list(range(EVENTS))
    rows = write(pipeline, EVENTS, EVENTS + LARGE, splits=1)
    assert [(row.seq, row.bytes) for row in sorted(rows)] == [
        (seq, 1_000_000) for seq in range(EVENTS, EVENTS + LARGE)
    ]
    assert len(plans.made) == 3, "it is planned anew, and the batch has not failed"
    assert seqs(write(pipeline, 0, EVENTS)) == list(range(EVENTS))
