"""Expressions in a real Spark: it runs accepted ones, and rejected ones read nothing forbidden."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)
from sqlglot import exp

from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.config import expressions, functions, parse_flow, sql_generator, sql_text
from flumeng.config.column_kinds import EVENT
from flumeng.config.sql_text import TYPES
from flumeng.connectors.journals.reader import JournalReader
from flumeng.events.schema import READ_SCHEMA
from flumeng.filters import expression_stages
from flumeng.filters.options.parse import SYSLOG
from flumeng.platform.errors import UserError
from tests.testkit.collector import TASK
from tests.testkit.expressions import ATTEMPTS, CONDITIONS

COLUMNS = {**EVENT, **SYSLOG}
VALUES = {
    "string": "app",
    "binary": "body",
    "integer": "seq",
    "fraction": "cast(seq as double)",
    "boolean": "replayed",
    "timestamp": "ts",
    "date": "cast(ts as date)",
    "void": "null",
    "map": "attrs",
    "array": "split(app, ',')",
}
CONSTANTS = {"K": ["'a'", "'yyyy-MM-dd'", "'HOST'"], "R": ["'(a)(b)'"], "C": ["1"]}
KINDS = {"int": "integer", "bigint": "integer", "double": "fraction", "array<string>": "array"}


def generate(text: str) -> str:
    return sql_generator.expression(sql_text.parse(text))


@pytest.fixture
def events(spark: SparkSession) -> DataFrame:
    types = {
        "string": StringType(),
        "binary": BinaryType(),
        "boolean": BooleanType(),
        "timestamp": TimestampType(),
        "map": MapType(StringType(), StringType()),
    }
    schema = StructType()
    for name, kind in COLUMNS.items():
        whole = IntegerType() if name in SYSLOG else LongType()
        schema.add(name, types.get(kind.name, whole))
    return spark.createDataFrame([], schema)


def calls() -> Iterator[str]:
    for function in functions.FUNCTIONS.values():
        most = len(function.parameters) + function.repeats
        for count in range(function.least, most + 1):
            letters = [
                function.parameters[min(n, len(function.parameters) - 1)] for n in range(count)
            ]
            values = [CONSTANTS.get(letter, list(VALUES.values())) for letter in letters]
            for arguments in itertools.islice(itertools.product(*values), 120):
                yield f"{function.name}({', '.join(arguments)})"


def operations() -> Iterator[str]:
    for left, right in itertools.product(VALUES.values(), repeat=2):
        yield from (f"{left} {sign} {right}" for sign in ("=", "<", "<=>", "+", "/", "%"))
        yield f"{left} IN ({right})"
        yield f"{left} BETWEEN {right} AND {right}"
        yield f"CASE WHEN replayed THEN {left} ELSE {right} END"
    for value, wanted in itertools.product(VALUES.values(), [*TYPES.split(), "decimal(10,2)"]):
        yield f"cast({value} AS {wanted})"


def test_spark_takes_every_call_and_operation_that_is_accepted(events: DataFrame) -> None:
    """The result has the declared type."""
    accepted = {}
    for text in dict.fromkeys([*calls(), *operations()]):
        try:
            (accepted[text],) = expressions.chosen(f"{text} AS x", COLUMNS).values()
        except ValueError:
            continue
    texts = list(accepted)
    assert len(texts) > 1500
    for start in range(0, len(texts), 100):
        part = texts[start : start + 100]
        rows = events.selectExpr(*(f"{text} AS c{n}" for n, text in enumerate(part)))
        generated = (generate(f"{text} AS c{n}") for n, text in enumerate(part))
        assert events.selectExpr(*generated).sameSemantics(rows)
        given = rows.schema
        for text, field in zip(part, given, strict=True):
            kind = field.dataType.simpleString()
            told = accepted[text].name
            kind = "fraction" if kind.startswith("decimal") else KINDS.get(kind, kind)
            if (told, kind) != ("fraction", "integer"):
                assert told == KINDS.get(kind, kind) or kind in ("tinyint", "smallint", "float"), (
                    text
                )


@pytest.mark.parametrize("text", CONDITIONS)
def test_spark_runs_every_condition_that_is_accepted(events: DataFrame, text: str) -> None:
    given = events.where(text)
    assert given.columns == list(COLUMNS)
    assert events.where(generate(text)).sameSemantics(given)


def test_generated_columns_keep_their_names(events: DataFrame) -> None:
    texts = ["App", "attrs.k", "attrs['k']", "seq + 1", "UPPER(app)", "CAST(seq AS INT)", "-seq",
             "date'2020-01-01'", "case when replayed then 'x' end", "app is not null"]  # fmt: skip
    assert events.selectExpr(*map(generate, texts)).columns == events.selectExpr(*texts).columns


ESCAPES = st.lists(
    st.sampled_from(
        [*"\\\\\\abfnrtvZ%_0u1xU'\"${}7 é\n", "\\u00e9", "\\101", "\\U0001F600", "\\x41"]
    ),
    max_size=7,
).map("".join)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(ESCAPES, min_size=20, max_size=60), st.sampled_from(["'", '"', "r'"]))
def test_constant_texts_are_read_as_by_spark(
    spark: SparkSession, inner: list[str], quote: str
) -> None:
    values = {}
    for text in {f"{quote}{part.replace(quote[-1], '')}{quote[-1]}" for part in inner}:
        try:
            tree = sql_text.parse(text)
        except ValueError:
            continue
        if isinstance(tree, exp.Literal | exp.RawString):
            values[text] = tree.name
    columns = [column for text in values for column in (text, generate(text))]
    if not columns:
        return
    (row,) = spark.range(1).selectExpr(*(f"{c} AS c{n}" for n, c in enumerate(columns))).collect()
    assert list(row) == [value for value in values.values() for _ in range(2)]


@pytest.mark.parametrize("text", [text for _, text, _ in ATTEMPTS])
def test_collector_refuses_forbidden_expressions_too(text: str) -> None:
    for condition in (True, False):
        with pytest.raises(UserError):
            expression_stages.for_spark(READ_SCHEMA, text, condition=condition)


def test_spark_refuses_to_read_another_directory(spark: SparkSession, tmp_path: Path) -> None:
    """Refused by the collector itself, and by Spark, should anything get so far."""
    (tmp_path / "secret.log").write_text("hunter2\n")
    leak = f"(SELECT concat_ws('|', collect_list(value)) FROM text.`{tmp_path}/secret.log`) AS leak"
    text = (
        "{flow: a, sources: [syslog: {listen: 'x:1'}], sinks: [noop], "
        f'filters: [select: [ts, "{leak}"]]}}'
    )
    with pytest.raises(UserError, match="not allowed in expressions"):
        SparkPipeline(spark, parse_flow(text), TASK, JournalReader())
    with pytest.raises(Exception, match=r"TABLE_OR_VIEW_NOT_FOUND|runSQLOnFiles"):
        spark.range(1).selectExpr(leak).collect()
