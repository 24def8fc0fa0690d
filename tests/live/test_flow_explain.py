"""`flumeng flow explain` for flows that need Spark: the text as an operator reads it, Spark's own
plans, costs, and that it tells of the same plan as the collector's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cli.flow_explain import lines_of
from console_page import Bash, agrees, examples
from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.agent.dryrun import crossing_cost
from flumeng.agent.dryrun.explanation import Explanation, explain_flow
from flumeng.agent.dryrun.received_lines import ReceivedLines
from flumeng.config import check_flow
from flumeng.connectors.api.framing import Messages
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import TaskRevision
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import UserError
from tests.live.one_host import FLUMENG

pytestmark = pytest.mark.slow

TOP = Path(__file__).parents[2]

JOIN = """\
flow: orders
sources: [http: {listen: "0.0.0.0:8088"}]
delivery: exactly-once
filters:
  - parse: {format: json, schema: "order STRING, customer STRING, cents BIGINT"}
    on_error: drop
  - sql:
      query: >-
        SELECT e.order, e.cents, c.country
        FROM events e LEFT JOIN customers c ON e.customer = c.customer
      tables: {customers: {csv: /srv/customers.csv, schema: "customer STRING, country STRING"}}
  - where: "length(country) = 2"
  - where: "cents > 0"
sinks:
  - files: {path: /lake/orders}
"""
JOIN_TOLD = """\
flow orders: delivery exactly-once, durability disk, a batch within 60 s

          source http 0.0.0.0:8088, in ingest workers
            senders that retry until they are answered 200 lose nothing; a retry may duplicate
              events
          journal, durability disk
            An accepted event survives a killed process and a power cut (durability disk).
arrow 1 | read the batch
        |   columns body BINARY, ts TIMESTAMP, host STRING, attrs MAP, journal STRING, seq BIGINT,
        |     replayed BOOLEAN
        | filters[0].parse json on_error drop
        |   + order STRING, customer STRING, cents BIGINT
========= Arrow -> JVM: 3 columns (order, customer, cents)
spark     filters[1].sql "SELECT e.order, e.cents, c.country FROM events e LEFT JOIN customers...
            columns order STRING, cents BIGINT, country STRING
          filters[2].where "length(country) = 2"
========= JVM -> Arrow: all 3 columns
arrow 2 | filters[3].where "cents > 0"
        | sinks[0].files /lake/orders
        |   exactly once, staged: its files show together with the acks

arrow    a Python function over Arrow batches, in Spark's Python workers
spark    Spark SQL (Catalyst), in the JVM
"""
BRANCHES = """\
flow: apps
sources: [syslog: {listen: "0.0.0.0:5514"}]
filters:
  - parse: {format: syslog}
    on_error: dead-letter
branches:
  - name: errors
    when: "severity <= 3"
    filters: [select: [ts, host, app, "upper(message) AS message"]]
    sinks: [spark: {format: parquet, path: "hdfs://n/errors"}]
  - name: audit
    when: "app = 'sudo'"
    sinks: [elasticsearch: {hosts: ["http://es:9200"], index: audit}]
  - name: rest
    otherwise: true
    sinks: [files: {path: /lake/rest}]
dead_letters: {files: {path: /lake/dead, format: json}}
"""
BRANCHES_TOLD = """\
flow apps: delivery at-least-once, durability disk, a batch within 60 s

          source syslog 0.0.0.0:5514, in ingest workers
            senders get no acknowledgement: data in flight when a connection or the worker fails is
              lost, unless they send it again
          journal, durability disk
            An accepted event survives a killed process and a power cut (durability disk).
arrow 1 | read the batch
        |   columns body BINARY, ts TIMESTAMP, host STRING, attrs MAP, journal STRING, seq BIGINT,
        |     replayed BOOLEAN
        | filters[0].parse syslog on_error dead-letter
        |   + facility INT, severity INT, app STRING, procid STRING, msgid STRING, structured
        |     STRING, message STRING
========= Arrow -> JVM, kept there for all outputs below: all 14 columns
========= JVM -> Arrow: all 14 columns
========= Arrow -> JVM, kept there for all outputs below: all 14 columns
          branch errors when "severity <= 3"
=========   JVM -> Arrow: all 14 columns
=========   Arrow -> JVM: all 14 columns
spark       filters[0].select ts, host, app, "upper(message) AS message"
              columns ts TIMESTAMP, host STRING, app STRING, message STRING
=========   JVM -> Arrow: all 4 columns
=========   Arrow -> JVM: all 4 columns
writer      sinks[0].spark parquet
              at least once: a batch that is written again after a failure is there twice
          branch audit when "app = 'sudo'"
