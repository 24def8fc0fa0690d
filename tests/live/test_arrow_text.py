"""Expressions read without Spark mean the same as in Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from flumeng.filters import arrow_sql, arrow_text
from flumeng.filters.arrow_sql import whole_numbers
from tests.testkit.expressions import CONDITIONS
from tests.unit.filters.test_filters_arrow_text import SCHEMA

VALUES = (
    "severity", "Facility", "seq", "`app`", "HOST", "replayed", "attrs['k']", "attrs.K", "(app)",
    "0", "-1", "007", "2147483647", "-2147483648", "2147483648", "9223372036854775807",
    "9223372036854775808", "''", "'su'", '"ü"', "'it''s'", "true", "FALSE", "null",
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


def in_spark(spark: SparkSession, text: str) -> arrow_sql.FilterStage | None:
    return arrow_sql.condition(spark, SCHEMA, text)


def test_ordinary_conditions_are_parsed_as_in_spark(spark: SparkSession) -> None:
    read = [text for text in CONDITIONS if arrow_text.condition(SCHEMA, text) is not None]
    assert len(read) > 5
    for text in read:
        assert arrow_text.condition(SCHEMA, text) == in_spark(spark, text), text


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example("2147483648 IN (seq, 0)")
@example("0 IN (seq, 2147483648)")
@example("seq IN (2147483648, 0)")
@given(conditions)
@pytest.mark.long
def test_any_condition_is_parsed_as_in_spark(spark: SparkSession, text: str) -> None:
    found = arrow_text.condition(SCHEMA, text)
    if found is not None:
        assert found == in_spark(spark, text)


@pytest.mark.parametrize(
    "texts",
    [
        ["*"],
        ["App", "host AS Journal", "`seq`"],
        ["*", "host AS sender", "Sender x"],
        ["severity `my severity`", "attrs"],
        ["CAST(app AS INT) AS code", "cast(seq AS string) AS n", "CAST(attrs['k'] AS BIGINT) k"],
    ],
)
def test_columns_are_parsed_as_in_spark(spark: SparkSession, texts: list[str]) -> None:
    found = arrow_text.columns(SCHEMA, texts)
    if texts[-1] == "Sender x":
        assert found is None
    else:
        assert found is not None
        assert found == arrow_sql.columns(spark, SCHEMA, texts)


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
@pytest.mark.long
def test_texts_are_cast_to_the_same_numbers_as_in_spark(
    spark: SparkSession, texts: list[str | None]
) -> None:
    rows = spark.createDataFrame([(text,) for text in texts], "t STRING")
    wanted = rows.selectExpr("CAST(t AS INT) AS i", "CAST(t AS BIGINT) AS l").collect()
    column = pa.array(texts, pa.string())
    assert whole_numbers(column, pa.int32()).to_pylist() == [row.i for row in wanted]
    assert whole_numbers(column, pa.int64()).to_pylist() == [row.l for row in wanted]
