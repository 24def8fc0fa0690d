"""What is read of an expression without Spark is what Spark reads."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from flumeng.filters import arrow_sql, arrow_text
from flumeng.spec.testing import CONDITIONS
from tests.unit.test_filters_arrow_text import SCHEMA

VALUES = (
    "severity", "Facility", "seq", "`app`", "HOST", "replayed", "attrs['k']", "attrs.K", "(app)",
    "0", "-1", "007", "2147483647", "-2147483648", "2147483648", "9223372036854775807",
    "9223372036854775808", "''", "'su'", '"ü"', "'it''s'", "true", "FALSE", "null",
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


def test_ordinary_conditions_are_read_as_spark_reads_them(spark: SparkSession) -> None:
    read = [text for text in CONDITIONS if arrow_text.condition(SCHEMA, text) is not None]
    assert len(read) > 5
    for text in read:
        assert arrow_text.condition(SCHEMA, text) == in_spark(spark, text), text


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(conditions)
def test_any_condition_is_read_as_spark_reads_it(spark: SparkSession, text: str) -> None:
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
    ],
)
def test_columns_are_read_as_spark_reads_them(spark: SparkSession, texts: list[str]) -> None:
    found = arrow_text.columns(SCHEMA, texts)
    if texts[-1] == "Sender x":
        assert found is None
    else:
        assert found is not None
        assert found == arrow_sql.columns(spark, SCHEMA, texts)
