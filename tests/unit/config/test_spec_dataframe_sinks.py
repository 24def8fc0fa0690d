"""Flow files with sinks that take DataFrames, and the permissions they need of nodes."""

from __future__ import annotations

import pytest

from flumeng.config import Component, SpecError, check_flow, parse_flow, policy
from flumeng.config.guarantees import promise
from flumeng.config.policy import UNRESTRICTED
from flumeng.connectors.python.options import Python
from flumeng.connectors.spark.options import Spark
from flumeng.platform.errors import UserError

FLOW = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:0"}}]
delivery: %s
filters: [select: [ts, host]]
sinks: [%s]
"""
FUNCTION = "python: {function: 'company.sinks:store'}"
CAREFUL = "python: {function: 'company.sinks:store', idempotent: true}"
WRITER = "spark: {format: parquet, path: /lake}"


def problem(sink: str, delivery: str = "at-least-once") -> str:
    with pytest.raises(SpecError) as caught:
        check_flow(FLOW % (delivery, sink))
    (found,) = caught.value.problems
    return f"{found.path}: {found.message}"


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ("spark: {format: 'a b', path: /lake}", "expected the name of a data source"),
        ("spark: {format: parquet, path: /lake/../x}", "expected a path without .."),
        ("spark: {format: parquet, path: '/lake/%Y'}", "expected a directory without patterns"),
        ("spark: {format: parquet, path: /l, table: a.b}", "expected path or table, not both"),
        ("spark: {format: parquet, table: events}", "expected a table of a catalog"),
        ("spark: {format: csv, options: {Path: /etc}}", "the path or table in the sink's own"),
        ("spark: {format: jdbc, options: {password: x}}", "expected a reference to a secret"),
        ("spark: {format: jdbc, options: {fs.s3a.access.key: x}}", "a reference to a secret"),
        ("spark: {format: csv, path: /l, options: {fs.defaultFS: x}}", "a name without a dot"),
        ("spark: {format: ORC, path: /l, options: {a.b: x}}", "a name without a dot"),
        ("spark: {format: csv, table: default.events}", "expected a table of a catalog of yours"),
        ("spark: {format: csv, table: Spark_Catalog.a.b}", "expected a table of a catalog of"),
        ("spark: {format: csv, mode: ignore}", "expected one of append, overwrite"),
        ("spark: {format: csv, path: /l, partition_by: [hots]}", "no column hots; did you mean"),
        ("python: {function: company.sinks}", "expected a module and a function"),
        ("python: {function: 'os:system', options: {'a b': c}}", "expected the name of an arg"),
    ],
)
def test_problem_is_reported_at_its_place(sink: str, said: str) -> None:
    assert said in problem(sink)


def test_delivery_is_limited_to_that_of_these_sinks() -> None:
    for sink in (WRITER, FUNCTION):
        assert "cannot recognise events that it already has" in problem(sink, "exactly-once")
    for sink in (FUNCTION, CAREFUL):
        assert "use delivery at-least-once or exactly-once" in problem(sink, "at-most-once")
    parse_flow(FLOW % ("at-most-once", WRITER))
    said = promise(parse_flow(FLOW % ("exactly-once", CAREFUL)))
    assert "python: each event once, since it remembers the last batch that it took." in said
    said = promise(parse_flow(FLOW % ("at-least-once", FUNCTION)))
    assert said[-1].startswith("python: a repeated batch has the same number")


def test_batches_for_functions_are_decided_first() -> None:
    assert parse_flow(FLOW % ("at-least-once", FUNCTION)).by_batch
    assert parse_flow(FLOW % ("exactly-once", CAREFUL)).by_batch
    assert not parse_flow(FLOW % ("at-least-once", WRITER)).by_batch


def test_a_node_names_the_modules_and_formats_that_it_allows() -> None:
    function = Component("sink", "python", Python(function="company.sinks:store"))
    iceberg = Component("sink", "spark", Spark(format="iceberg", table="lake.web"))
    with pytest.raises(UserError, match=r"does not allow functions of company\.sinks"):
        UNRESTRICTED.require(function)
    with pytest.raises(UserError, match="does not allow the format iceberg of Spark"):
        UNRESTRICTED.require(iceberg)
    UNRESTRICTED.require(Component("sink", "spark", Spark(format="parquet", path="/lake")))
    allowed = policy.parse(
        "{python: [company.sinks], spark_formats: [iceberg, orc], outputs: [/lake]}", "node.yaml"
    )
    allowed.require(function)
    allowed.require(iceberg)
    with pytest.raises(UserError, match="does not allow functions of company"):
        allowed.require(Component("sink", "python", Python(function="company:store")))
    with pytest.raises(UserError, match="does not allow to write to /else"):
        allowed.require(Component("sink", "spark", Spark(format="orc", path="/else")))


def test_options_of_other_formats_may_have_dots() -> None:
    check_flow(FLOW % ("at-least-once", "spark: {format: jdbc, options: {a.b: x, url: u}}"))


TABLE = "{csv: /etc/apps.csv, schema: 'host STRING, team STRING'}"


@pytest.mark.parametrize(
    ("lookup", "said"),
    [
        (f"{{on: [app], table: {TABLE}}}", "no column app in the events; "),
        ("{on: [host], table: {csv: /x, schema: 'app STRING'}}", "no column host in the table"),
        ("{on: [host], table: {csv: /x, schema: 'host INT'}}", "is a string in the events and a"),
        ("{on: [host], table: {csv: /x, schema: 'host STRING'}}", "only the columns of on"),
        ("{on: [host], table: {csv: /x, schema: 'host STRING, ts DATE'}}", "a column ts already"),
        (
            "{on: [host], table: {csv: /x, schema: 'host STRING, a MAP<INT,INT>'}}",
            "cannot be a map",
        ),
        ("{on: [host], table: {schema: 'host STRING'}}", "expected one of csv, parquet"),
        ("{on: [], table: {csv: /x, schema: 'host STRING'}}", "expected at least one entry"),
        ("{on: [host], table: {csv: x.csv, schema: 'a INT'}}", "expected an absolute path"),
        (
            "{on: [host], table: {jdbc: {url: 'jdbc:h2:mem:x;INIT=RUNSCRIPT', table: t},"
            " schema: 'host STRING, a INT'}}",
            "expected a database without parameters",
        ),
        (
            "{on: [host], table: {jdbc: {url: 'jdbc:mysql://db/x', table: '(select 1) t'},"
            " schema: 'host STRING, a INT'}}",
            "expected a table, like",
        ),
        (
            "{on: [host], table: {jdbc: {url: 'jdbc:mysql://db/x', table: t, password: x},"
            " schema: 'host STRING, a INT'}}",
            "expected a reference to a secret",
        ),
        (
            "{on: [host], table: {jdbc: {url: 'jdbc:mysql://db/x', table: t,"
            " properties: {socketFactory: x}}, schema: 'host STRING, a INT'}}",
            "expected one of connectTimeout",
        ),
        (
            "{on: [host], table: {delta: 's3a://lake/t', schema: 'host STRING, a INT',"
            " credentials: {role: 'arn:aws:iam::1:role/x', ca: /ca.pem}}}",
            "ca, role: not supported for tables",
        ),
        (
            "{on: [host], table: {delta: 'abfss://lake@acme.dfs.core.windows.net/t',"
            " schema: 'host STRING, a INT', credentials: {account_key: '${secret:k}'}}}",
            "account_key: not supported for tables",
        ),
    ],
)
def test_invalid_lookup_is_reported(lookup: str, said: str) -> None:
    text = (FLOW % ("at-least-once", "noop")).replace("[select: [ts, host]", "[select: [ts, host], "
        f"lookup: {lookup}")  # fmt: skip
    with pytest.raises(SpecError) as caught:
        check_flow(text)
    assert said in str([problem.message for problem in caught.value.problems])


def test_credentials_that_table_libraries_lack_are_refused() -> None:
    role = "{role: 'arn:aws:iam::1:role/x'}"
    key = "{account_key: '${secret:k}'}"
    catalog = "catalog: {type: rest, uri: 'https://catalog.example'}"
    expected = "not supported for tables: use the collector's environment"
    assert expected in problem(f"delta: {{path: 's3a://lake/t', credentials: {role}}}")
    assert expected in problem(f"iceberg: {{table: a.b, {catalog}, credentials: {key}}}")


def test_lookup_adds_columns_and_needs_the_permission_to_read() -> None:
    text = (FLOW % ("at-least-once", "files: {path: '/lake/{team}'}")).replace(
        "filters: [", f"filters: [lookup: {{on: [host], table: {TABLE}}}, "
    )
    with pytest.raises(SpecError, match="needs the column team"):
        check_flow(text)
    spec = check_flow(text.replace("select: [ts, host]", "select: [ts, team]"))
    lookup = spec.filters[0]
    UNRESTRICTED.require(lookup)
    with pytest.raises(UserError, match=r"does not allow to read /etc/apps\.csv"):
        policy.parse("paths: [/var/log]", "node.yaml").require(lookup)
    table = "{jdbc: {url: 'jdbc:postgresql://db:5432/x', table: t}, schema: 'host STRING, a INT'}"
    lookup = check_flow(text.replace(TABLE, table).replace("{team}", "").replace("ts, host", "ts")
        ).filters[0]  # fmt: skip
    UNRESTRICTED.require(lookup)
    policy.parse("inputs: ['postgresql://db:5432/x']", "node.yaml").require(lookup)
    with pytest.raises(UserError, match="does not allow to read postgresql://db:5432/x"):
        policy.parse("inputs: ['postgresql://db:5432/y']", "node.yaml").require(lookup)
