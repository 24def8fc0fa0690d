"""Statements in a real Spark: it runs accepted ones, and rejected ones read nothing forbidden."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr, spark_partition_id
from pyspark.sql.pandas.types import from_arrow_schema

from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.config import parse_flow, sql_generator, sql_text, statements
from flumeng.config.column_kinds import EVENT
from flumeng.config.expressions import columns_of_ddl
from flumeng.config.tables import LookupTable
from flumeng.connectors.journals.reader import JournalReader
from flumeng.events import identity
from flumeng.events.lazy_batch import LazyBatch
from flumeng.events.schema import READ_SCHEMA
from flumeng.filters.options.parse import SYSLOG
from flumeng.filters.options.sql import Sql
from flumeng.filters.sql import SqlFilter
from flumeng.platform.errors import UserError
from tests.testkit.collector import TASK
from tests.testkit.expressions import STATEMENTS, TABLES

EVENTS = 40
SCHEMA = identity.with_identity(READ_SCHEMA)
WHOLE = pa.schema(
    [
        *READ_SCHEMA,
        *(
            pa.field(name, pa.int32() if kind.name == "integer" else pa.string())
            for name, kind in SYSLOG.items()
        ),
    ]
)
APPS = [("a0", "web", "p0", 1), ("a1", "web", None, 7), ("a2", "ops", "p2", 8)]
HOSTS = [("h0", 7), ("h1", 8), ("h9", 9), (None, 1)]
MORE_STATEMENTS = (
    "SELECT seq FROM events UNION SELECT rack FROM hosts INTERSECT SELECT rank FROM apps",
    "SELECT host FROM events EXCEPT ALL SELECT host FROM hosts UNION ALL SELECT app FROM apps",
    "SELECT host FROM events MINUS SELECT host FROM hosts",
    "SELECT host, seq FROM events UNION ALL SELECT host, rack FROM hosts ORDER BY 2 DESC, 1 LIMIT "
    "5",
    "SELECT seq FROM events ORDER BY severity NULLS LAST, seq DESC NULLS FIRST LIMIT 7 OFFSET 2",
    "SELECT e.seq, h.rack FROM events e FULL JOIN hosts h USING (host)",
    "SELECT e.seq FROM hosts h RIGHT OUTER JOIN events e ON e.host = h.host AND e.severity < 4",
    "SELECT h.host FROM hosts h SEMI JOIN events e ON e.host = h.host",
    "SELECT seq FROM events WHERE host NOT IN (SELECT host FROM hosts WHERE host IS NOT NULL)",
    "SELECT host, sum(seq) OVER (PARTITION BY host ORDER BY seq RANGE BETWEEN UNBOUNDED PRECEDING "
    "AND CURRENT ROW) AS s, min(seq) OVER (ORDER BY seq ROWS 2 PRECEDING) AS m FROM events",
    "WITH events AS (SELECT host, count(*) AS n FROM events GROUP BY host) SELECT * FROM events",
    "SELECT severity = 1 = true AS a, NOT severity = 1 AS b, -severity % 2 AS c FROM events",
    "SELECT seq - -1 - 2 AS a, severity IS NOT DISTINCT FROM 1 AS b, r'a\b' AS c FROM events",
    "SELECT CASE severity WHEN 1 THEN 'x' WHEN -2147483648 THEN '{y}' END AS `{c}` FROM events",
)


def produce(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """EVENTS in each split, of the hosts h0, h1 and h2."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            seqs = range(number * EVENTS, (number + 1) * EVENTS)
            rows = pa.RecordBatch.from_pydict(
                {
                    "body": [b"%d" % seq for seq in seqs],
                    "ts": list(seqs),
                    "host": [f"h{seq % 3}" for seq in seqs],
                    "attrs": [[("source", "test")]] * EVENTS,
                    "journal": ["j"] * EVENTS,
                    "seq": list(seqs),
                    "replayed": [False] * EVENTS,
                },
                schema=READ_SCHEMA,
            )
            yield identity.identify(rows, number)


@pytest.fixture
def racks(tmp_path: Path) -> LookupTable:
    path = tmp_path / "racks.csv"
    path.write_text("host,rack\nh0,7\nh1,8\nh9,9\n")
    return LookupTable(schema="host STRING, rack INT", csv=str(path))


def wide(spark: SparkSession) -> DataFrame:
    """Return events with the columns of syslog, some null, and with their identity."""
    rows = LazyBatch.of_splits(spark, 2, produce, SCHEMA).rows()
    kinds = ((name, "INT" if kind.name == "integer" else "STRING") for name, kind in SYSLOG.items())
    made = {name: expr(f"CAST(nullif(seq % 7, 6) AS {kind})") for name, kind in kinds}
    return rows.withColumns({**made, "app": expr("concat('a', seq % 4)")})


def run(spark: SparkSession, query: str, **tables: LookupTable) -> tuple[LazyBatch, list[Any]]:
    step = SqlFilter(Sql(query, tables))
    batch = LazyBatch.of_splits(spark, 2, produce, SCHEMA)
    step.apply(batch)
    for table in step.tables:
        table.refresh()
    found = step.apply(batch)
    return found, [row.asDict() for row in found.rows().collect()]


