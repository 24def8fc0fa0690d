"""Expressions that a flow may have: accepted ones run, and functions that are not listed are
refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from flumeng.config import SpecError, check_flow, expressions, sql_patterns
from flumeng.config.column_kinds import EVENT
from flumeng.config.functions import FUNCTIONS
from flumeng.filters.formats import syslog
from flumeng.filters.options.parse import SYSLOG
from tests.testkit.expressions import ATTEMPTS, CONDITIONS

COLUMNS = {**EVENT, **SYSLOG}
FLOW = "flow: a\nsources: [syslog: {listen: 'x:1'}]\nfilters:\n%s\nsinks: [%s]\n"


def problem(filters: str, sinks: str = "noop") -> str:
    with pytest.raises(SpecError) as caught:
        check_flow(FLOW % (filters, sinks))
    return str(caught.value)


@pytest.mark.parametrize("text", CONDITIONS)
def test_usual_conditions_are_accepted(text: str) -> None:
    expressions.check_condition(text, COLUMNS)


@pytest.mark.slow
@pytest.mark.parametrize(("text", "said"), [(text, said) for _, text, said in ATTEMPTS])
def test_expression_cannot_read_anything_outside_of_its_event(text: str, said: str) -> None:
    """As a condition and as a column."""
    for check in (expressions.check_condition, expressions.chosen):
        with pytest.raises(ValueError, match=re.escape(said)):
            check(text, COLUMNS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected an expression"),
        ("severity", "expected a condition, but the expression is a integer"),
        ("severty < 4", 'no column "severty"; did you mean "severity"?'),
        ("severity <=", "not an expression in Spark SQL"),
        ("'a", "not SQL"),
        ("upper(app, app) = 'x'", "takes 1 arguments, not 2"),
        ("upper(attrs) = 'x'", "argument 1 of upper cannot be a map"),
        ("ts = 1", "cannot compare a timestamp with a integer"),
        ("app in ()", "not allowed in expressions"),
        ("case when app then true end", "expected a boolean, but app is a string"),
        ("seq < 1L", ":: is not allowed"),
        ("seq < 1e400", "at most 18 digits"),
        ("ts > timestamp'2020-13-01'", "expected DATE or TIMESTAMP before"),
        ("int'4' = 4", "expected DATE or TIMESTAMP before"),
        ("cast(app as int4) = 1", "int4 is no type of Spark"),
        ("app not null", "use IS NOT NULL"),
        ("app isnull", "use IS NULL"),
        ("severity = not true", "put this in parentheses"),
        ("replayed = severity < 3", "put this in parentheses: severity < 3"),
        ("app = 'a' 'b'", "two texts follow each other"),
        ("app like 'a\\\\b'", "after each \\"),
        ("app like host", "constant pattern"),
        ("app rlike '('", "a group is not closed"),
        ("regexp_extract(app, 'a', 1) = ''", "no group 1"),
        ("regexp_replace(app, '(a)', '$2') = ''", "no group $2"),
        ("split_part(app, ',', 0) = ''", "a number other than 0"),
        ("date_format(ts, 'foo') = ''", "expected a time pattern"),
        ("coalesce(app, seq) = 'x'", "values of one kind, not string and integer"),
        ("`from x` = 'a'", "there is no column"),
    ],
)
def test_condition_that_spark_would_refuse_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        expressions.check_condition(text, COLUMNS)


@pytest.mark.parametrize(
    "text",
    [r"^(\S+) (\S+) \[([^\]]+)\]", r"(\d{1,3}\.){3}\d{1,3}", "(?i)foo|bar", "^(?:GET|POST) ", ""],
)
def test_bounded_regular_expressions_are_accepted(text: str) -> None:
    sql_patterns.check(text)


@pytest.mark.parametrize(
    "text",
    [
        "(a+)+b",
        "(a|aa)*b",
        "(a?){100}",
        "(x+x+)+y",
        "(.*,){11}P",
        "((a{2,3}){2,3}){2,9}",
        "a{1,2000}",
    ],
)
def test_possibly_endless_regular_expressions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"repe|too many ways"):
        sql_patterns.check(text)


@pytest.mark.parametrize(
    "text", ["a{,5}", "(?=x)", "(?P<a>x)", "[[]a]", r"\p{L}", "[a&&b]", r"\1(a)"]
)
def test_regular_expression_with_another_meaning_in_java_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"regular expression|bad escape|no &&"):
        sql_patterns.check(text)


def test_columns_are_checked_from_filter_to_filter() -> None:
    select = "  - parse: {format: syslog}\n  - select: [ts, 'upper(app) AS app']\n"
    check_flow(FLOW % (select + "  - where: \"app = 'X'\"", "files: {path: '/a/%Y'}"))
    assert problem(select + "  - where: severity < 4") == (
        'line 6: filters[2].where: there is no column "severity"; known here: ts, app'
    )
    assert "filters[0].select[1]: there is a column HOST already" in problem(
        "  - select: [host, 'seq AS HOST']"
    )
    assert "line 6: filters[0].select[1]: NULL has no type" in problem(
        "  - select:\n    - host\n    - NULL AS x"
    )


def test_value_cannot_grow_without_end_through_several_filters() -> None:
    doubled = "  - select: ['concat(host, host) AS host']\n"
    check_flow(FLOW % (doubled * 6, "noop"))
    assert "filters[6].select[0]: a value may grow to 128 times" in problem(doubled * 7)


@pytest.mark.parametrize(
    ("filters", "sinks", "said"),
    [
        ("  - select: [body, ts]\n  - parse: {format: syslog}", "noop", "needs the column host"),
        ("  - select: [body]", "files: {path: '/a/%Y'}", "time patterns in the path need"),
        ("  - select: [ts]", "files: {path: /a, format: text}", "text writes the column body"),
        ("  - select: [ts]", "files: {path: '/a/{app}'}", "the path needs the column app"),
        (
            "  - select: [attrs]",
            "files: {path: '/a/{attrs}'}",
            "attrs is a map, which no path can hold",
        ),
        ("  - parse: {format: json, schema: 'a STRNG'}", "noop", "is not allowed|Spark DDL"),
        (
            "  - parse: {format: json, schema: 'a INT DEFAULT 1'}",
            "noop",
            "expected a name and a type",
        ),
        ("  - parse: {format: json, schema: 'body STRING'}", "noop", "a column body already"),
        ("  - parse: {format: json, schema: 'ts STRING'}", "noop", "must have the type timestamp"),
        ("  - parse: {format: regex, pattern: '(?P<Host>.)'}", "noop", "a column Host already"),
        (
            "  - parse: {format: regex, pattern: '(?P<a>.)(.)'}",
            "noop",
            "expected a name in each group",
        ),
    ],
)
def test_errors_at_run_time_are_problems_of_the_file(filters: str, sinks: str, said: str) -> None:
    assert re.search(said, problem(filters, sinks))


def test_json_columns_may_be_nested() -> None:
    schema = "a STRUCT<b: ARRAY<INT>, c: MAP<STRING, DOUBLE>>, ts TIMESTAMP, d DECIMAL(10, 2)"
    check_flow(
        FLOW
        % (
            f"  - parse: {{format: json, schema: '{schema}'}}\n"
            "  - where: \"a.b[0] > 1 AND a.c['x'] < 2.5 AND d IS NOT NULL\"",
            "noop",
        )
    )


def test_syslog_columns_are_those_that_parse_adds() -> None:
    names = {"int32": "integer", "string": "string"}
    added = {field.name: names[str(field.type)] for field in syslog.COLUMNS}
    assert added == {name: kind.name for name, kind in SYSLOG.items()}


@pytest.mark.slow
def test_a_process_that_only_reads_flows_does_not_load_sqlglot() -> None:
    flow = "{flow: a, sources: [syslog: {listen: 'x:1'}], filters: [where: a > 1], sinks: [noop]}"
    code = (
        f"import sys; from flumeng.config import parse_flow; parse_flow({flow!r});"
        "assert 'sqlglot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_functions_in_the_docs_are_the_allowed_ones() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "flow.md").read_text()
    _, _, rest = page.partition("\n## Functions\n\n")
    listed = re.findall("`([a-z0-9_]+)`", rest.partition("\n\n")[0])
    assert listed == sorted(FUNCTIONS)
