"""Expressions read without Spark mean the same as in Spark."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from flumeng.filters import arrow_text
from flumeng.filters.arrow_sql import whole_numbers
from tests.testkit.expressions import CONDITIONS
from tests.unit.filters.test_filters_arrow_text import READ_WITHOUT_SPARK, SCHEMA

VALUES = (
    "severity", "Facility", "seq", "`app`", "HOST", "replayed", "attrs['k']", "attrs.K", "(app)",
    "0", "-1", "007", "2147483647", "-2147483648", "2147483648", "9223372036854775807",
    "9223372036854775808", "''", "'su'", '"ü"', "'it''s'", "true", "FALSE", "null",
    r"'it\'s'", r"'\u0073u'", "r'7'",
    "CAST(app AS INT)", "cast(host AS bigint)", "CAST(severity AS BIGINT)", "CAST(seq AS STRING)",
    "CAST(attrs['k'] AS INT)", "CAST(replayed AS STRING)", "CAST(CAST(app AS INT) AS BIGINT)",
    "CAST(seq AS INT)", "CAST('7' AS INT)", "CAST(app AS DOUBLE)", "CAST(ts AS BIGINT)",
)  # fmt: skip
SIGNS = ("=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>")
values = st.sampled_from(VALUES)
predicates = st.one_of(
    st.builds("{} {} {}".format, values, st.sampled_from(SIGNS), values),
    st.builds("{} IS NULL".format, values),
    st.builds("{} IS NOT NULL".format, values),
    st.builds("{} IS NULL".format, st.builds("({} = {})".format, values, values)),
    st.builds("{} = {} IS NULL".format, values, values),
    st.builds(
        "{} {} ({})".format,
        values,
        st.sampled_from(["IN", "NOT IN"]),
        st.lists(values, min_size=1, max_size=4).map(", ".join),
    ),
    values,
)
conditions = st.recursive(
    predicates,
    lambda inner: st.one_of(
        inner.map("NOT ({})".format),
        inner.map("({})".format),
        st.lists(inner, min_size=2, max_size=7).map(" AND ".join),
        st.lists(inner, min_size=2, max_size=7).map(" OR ".join),
    ),
    max_leaves=8,
)


ROWS = pa.RecordBatch.from_pylist(
    [
        {"severity": 2, "facility": 2, "app": "su", "host": "7", "attrs": [("k", "-1")]},
        {"severity": 0, "facility": 7, "app": "it's", "host": " 2147483648 ", "attrs": []},
        {"severity": None, "facility": -(2**31), "app": None, "host": None, "attrs": None},
        {"severity": 7, "facility": None, "app": "7", "host": "ü", "attrs": [("k", "v")]},
    ],
    SCHEMA,
)
ROWS = ROWS.set_column(
    SCHEMA.get_field_index("seq"), "seq", pa.array([7, 2**31, None, 2**63 - 1], pa.int64())
).set_column(SCHEMA.get_field_index("replayed"), "replayed", pa.array([True, False, None, True]))


def require_alike(spark: SparkSession, texts: Sequence[str]) -> int:
    """Check that conditions give the same in Arrow as in Spark; return the number in Arrow."""
    stages = {text: arrow_text.condition(SCHEMA, text) for text in texts}
    in_arrow = {text: stage for text, stage in stages.items() if stage is not None}
    if in_arrow:
        schema = from_arrow_schema(ROWS.schema, prefer_timestamp_ntz=False)
        rows = spark.createDataFrame(pa.Table.from_batches([ROWS]), schema)
        expected = rows.selectExpr(*(f"{text} AS c{n}" for n, text in enumerate(in_arrow)))
        for (text, stage), values in zip(
            in_arrow.items(), zip(*expected.collect(), strict=True), strict=True
        ):
            assert stage.condition.of(ROWS).to_pylist() == list(values), text
    return len(in_arrow)


def test_ordinary_conditions_give_the_same_as_in_spark(spark: SparkSession) -> None:
    assert require_alike(spark, [*CONDITIONS, *READ_WITHOUT_SPARK]) > 20


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(conditions, min_size=20, max_size=60))
def test_any_condition_gives_the_same_as_in_spark(spark: SparkSession, texts: list[str]) -> None:
    require_alike(spark, texts)


@pytest.mark.parametrize(
    "texts",
    [
        ["*"],
        ["App", "host AS Journal", "`seq`"],
        ["severity `my severity`", "attrs"],
        ["CAST(app AS INT) AS code", "cast(seq AS string) AS n", "CAST(attrs['k'] AS BIGINT) k"],
    ],
)
def test_columns_are_the_same_as_in_spark(spark: SparkSession, texts: list[str]) -> None:
    stage = arrow_text.columns(SCHEMA, texts)
    assert stage is not None
    schema = from_arrow_schema(ROWS.schema, prefer_timestamp_ntz=False)
    rows = spark.createDataFrame(pa.Table.from_batches([ROWS]), schema).selectExpr(*texts)
    (found,) = stage(iter([ROWS]))
    assert found.schema.names == rows.columns
    assert found.to_pylist() == rows.toArrow().to_pylist()


def test_repeated_name_is_left_to_spark() -> None:
    assert arrow_text.columns(SCHEMA, ["*", "host AS sender", "Sender x"]) is None


NUMBERS = st.one_of(
    st.text(st.sampled_from("0123456789+-. \t\x00\x7f\u00a0eEx"), max_size=24),
    st.integers(-(2**65), 2**65).map(str),
    st.sampled_from([str(sign * 2**bits + more) for sign in (1, -1) for bits in (31, 63)
                     for more in (-1, 0, 1)]),
)  # fmt: skip


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.one_of(st.none(), NUMBERS), min_size=1, max_size=200))
def test_texts_are_cast_to_the_same_numbers_as_in_spark(
    spark: SparkSession, texts: list[str | None]
) -> None:
    rows = spark.createDataFrame([(text,) for text in texts], "t STRING")
    wanted = rows.selectExpr("CAST(t AS INT) AS i", "CAST(t AS BIGINT) AS l").collect()
    column = pa.array(texts, pa.string())
    assert whole_numbers(column, pa.int32()).to_pylist() == [row.i for row in wanted]
    assert whole_numbers(column, pa.int64()).to_pylist() == [row.l for row in wanted]
