"""`flumeng flow explain` without Spark: flows that Arrow runs whole, and hosts without Java."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from cli.main import tree
from flumeng.agent.dryrun.explanation import Explanation, _columns, explain_flow
from flumeng.agent.dryrun.planned import NoJavaError
from flumeng.config import parse_flow
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import tree as zk_tree
from flumeng.platform import secrets
from flumeng.platform.errors import UserError
from tests.testkit.command_line import NOON, Shell
from tests.testkit.store import FakeStore

ARROW = """\
flow: web
sources: [syslog: {listen: "0.0.0.0:5514"}]
filters:
  - parse: {format: syslog}
  - where: "severity <= 4"
  - redact: {columns: [app], mode: hash, secret: "${secret:names}"}
  - drop: [structured]
sinks:
  - files: {path: /lake/web}
  - kafka: {brokers: ["k:9092"], topic: web, username: u, password: "${secret:k}"}
"""
TOLD = """\
flow web: delivery at-least-once, durability disk, a batch within 60 s

          source syslog 0.0.0.0:5514, in ingest workers
            senders get no acknowledgement: data in flight when a connection or the worker fails is
              lost, unless they send it again
          journal, durability disk
            An accepted event survives a killed process and a power cut (durability disk).
arrow 1 | read the batch
        |   columns body BINARY, ts TIMESTAMP, host STRING, attrs MAP, journal STRING, seq BIGINT,
        |     replayed BOOLEAN
        | filters[0].parse syslog
        |   + facility INT, severity INT, app STRING, procid STRING, msgid STRING, structured
        |     STRING, message STRING
        | filters[1].where "severity <= 4"
        | filters[2].redact app
        | filters[3].drop structured
        |   - structured
        | sinks[0].files /lake/web
        |   at least once: a batch that is written again after a failure is there twice
        | sinks[1].kafka k:9092 web
        |   at least once: a batch that is written again after a failure is there twice

arrow    a Python function over Arrow batches, in Spark's Python workers
"""
SQL = """\
flow: web
sources: [syslog: {listen: "0.0.0.0:5514"}]
filters:
  - parse: {format: syslog}
  - sql: "SELECT host, count(*) AS n FROM events GROUP BY host"
sinks: [noop]
branches:
  - {name: many, when: "n > 9", sinks: [files: {path: /lake/many}]}
