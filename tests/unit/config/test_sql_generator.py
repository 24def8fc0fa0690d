"""Text for Spark, generated from checked trees."""

from __future__ import annotations

import pytest

from flumeng.config import expressions, sql_generator, sql_text, statements
from flumeng.config.column_kinds import EVENT
from flumeng.config.expressions import columns_of_ddl
from flumeng.filters.options.parse import SYSLOG
from tests.testkit.expressions import CONDITIONS, STATEMENTS, TABLES

COLUMNS = {**EVENT, **SYSLOG}
KINDS = {name: columns_of_ddl(text) for name, text in TABLES.items()}
FIELDS = {name: name for name in ("events", *TABLES)}


def expression(text: str) -> str:
    return sql_generator.expression(sql_text.parse(text))


def statement(text: str) -> str:
    return sql_generator.statement(sql_text.parse_query(text), FIELDS).format(**FIELDS)


@pytest.mark.parametrize("text", CONDITIONS)
def test_generated_expression_is_stable_and_of_the_same_kind(text: str) -> None:
    generated = expression(text)
    assert expression(generated) == generated
    (kind,) = expressions.chosen(f"{text} AS x", COLUMNS).values()
    assert expressions.chosen(f"{generated} AS x", COLUMNS) == {"x": kind}


@pytest.mark.parametrize("text", STATEMENTS)
def test_generated_statement_is_stable_and_has_the_same_columns(text: str) -> None:
    generated = statement(text)
    assert statement(generated) == generated
    columns = statements.check(text, COLUMNS, KINDS)
    assert list(statements.check(generated, COLUMNS, KINDS).items()) == list(columns.items())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = b < c", "`a` = (`b` < `c`)"),
        ("a - b - c", "(`a` - `b`) - `c`"),
        ("a - (b - c)", "`a` - (`b` - `c`)"),
        ("-a % 2", "(-`a`) % 2"),
        ("- -1", "-(-1)"),
        ("-2147483648", "-2147483648"),  # of type INT; -(2147483648) is a BIGINT
        ("not a in (1, 2)", "NOT (`a` IN (1, 2))"),
        ("a is not null", "`a` IS NOT NULL"),
        ("a or b and c", "`a` OR (`b` AND `c`)"),
        ("`from` = 'x'", "`from` = 'x'"),
        ("`a``b`.c = 1", "`a``b`.`c` = 1"),
        (r"a = 'it\'s \\ \t\u00e9'", "`a` = 'it\\'s \\\\ \té'"),
        (r"a = r'\d'", r"`a` = '\\d'"),
        ("a = '{x}{{'", "`a` = '{x}{{'"),
        (r"a = '$\u007bx}'", r"`a` = '\u0024{x}'"),
        ("current_user = 'x'", "`current_user` = 'x'"),
        ("ts > date'2020-01-01'", "`ts` > DATE '2020-01-01'"),
        ("ts > cast('2020-01-01' as date)", "`ts` > CAST('2020-01-01' AS DATE)"),
        ("Upper(a) AS `b c`", "Upper(`a`) AS `b c`"),
    ],
)
def test_generated_text_has_one_reading(text: str, expected: str) -> None:
    assert expression(text) == expected


def test_long_chain_is_not_nested() -> None:
    text = " OR ".join(["a = 1"] * 900)
    assert expression(text) == " OR ".join(["(`a` = 1)"] * 900)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM other",
        "SELECT * FROM db.events",
        "SELECT * FROM parquet.`/etc/x`",
        "SELECT * FROM range(10)",
        "SELECT * FROM events WHERE seq IN (SELECT x FROM text.`/etc/passwd`)",
        "WITH t AS (SELECT * FROM u), u AS (SELECT * FROM events) SELECT * FROM t",
        "SELECT * FROM (WITH t AS (SELECT * FROM events) SELECT * FROM t) x JOIN t ON x.a = t.a",
        "SELECT (SELECT 1) AS x FROM events",
        "SELECT `java_method`('a') AS x FROM events",
        "SELECT a.f(1) AS x FROM events",
        "SELECT interval 1 day AS x FROM events",
    ],
)
def test_spark_never_receives_another_table_or_an_unknown_part(text: str) -> None:
    """Even if the check before it does not see them."""
    with pytest.raises(ValueError, match="not allowed in Spark SQL"):
        statement(text)


def test_with_part_hides_a_table_of_its_name_behind_it() -> None:
    text = "WITH events AS (SELECT * FROM events), t AS (SELECT * FROM events) SELECT * FROM t"
    made = sql_generator.statement(sql_text.parse_query(text), {"events": "field"})
    assert made.count("{field}") == 1


def test_braces_of_a_statement_are_no_fields() -> None:
    text = "SELECT '{events}' AS `{x}` FROM events"
    assert statement(text) == "SELECT '{events}' AS `{x}` FROM events AS `events`"