def test_generated_statement_gives_the_same_in_spark(spark: SparkSession) -> None:
    apart = spark.newSession()
    apart.conf.set("spark.sql.shuffle.partitions", 1)
    views = {"events": wide(apart), "apps": APPS, "hosts": HOSTS}
    for name, rows in views.items():
        given = rows if isinstance(rows, DataFrame) else apart.createDataFrame(rows, TABLES[name])
        given.createOrReplaceTempView(name)
    names = {name: name for name in views}
    for text in [*STATEMENTS, *MORE_STATEMENTS]:
        tree = sql_text.parse_query(text)
        expected = apart.sql(text)
        found = apart.sql(sql_generator.statement(tree, names).format(**names))
        assert found.schema == expected.schema, text
        if tree.args.get("with_") is None:
            assert found.sameSemantics(expected), text
        else:  # whose parts have other numbers in each plan
            assert sorted(map(str, found.collect())) == sorted(map(str, expected.collect())), text


def test_statement_gives_the_columns_that_the_check_predicts(spark: SparkSession) -> None:
    names = {"string": "string", "boolean": "boolean", "integer": "bigint int", "map": "map"}
    kinds = {name: columns_of_ddl(ddl) for name, ddl in TABLES.items()}
    for text in STATEMENTS:
        tables = {name: LookupTable(schema=ddl, csv="/none") for name, ddl in TABLES.items()}
        told = statements.check(text, {**EVENT, **SYSLOG}, kinds)
        events = WHOLE
        if "__seq" in text:
            events = pa.schema([*WHOLE, *(SCHEMA.field(name) for name in identity.COLUMNS)])
        found = SqlFilter(Sql(text, tables)).apply(LazyBatch.of_splits(spark, 1, produce, events))
        given = from_arrow_schema(identity.without(found.schema), prefer_timestamp_ntz=False)
        assert [field.name for field in given] == list(told), text
        for field in given:
            wanted = names.get(told[field.name].name)
            assert wanted is None or field.dataType.typeName().replace("integer", "int") in (
                wanted.replace("bigint", "long").split()
            ), (text, field)


def test_events_are_joined_in_place_and_only_used_columns_are_read(
    spark: SparkSession, racks: LookupTable, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "SELECT e.seq, r.rack FROM events e LEFT JOIN racks r ON e.host = r.host"
    batch, rows = run(spark, query, racks=racks)
    wanted = [{"seq": seq, "rack": {0: 7, 1: 8}.get(seq % 3)} for seq in range(2 * EVENTS)]
    assert sorted(rows, key=lambda row: row["seq"]) == wanted
    assert not batch.shuffled
    assert batch.source is not None
    batch.source.explain("extended")
    plan = capsys.readouterr().out
    assert "BroadcastHashJoin" in plan
    assert "body" not in plan.partition("== Physical Plan ==")[2]
    assert spark.catalog.listTables() == []


@pytest.mark.parametrize(
    ("query", "shuffled", "rows"),
    [
        ("SELECT host, count(*) AS n, max(seq) AS last FROM events GROUP BY host", True, 3),
        ("SELECT * FROM events WHERE host IN (SELECT host FROM racks)", False, 54),
        ("SELECT host FROM events WHERE journal IS NOT NULL AND NOT replayed", False, 80),
        ("SELECT r.rack, e.seq FROM racks r LEFT JOIN events e ON r.host = e.host", True, 55),
        ("SELECT host FROM events UNION ALL SELECT host FROM events", True, 160),
        ("WITH t AS (SELECT host, ts FROM events) SELECT host FROM t", False, 80),
        ("SELECT a.seq FROM events a JOIN events b ON a.seq = b.seq", True, 80),
        ("SELECT rank() OVER (PARTITION BY host ORDER BY seq) AS r FROM events", True, 80),
        ("SELECT DISTINCT host FROM events", True, 3),
        ("SELECT seq FROM events LIMIT 5", True, 5),
    ],
)
def test_statement_that_takes_rows_out_of_their_splits_is_detected(
    spark: SparkSession, racks: LookupTable, query: str, shuffled: bool, rows: int
) -> None:
    batch, found = run(spark, query, racks=racks)
    assert (batch.shuffled, len(found)) == (shuffled, rows)
    assert spark.catalog.listTables() == []


def test_statements_of_many_flows_do_not_see_tables_of_each_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    """All call theirs alike."""

    def one(number: int) -> set[int]:
        path = tmp_path / f"{number}.csv"
        path.write_text(f"host,rack\nh0,{number}\nh1,{number}\nh2,{number}\n")
        table = LookupTable(schema="host STRING, rack INT", csv=str(path))
        query = "SELECT t.rack FROM events e JOIN t ON e.host = t.host"
        return {row["rack"] for row in run(spark, query, t=table)[1]}

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(8))) == [{number} for number in range(8)]


