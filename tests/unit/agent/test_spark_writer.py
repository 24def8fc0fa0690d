"""Events that a writer makes of Spark's rows: their ids, and rows and options that it refuses."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from flumeng.agent.pyspark.options import WriteOptions
from flumeng.agent.pyspark.outgoing import ID, Outgoing, columns_of, parts
from flumeng.agent.pyspark.writer import batches_of
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.platform.errors import UserError

COLUMNS = {name: name for name in EVENT_SCHEMA.names}
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)

texts = st.text(st.characters(codec="utf-8"), max_size=4)
attrs = st.dictionaries(texts, st.none() | texts, max_size=3).map(lambda found: [*found.items()])
events = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(max_size=4),
            "ts": st.none() | st.just(NOON),
            "host": st.none() | texts,
            "attrs": st.none() | attrs,
        }
    ),
    min_size=1,
    max_size=9,
)
Rows = list[dict[str, object]]


def sent(*batches: Rows, write: str = "w", partition: int = 3) -> Rows:
    outgoing = Outgoing(COLUMNS, write, partition)
    found: Rows = []
    for rows in batches:
        made = outgoing.events(pa.RecordBatch.from_pylist(rows, EVENT_SCHEMA))
        made.validate(full=True)
        assert not any(column.null_count for column in made.columns)
        found += made.to_pylist()
    return found


def ids(rows: Rows) -> list[str]:
    return [dict(row["attrs"])[ID] for row in rows]  # type: ignore[call-overload]


@given(st.lists(events, min_size=1, max_size=3))
def test_each_row_has_its_own_id_and_keeps_what_it_has(batches: list[Rows]) -> None:
    rows = [row for batch in batches for row in batch]
    made = sent(*batches)
    assert len(set(ids(made))) == len(rows)
    for number, (row, event, name) in enumerate(zip(rows, made, ids(made), strict=True)):
        assert re.fullmatch(rf"w-3-{number}-[0-9a-f]{{12}}", name)
        assert event["body"] == row["body"]
        assert row["ts"] in (None, event["ts"])
        assert row["host"] in (None, event["host"])
        own = [pair for pair in row["attrs"] or [] if pair[1] is not None]  # type: ignore[attr-defined]
        assert [pair for pair in event["attrs"] if pair[0] != ID] == own  # type: ignore[attr-defined]


@given(events, st.randoms(use_true_random=False))
def test_id_is_repeated_with_the_same_rows_only(rows: Rows, draw: random.Random) -> None:
    first = dict(zip(ids(sent(rows)), rows, strict=True))
    assert ids(sent(rows)) == [*first]
    other = draw.sample(rows, len(rows))
    for name, row in zip(ids(sent(other)), other, strict=True):
        assert _given(first.get(name, row)) == _given(row)


def _given(row: dict[str, object]) -> tuple[object, ...]:
    """A null is like an empty value: both get the same default or none."""
    pairs = [pair for pair in row["attrs"] or [] if pair[1] is not None]  # type: ignore[attr-defined]
    return row["body"], row["ts"], row["host"] or "", pairs


def test_names_of_sources_and_ids_are_replaced() -> None:
    given = [("client", "me"), ("spark_id", "x"), ("team", "shop"), ("none", None)]
    (event,) = sent([{"body": b"a", "attrs": given}])
    assert [name for name, _ in event["attrs"]] == ["team", ID]  # type: ignore[attr-defined]


def test_row_without_body_is_refused() -> None:
    with pytest.raises(UserError, match="row 2 of partition w-3 has no body"):
        sent([{"body": b"a"}, {"body": b"b"}], [{"body": None}])


def test_parts_have_all_events_in_order() -> None:
    rows = [{"body": b"x" * 1000, "ts": NOON, "host": "", "attrs": []}] * 100
    whole = pa.RecordBatch.from_pylist(rows, EVENT_SCHEMA)
    found = list(parts(whole, 10_000))
    assert pa.Table.from_batches(found).combine_chunks().to_batches() == [whole]
    assert max(part.nbytes for part in found) <= 10_000
    assert [len(part) for part in parts(whole.slice(0, 2), 1)] == [1, 1]


TEXT, NUMBER = StringType(), LongType()


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"body": schema(a=NUMBER)}, "column body is struct<a:bigint>, not binary or string: cast"),
        ({"body": TEXT, "ts": TimestampNTZType()}, "column ts is timestamp_ntz, not timestamp"),
        ({"body": TEXT, "attrs": MapType(TEXT, NUMBER)}, "column attrs is map<string,bigint>, not"),
        ({"body": TEXT, "level": TEXT}, "events have no column level: put it into body or attrs"),
        ({"body": TEXT, "seq": NUMBER}, r'column seq is set by the journal: .* drop\("seq"\)'),
        ({"host": TEXT, "ts": TimestampType()}, "column body is missing"),
        ({"id": NUMBER}, "events have no column id"),
    ],
)
def test_unfit_columns_are_refused_by_name(columns: dict[str, DataType], why: str) -> None:
    with pytest.raises(UserError, match=why):
        columns_of(schema(**columns))


def test_single_column_of_text_is_the_body() -> None:
    assert columns_of(schema(value=TEXT)) == {"body": "value"}
    assert columns_of(schema(host=BinaryType())) == {"body": "host"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"zookeeper": "z"}, r'option\("flow", ...\) is missing: name the flow to write into'),
        ({"flow": "web"}, r'option\("zookeeper", "host:port/chroot"\) is missing'),
        ({"url": "ftp://h"}, "option url 'ftp://h': expected a URL"),
        ({"zookeeper": "z", "flow": "web", "writeID": "A B"}, "option writeId 'A B': expected"),
        (
            {"zookeeper": "z", "flow": "web", "token": "x"},
            'no option "token"; did you mean "tokenF',
        ),
    ],
)
def test_unfit_options_are_refused_by_name(options: dict[str, str], why: str) -> None:
    with pytest.raises(UserError, match=why):
        WriteOptions.parse(options)


def test_several_urls_need_no_cluster() -> None:
    options = WriteOptions.parse({"url": "http://a:1/x, https://b/", "checkpointLocation": "/c"})
    assert (options.urls, options.zookeeper) == (("http://a:1/x", "https://b/"), "")


def test_rows_become_columns_with_times_of_the_local_zone() -> None:
    local = NOON.astimezone().replace(tzinfo=None)
    rows = [Row(value="a", ts=local, attrs={"k": "v"}), Row(value=None, ts=None, attrs=None)]
    columns = {"body": "value", "ts": "ts", "attrs": "attrs"}
    (batch,) = batches_of(iter(rows), columns)
    assert batch.to_pylist() == [
        {"value": b"a", "ts": NOON, "attrs": [("k", "v")]},
        {"value": None, "ts": None, "attrs": None},
    ]


@given(events, st.integers(0, 9))
def test_id_does_not_depend_on_the_rows_beside(rows: Rows, cut: int) -> None:
    """A failing task may end within rows that its next attempt gets together with others."""
    assert ids(sent(*filter(None, (rows[:cut], rows[cut:])))) == ids(sent(rows))
