"""Expressions in a real Spark: it runs accepted ones, and rejected ones read nothing forbidden."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
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

from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.config import expressions, functions, parse_flow
from flumeng.config.column_kinds import EVENT
from flumeng.config.sql_text import TYPES
from flumeng.connectors.journals.reader import JournalReader
from flumeng.filters import spark_syntax
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
ONLY_BY_TEXT = (
    "a setting in a text",
    "deep nesting",
    "a long text",
    "a regular expression",
    "a huge result",
    "a comment",
)
"""Valid in Spark, but refused for their cost before Spark parses them."""


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


def test_spark_takes_every_call_and_operation_that_is_accepted(
    spark: SparkSession, events: DataFrame
) -> None:
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
        given = events.selectExpr(*(f"{text} AS c{n}" for n, text in enumerate(part))).schema
        for text, field in zip(part, given, strict=True):
            kind = field.dataType.simpleString()
            told = accepted[text].name
            kind = "fraction" if kind.startswith("decimal") else KINDS.get(kind, kind)
            if (told, kind) != ("fraction", "integer"):
                assert told == KINDS.get(kind, kind) or kind in ("tinyint", "smallint", "float"), (
                    text
                )
    spark_syntax.require_expressions(spark, texts[::40])


@pytest.mark.parametrize("text", CONDITIONS)
def test_spark_runs_every_condition_that_is_accepted(
    spark: SparkSession, events: DataFrame, text: str
) -> None:
    spark_syntax.require_expressions(spark, [text])
    assert events.where(text).columns == list(COLUMNS)


@pytest.mark.parametrize("text", [t for what, t, _ in ATTEMPTS if what not in ONLY_BY_TEXT])
def test_expressions_that_spark_reads_as_forbidden_ones_are_refused(
    spark: SparkSession, text: str
) -> None:
    with pytest.raises(UserError, match=r"is not allowed|not an expression in Spark SQL"):
        spark_syntax.require_expressions(spark, [text])


def test_spark_refuses_to_read_another_directory(spark: SparkSession, tmp_path: Path) -> None:
    """Refused by the collector itself, and by Spark, should anything get so far."""
    (tmp_path / "secret.log").write_text("hunter2\n")
    leak = f"(SELECT concat_ws('|', collect_list(value)) FROM text.`{tmp_path}/secret.log`) AS leak"
    text = (
        "{flow: a, sources: [syslog: {listen: 'x:1'}], sinks: [noop], "
        f'filters: [select: [ts, "{leak}"]]}}'
    )
    with pytest.raises(UserError, match=r"has the Spark expression ScalarSubquery"):
        SparkPipeline(spark, parse_flow(text), TASK, JournalReader())
    with pytest.raises(Exception, match=r"TABLE_OR_VIEW_NOT_FOUND|runSQLOnFiles"):
        spark.range(1).selectExpr(leak).collect()