=========   JVM -> Arrow: all 14 columns
arrow 2 |   sinks[0].elasticsearch http://es:9200 audit
        |     exactly once, by event: an event that is written again replaces itself
          branch rest otherwise
arrow 2 |   sinks[0].files /lake/rest
        |     at least once: a batch that is written again after a failure is there twice
arrow 3 | dead letters into files /lake/dead
        |   at least once: a batch that is written again after a failure is there twice
        |   events that filters cannot process; events that sinks refuse, written where they refuse
        |     them

arrow    a Python function over Arrow batches, in Spark's Python workers
spark    Spark SQL (Catalyst), in the JVM
writer   Spark's own writer, in the JVM
======== into Arrow and back: to count, mark or pick events, or drop hidden columns
"""


def explained(text: str, spark: SparkSession, **more: object) -> Explanation:
    return explain_flow(check_flow(text), lambda: spark, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "told"), [(JOIN, JOIN_TOLD), (BRANCHES, BRANCHES_TOLD)], ids=["join", "branches"]
)
def test_flow_is_told_as_written(spark: SparkSession, text: str, told: str) -> None:
    assert "\n".join(lines_of(explained(text, spark), 100)) + "\n" == told


class NoEvents:
    schema = READ_SCHEMA
    modules: frozenset[str] = frozenset()

    def read(self, _piece: Range, _address: str) -> Iterator[pa.RecordBatch]:
        return iter(())


def operators(plan: str) -> list[str]:
    """The names of a plan's operators; the collector's scan of what it keeps is only a crossing."""
    tree = plan.partition("\n\n")[0]
    return re.findall(r"\b(MapInArrow|Filter|Project|InMemoryTableScan|BroadcastHashJoin)\b", tree)


@pytest.mark.parametrize("text", [JOIN, JOIN.replace("length(country) = 2", "cents < 9")])
def test_plan_is_the_one_that_the_collector_runs(spark: SparkSession, text: str) -> None:
    plans = explained(text, spark, extended=True).spark_plans
    pipeline = SparkPipeline(spark, check_flow(text), TaskRevision("orders", "0", 1), NoEvents())
    pipeline._prepares = False  # else Spark shows a prepared plan as the scan of an RDD
    own = pipeline._plan(pipeline._read(((),), {}), ((),), Work.trial(pipeline))
    try:
        (run,) = own.runs
        assert [operators(plan) for plan in plans.values()] == [
            operators(crossing_cost.spark_plan(run.batch.rows()))
        ]
    finally:
        own.release()


def test_crossings_are_measured_with_events_of_the_flow_or_generated_ones(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossing_cost, "ROWS", 8192)
    events = ReceivedLines(check_flow(JOIN)).events(Messages(b'{"order": "a", "cents": 1}\n'))
    whole = explained(JOIN, spark, extended=True, events=events)
    crossings = [crossing for stage in whole.stages for crossing in stage.crossings]
    assert [crossing.direction for crossing in crossings] == ["to-jvm", "to-arrow"]
    assert [crossing.cost and crossing.cost.events for crossing in crossings] == [
        "cases",
        "generated",
    ]
    assert all(it.cost and it.cost.rows_per_second > 100 for it in crossings)
    assert whole.spark_plans.keys() == {"sinks[0].files"}


def test_refused_statement_has_the_place_and_the_message_of_spark(spark: SparkSession) -> None:
    grouped = JOIN.replace("= c.customer\n", "= c.customer GROUP BY e.order\n")
    with pytest.raises(UserError, match=r"^filters\[1\]\.sql: \[MISSING_AGG.*Add the columns"):
        explained(grouped, spark)
    counted = JOIN.replace("e.order, e.cents", "e.order, count(*) AS cents")
    with pytest.raises(
        UserError, match=r"^filters\[1\]\.sql: \[MISSING_GROUP_BY\] .*OVER clauses\.$"
    ):
        explained(counted, spark)


def test_the_page_shows_what_the_examples_print(tmp_path: Path) -> None:
    page = (TOP / "docs" / "how-to" / "where-a-flow-runs.md").read_text()
    path = f"{FLUMENG.parent}:{os.environ['PATH']}"
    shell = Bash(TOP, os.environ | {"PATH": path})
    try:
        for example in examples(page.replace("/tmp/flow.yaml", str(tmp_path / "flow.yaml"))):
            printed = shell.run(example.command, 240.0)
            assert agrees(example.expected, printed), f"line {example.line}:\n{printed}"
    finally:
        shell.end()