"""


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")


@pytest.fixture
def explain(tmp_path: Path) -> Callable[..., Result]:
    def run(text: str, *options: str) -> Result:
        file = tmp_path / "web.yaml"
        file.write_text(text)
        return CliRunner().invoke(tree, ["flow", "explain", str(file), *options])

    return run


def unneeded() -> Any:
    raise AssertionError("Spark was started")


def without_java() -> Any:
    raise NoJavaError("no java found")


def told(text: str, session: Callable[[], Any] = unneeded, **more: Any) -> Explanation:
    return explain_flow(parse_flow(text), session, **more)


@pytest.mark.usefixtures("no_java")
def test_flow_in_arrow_is_one_function_and_needs_neither_java_nor_secrets(
    explain: Callable[..., Result],
) -> None:
    assert explain(ARROW).output == TOLD


def test_json_has_the_documented_keys(explain: Callable[..., Result]) -> None:
    whole = json.loads(explain(ARROW, "--json").output)
    assert [*whole] == [
        "flow", "delivery", "durability", "batch_seconds", "stages", "missing", "spark_plans",
        "parts",
    ]  # fmt: skip
    (where,) = [stage for stage in whole["stages"] if stage["place"] == "filters[1].where"]
    assert [*where] == [
        "kind", "text", "place", "depth", "engine", "function", "crossings", "columns", "promise",
        "notes",
    ]  # fmt: skip
    assert (where["engine"], where["function"], where["crossings"]) == ("arrow", 1, [])
    assert where["columns"]["severity"] == "INT"
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "where-a-flow-runs.md").read_text()
    keys = page.partition("## JSON")[2]
    assert [key for key in (*whole, *where) if not re.search(rf"\b{key}\b", keys)] == []


def test_spark_sink_makes_the_other_sink_read_rows_that_spark_keeps() -> None:
    flow = told(
        'flow: web\nsources: [syslog: {listen: "0.0.0.0:5514"}]\nsinks:\n'
        "  - files: {path: /lake/web}\n"
        '  - spark: {format: parquet, path: "hdfs://n/web"}\n'
    )
    *_, files, spark = flow.stages
    assert [(it.direction, it.shared) for it in files.crossings] == [
        ("to-jvm", True),
        ("to-arrow", False),
    ]
    assert (files.engine, files.function) == ("arrow", 2)
    assert (spark.engine, spark.function, spark.crossings) == ("writer", None, ())


def test_function_of_a_user_is_shown_as_it_declares_and_not_imported() -> None:
    flow = told(
        "flow: web\nsources: [syslog: {listen: '0.0.0.0:5514'}]\nfilters:\n"
        "  - python: {function: 'nowhere.filters:score', adds: 'score DOUBLE'}\nsinks:\n"
        "  - python: {function: 'nowhere.sinks:write'}\n"
    )
    *_, score, write = flow.stages
    assert score.columns is not None and score.columns["score"] == "DOUBLE"
    assert score.notes == ("declares score DOUBLE",)
    assert write.engine == "function"
    assert [it.direction for it in write.crossings] == ["to-jvm"]


def test_lookup_runs_in_arrow_and_starts_no_spark() -> None:
    flow = told(
        "flow: web\nsources: [syslog: {listen: '0.0.0.0:5514'}]\nfilters:\n"
        "  - lookup: {table: {csv: /t.csv, schema: 'host STRING, owner STRING'}, on: [host]}\n"
        "sinks: [noop]\n"
    )
    lookup, noop = flow.stages[-2:]
    assert (lookup.engine, lookup.function, noop.function) == ("arrow", 1, 1)
    assert lookup.columns is not None and [*lookup.columns][-1] == "owner"


@pytest.mark.parametrize("extended", [False, True])
def test_without_java_the_unknown_is_said_to_be_unknown(extended: bool) -> None:
    flow = told(SQL, without_java, extended=extended)
    assert flow.missing == "no java found"
    engines = {stage.place: stage.engine for stage in flow.stages if stage.place}
    assert engines == {
        "filters[0].parse": "arrow",
        "filters[1].sql": "unknown",
        "sinks[0].noop": "unknown",
        "branches[many]": "",
        "branches[many].sinks[0].files": "unknown",
    }
    assert flow.stages[-1].columns is None
    assert flow.stages[-1].promise is not None


@pytest.mark.usefixtures("no_java")
def test_missing_java_is_named_with_its_use(explain: Callable[..., Result]) -> None:
    output = explain(SQL).output
    assert "?         filters[1].sql" in output
    assert "Java adds the parts marked ?" in " ".join(output.split())


def test_invalid_flow_has_the_sentences_of_validate(explain: Callable[..., Result]) -> None:
    result = explain(ARROW.replace("severity <=", "sevrity <="))
    validated = CliRunner().invoke(
        tree, ["flow", "validate", result.output.split("\n")[1].partition(":")[0]]
    )
    assert 'there is no column "sevrity"' in result.output
    assert (result.output, result.exit_code) == (validated.output, validated.exit_code)


def test_columns_that_a_sink_refuses_are_told_as_by_the_collector() -> None:
    text = ARROW.replace("topic: web", "topic: 'web-{attrs}'")
    with pytest.raises(UserError, match=r"^kafka: topic: expected a text, number or time"):
        told(text)


def test_isolated_parts_are_explained_as_flows_of_their_own(explain: Callable[..., Result]) -> None:
    isolated = ARROW.replace("  - kafka", "  - noop:\n    isolated: true\n  - kafka")
    whole = json.loads(explain(isolated, "--json").output)
    assert [part["flow"] for part in whole["parts"]] == ["web~noop"]
    assert "noop" not in [stage["text"] for stage in whole["stages"]]


def test_secrets_are_read_again_after_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUMENG_SECRET_NAMES", "of this host")
    told(ARROW)
    assert secrets.resolve("${secret:names}") == "of this host"


def test_name_of_a_flow_needs_a_cluster() -> None:
    result = CliRunner().invoke(tree, ["flow", "explain", "web"], env={"FLUMENG_ZK": ""})
    assert result.exit_code == 2
    assert "name the cluster of flow web with --zk or FLUMENG_ZK" in result.output


@pytest.mark.usefixtures("no_java")
def test_flow_of_the_cluster_is_explained_as_its_file(explain: Callable[..., Result]) -> None:
    store = FakeStore()
    zk_tree.init(store)
    apply_flow(Operator(store, "a", "", NOON), ARROW)
    assert Shell(store.tree).run("flow", "explain", "web").stdout == explain(ARROW).output


def test_types_outside_of_ddl_are_shown_as_they_are() -> None:
    assert _columns(pa.schema([("a", pa.null()), ("__seq", pa.int64())])) == {"a": "NULL"}
