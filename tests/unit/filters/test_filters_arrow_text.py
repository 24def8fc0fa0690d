"""Conditions and columns that are read without Spark, and their meaning."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flumeng.events.schema import READ_SCHEMA
from flumeng.filters import arrow_text
from flumeng.filters.formats import syslog

SCHEMA = pa.schema([*READ_SCHEMA, *syslog.COLUMNS])
ROWS = pa.RecordBatch.from_pylist(
    [
        {"severity": 2, "app": "su", "seq": 0, "replayed": False, "attrs": [("k", "v")]},
        {"severity": 5, "app": "cron", "seq": 1, "replayed": True, "attrs": []},
        {"severity": None, "app": None, "seq": 2**40, "replayed": False, "attrs": [("k", "w")]},
    ],
    SCHEMA,
)


READ_WITHOUT_SPARK = {
    "severity <= 4": [0],
    "Severity > -4 AND `app` <> ''": [0, 1],
    "NOT (severity IS NULL AND app <> 'su')": [0, 1],
    "NOT (severity IS NULL)": [0, 1],
    "NOT (severity > 4 AND replayed)": [0, 2],  # null and false is false
    "app IN ('su', 'x') OR app IS NULL": [0, 2],
    "app NOT IN ('su')": [1],
    "seq >= 1 AND seq < 2 OR replayed": [1],
    "seq IN (1, 1099511627776)": [1, 2],
    "attrs.k = 'v' OR attrs['k'] = 'w'": [0, 2],
    "replayed = true": [1],
    "severity < 3000000000 AND severity IN (2, 3000000000)": [0],
    "severity >= seq": [0, 1],
    r"app = r'su' OR app = '\x63ron'": [0],
    r"app IN ('\u0073u', 'it\'s')": [0],
    "severity = 1 OR severity = 2 OR severity = 3 OR severity = 4 OR severity = 5": [0, 1],
}


@pytest.mark.parametrize(("text", "kept"), READ_WITHOUT_SPARK.items())
def test_unambiguous_condition_is_read_from_its_text(text: str, kept: list[int]) -> None:
    stage = arrow_text.condition(SCHEMA, text)
    assert stage is not None
    (found,) = stage(iter([ROWS]))
    assert found.equals(ROWS.take(pa.array(kept)))


@pytest.mark.parametrize(
    "text",
    [
        "1 = 1",
        "replayed",
        "severity <= '4'",
        "severity < 4.5",
        "severity IN (1, NULL)",
        "severity <=> 1",
        "app = 1",
        "app = 'it''s'",
        "app LIKE 's%'",
        "lower(app) = 'su'",
        "body = 'x'",
        "ts > timestamp'2020-01-01'",
        "severity = 1 = true",
        "severity BETWEEN 1 AND 2",
        "attrs['k']['l'] = ''",
        "attrs[app] = ''",
        "unknown = 1",
        "severity <=",
    ],
)
def test_any_other_condition_is_left_to_spark(text: str) -> None:
    assert arrow_text.condition(SCHEMA, text) is None


def test_ambiguous_column_name_is_left_to_spark() -> None:
    twice = SCHEMA.append(pa.field("APP", pa.string()))
    assert arrow_text.condition(twice, "app = 'su'") is None
    assert arrow_text.columns(twice, ["app"]) is None


def test_columns_that_are_only_named_are_read_from_their_texts() -> None:
    stage = arrow_text.columns(SCHEMA, ["App", "host AS journal", "`seq`"])
    assert stage is not None
    (found,) = stage(iter([ROWS]))
    assert found.schema.names == ["App", "journal", "seq"]
    assert found.column("App").equals(ROWS["app"])
    whole = arrow_text.columns(SCHEMA, ["*", "host AS sender"])
    assert whole is not None
    assert whole.schema.names == [*SCHEMA.names, "sender"]


def test_casts_between_texts_and_whole_numbers_need_no_spark() -> None:
    rows = ROWS.set_column(
        ROWS.schema.get_field_index("app"), "app", pa.array([" 7 ", "-1.9", "2147483648"])
    )
    texts = ["CAST(app AS INT) AS code", "CAST(app AS BIGINT) AS large", "CAST(seq AS STRING) AS n"]
    stage = arrow_text.columns(SCHEMA, texts)
    assert stage is not None
    (found,) = stage(iter([rows]))
    assert found.to_pylist() == [
        {"code": 7, "large": 7, "n": "0"},
        {"code": -1, "large": -1, "n": "1"},
        {"code": None, "large": 2**31, "n": str(2**40)},
    ]
    condition = arrow_text.condition(SCHEMA, "CAST(app AS INT) >= 0 OR CAST(attrs['k'] AS INT) = 1")
    assert condition is not None
    (kept,) = condition(iter([rows]))
    assert kept.num_rows == 1


@pytest.mark.parametrize(
    "texts",
    [
        ["upper(app) AS app"],
        ["app", "host AS app"],
        ["attrs.k"],
        ["CAST(app AS INT)"],  # Spark makes its name
        ["CAST(app AS DOUBLE) AS d"],
        ["CAST(seq AS INT) AS wraps"],
        ["CAST('7' AS INT) AS constant"],
        ["TRY_CAST(app AS INT) AS t"],
    ],
)
def test_computed_columns_are_left_to_spark(texts: list[str]) -> None:
    assert arrow_text.columns(SCHEMA, texts) is None