IN_PLACE = (
    "SELECT e.__split FROM events e WHERE e.seq > 3",
    "SELECT e.__split, t.rack FROM events e JOIN t ON e.host = t.host",
    "SELECT e.__split, t.rack FROM events e LEFT JOIN t USING (host)",
    "SELECT e.__split FROM events e LEFT ANTI JOIN t ON e.host = t.host",
    "SELECT e.__split FROM t RIGHT JOIN events e ON e.host = t.host",
    "SELECT e.__split FROM t JOIN events e ON e.host = t.host",
    "SELECT e.__split, x.n FROM events e JOIN (SELECT host, count(*) AS n FROM t GROUP BY host "
    "ORDER BY n LIMIT 9) x ON e.host = x.host",
    "WITH e AS (SELECT * FROM events) SELECT e.__split FROM e JOIN t ON e.host = t.host",
    "SELECT __split FROM events WHERE host IN (SELECT host FROM t)",
    "SELECT __split FROM events WHERE host NOT IN (SELECT host FROM t) OR seq = 1",
    "SELECT __split FROM events WHERE EXISTS (SELECT host FROM t)",
)


@pytest.mark.parametrize("query", IN_PLACE)
def test_rows_that_stay_in_place_are_in_the_partition_of_their_split(
    spark: SparkSession, racks: LookupTable, query: str
) -> None:
    batch, _ = run(spark, query, t=racks)
    assert not batch.shuffled
    rows = batch.rows().select("__split", spark_partition_id()).distinct().collect()
    assert sorted(map(tuple, rows)) == [(0, 0), (1, 1)]


def test_table_is_joined_in_each_session_that_uses_it(
    spark: SparkSession, racks: LookupTable
) -> None:
    """As when a flow changes to the session for large rows."""
    query = "SELECT t.rack FROM events e JOIN t ON e.host = t.host"
    step = SqlFilter(Sql(query, {"t": racks}))
    for session in (spark, spark.newSession()):
        batch = LazyBatch.of_splits(session, 2, produce, SCHEMA)
        step.apply(batch)
        step.tables[0].refresh()
        assert step.apply(batch).rows().count() == 54


def test_statement_over_cached_events_keeps_them_cached(spark: SparkSession) -> None:
    batch = LazyBatch.of_splits(spark, 2, produce, SCHEMA).cached()
    found = SqlFilter(Sql("SELECT * FROM events", {})).apply(batch)
    assert batch.source is not None
    assert batch.source.storageLevel.useMemory
    assert found.rows().count() == 2 * EVENTS
    batch.release()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT host,\n  count(*) AS n FROM events", r"sql: \[MISSING_GROUP_BY\]"),
        (
            "SELECT seq,\n  percentile_approx(seq, 2.0) AS p\nFROM events GROUP BY seq",
            r"sql: \[DATATYPE_MISMATCH.*\(line 2, column 3 of 'SELECT seq",
        ),
    ],
)
def test_error_of_the_analysis_has_its_place_in_the_given_text(
    spark: SparkSession, query: str, said: str
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        run(spark, query)
    assert "_pyspark_" not in str(caught.value)


FLOW = """
{flow: web, sources: [syslog: {listen: "127.0.0.1:0"}], delivery: %s, filters: [sql: "%s"],
 sinks: [%s]}
"""
POSTGRES = "sql: {url: 'postgresql://127.0.0.1:1/logs', username: flumeng, table: events}"
SEARCH = "elasticsearch: {hosts: ['http://127.0.0.1:1'], index: web}"


@pytest.mark.parametrize(
    ("delivery", "query", "sink", "said"),
    [
        ("exactly-once", "SELECT e.* FROM events e", POSTGRES, None),
        ("exactly-once", "SELECT host, __journal, __seq, __split FROM events", SEARCH, None),
        ("at-least-once", "SELECT host, __seq FROM events", "noop", None),
        ("at-least-once", "SELECT DISTINCT host FROM events", "noop", None),
        ("exactly-once", "SELECT host FROM events", SEARCH, "elasticsearch needs the event"),
        (
            "exactly-once",
            "SELECT host, __seq FROM events",
            SEARCH,
            r"select \*, or e\.\*, or also __journal",
        ),
        ("at-least-once", "SELECT host FROM events", POSTGRES, "sql needs the event of each row"),
        (
            "exactly-once",
            "SELECT *, rank() OVER (PARTITION BY host ORDER BY seq) AS r FROM events",
            POSTGRES,
            "sql writes each split of a batch under its own number",
        ),
        (
            "exactly-once",
            "SELECT *, rank() OVER (PARTITION BY host ORDER BY seq) AS r FROM events",
            SEARCH,
            None,
        ),
        ("at-least-once", "SELECT nothing FROM events", "noop", "nothing"),
    ],
)
def test_sink_that_needs_event_identity_gets_it_or_the_flow_is_refused(
    spark: SparkSession, delivery: str, query: str, sink: str, said: str | None
) -> None:
    spec = parse_flow(FLOW % (delivery, query, sink))
    if said is None:
        SparkPipeline(spark, spec, TASK, JournalReader())
        return
    with pytest.raises(Exception, match=said):
        SparkPipeline(spark, spec, TASK, JournalReader())
