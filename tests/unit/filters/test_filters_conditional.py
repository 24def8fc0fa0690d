"""A filter with ``when`` changes the matching events; all others keep their columns."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.config import SpecError, check_flow
from flumeng.events.columns import either, fitted
from flumeng.filters import arrow_text
from flumeng.filters.conditional import ROW, ConditionalStage
from flumeng.filters.marks import WHEN, MarkStage
from flumeng.filters.options.where import Where
from flumeng.filters.where import WhereFilter
from flumeng.platform.errors import UserError

BEFORE = pa.schema([pa.field("n", pa.int64())])
BEHIND = BEFORE.append(pa.field("text", pa.string()))


def add_text(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        texts = pa.array([f"n{n}" for n in batch["n"].to_pylist()], pa.string())
        columns = [batch["n"], texts, batch[ROW]]
        yield pa.RecordBatch.from_arrays(columns, ["n", "text", ROW])


def twice_the_even(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Drops odd numbers, doubles even ones, and makes a batch of each."""
    for batch in add_text(batches):
        for row in range(len(batch)):
            one = batch.slice(row, 1)
            if one["n"][0].as_py() % 2 == 0:
                yield one
                yield one


def through(inner: object, numbers: list[int], marks: list[bool]) -> list[tuple[int, str | None]]:
    stage = ConditionalStage(inner, BEFORE, BEHIND)  # type: ignore[arg-type]
    columns = [pa.array(numbers, pa.int64()), pa.array(marks, pa.bool_())]
    batch = pa.RecordBatch.from_arrays(columns, ["n", WHEN])
    found = list(stage(iter([batch])))
    assert all(each.schema == BEHIND for each in found)
    return [(row["n"], row["text"]) for each in found for row in each.to_pylist()]


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=30))
def test_conditional_stage_keeps_the_order_of_events(rows: list[tuple[int, bool]]) -> None:
    numbers, marks = [n for n, _ in rows], [mark for _, mark in rows]
    assert through(add_text, numbers, marks) == [(n, f"n{n}" if mark else None) for n, mark in rows]
    expected: list[tuple[int, str | None]] = []
    for n, mark in rows:
        if not mark:
            expected.append((n, None))
        elif n % 2 == 0:
            expected += [(n, f"n{n}")] * 2
    assert through(twice_the_even, numbers, marks) == expected


def test_columns_without_nulls_may_become_nullable() -> None:
    before = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    stage = ConditionalStage(add_text, before, before.append(BEHIND.field("text")))
    columns = [pa.array([1, 2], pa.int64()), pa.array([True, False])]
    (found,) = stage(iter([pa.RecordBatch.from_arrays(columns, ["n", WHEN])]))
    assert found.to_pylist() == [{"n": 1, "text": "n1"}, {"n": 2, "text": None}]


def test_event_for_which_the_condition_is_null_is_not_marked() -> None:
    stage = arrow_text.condition(BEFORE, "n > 1")
    assert stage is not None
    batch = pa.RecordBatch.from_pydict({"n": [1, 2, None]}, BEFORE)
    marked = MarkStage(stage.condition, WHEN).each(batch)
    assert marked[WHEN].to_pylist() == [False, True, False]


def flow(*filters: str) -> str:
    listed = "".join(f"  - {text}\n" for text in filters)
    return (
        f"flow: f\nsources: [syslog: {{listen: '0.0.0.0:5514'}}]\nfilters:\n{listed}sinks: [noop]\n"
    )


def test_the_condition_is_read_and_checked() -> None:
    spec = check_flow(flow("parse: {format: syslog}\n    when: \"host = 'a'\""))
    assert spec.filters[0].when == "host = 'a'"
    with pytest.raises(SpecError, match=r"when: there is no column .hst"):
        check_flow(flow("parse: {format: syslog}\n    when: \"hst = 'a'\""))
    with pytest.raises(SpecError, match=r"filters\[0\].when: expected"):
        check_flow(flow("parse: {format: syslog}\n    when: [a]"))
    with pytest.raises(SpecError, match=r"drop takes no condition: .*the same columns"):
        check_flow(flow("drop: [body]\n    when: \"host = 'a'\""))
    with pytest.raises(SpecError, match="expected one filter in each entry"):
        check_flow(flow("parse: {format: syslog}\n    where: \"host = 'a'\""))


def test_where_keeps_events_outside_its_condition() -> None:
    under = WhereFilter(Where("n > 1")).under("n IS NULL")
    assert under.condition.stage(BEFORE) is None
    text = under.condition.for_spark(BEFORE)
    assert text == "coalesce(NOT (`n` IS NULL), TRUE) OR (`n` > 1)"


@pytest.mark.parametrize(
    ("step", "later", "message"),
    [
        ('select: [ts, "upper(host) AS name"]', "body IS NULL AND name = 'A'", ""),
        (
            'select: [ts, "length(body) AS host"]',
            "",
            "host is a string in events that bypass the filter",
        ),
        ('select: [ts, "host AS Host"]', "", "there is a column Host already"),
        ('sql: "SELECT host, count(*) AS n FROM events GROUP BY host"', "n > 1 OR seq = 1", ""),
        ('sql: "SELECT count(*) AS body FROM events"', "", "body is a binary in events that"),
    ],
)
def test_unmatched_events_keep_their_columns_in_the_check(
    step: str, later: str, message: str
) -> None:
    filters = [f"{step}\n    when: \"host = 'a'\"", *([f'where: "{later}"'] if later else [])]
    try:
        check_flow(flow(*filters))
        assert not message
    except SpecError as error:
        assert message
        assert message in str(error)


def test_merged_column_type_holds_values_of_both_branches() -> None:
    """So an event that leaves a column out, or has a smaller number in it, loses nothing."""
    before = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.list_(pa.int32()))])
    through = pa.schema([("a", pa.int64()), ("c", pa.list_(pa.int64())), ("d", pa.float32())])
    found = either(before, through)
    assert found.names == ["a", "b", "c", "d"]
    assert (found.field("a").type, found.field("c").type) == (pa.int64(), pa.list_(pa.int64()))
    batch = pa.RecordBatch.from_pylist([{"a": 1, "b": "x", "c": [2]}], before)
    assert fitted(batch, found).to_pylist() == [{"a": 1, "b": "x", "c": [2], "d": None}]
    with pytest.raises(UserError, match=r"when: .*another type"):
        either(pa.schema([("a", pa.int32())]), pa.schema([("a", pa.list_(pa.int32()))]))


ALPHA = "parse: {format: key_value, schema: 'level STRING, code INT'}\n    when: \"host = 'a'\""
BETA = "parse: {format: json, schema: 'code BIGINT, level STRING'}\n    when: \"host = 'b'\""


def test_conditional_formats_add_the_same_columns_with_the_same_types() -> None:
    check_flow(flow(ALPHA, BETA, "where: \"code > 1 AND level = 'x'\""))
    check_flow(flow(ALPHA.partition("\n")[0], BETA))
    for later, message in [
        (BETA.partition("\n")[0], "there is a column code already"),
        (BETA.replace("code BIGINT", "code STRING"), "code is a integer in events that bypass"),
        (BETA.replace("code BIGINT", "Code BIGINT"), "there is a column Code already"),
        (BETA.replace("code BIGINT", "seq BIGINT"), "there is a column seq already"),
    ]:
        with pytest.raises(SpecError, match=message):
            check_flow(flow(ALPHA, later))


def test_exactly_once_path_is_checked_behind_a_column_added_by_two_filters() -> None:
    """A table decides which events the second filter reads, and so the place of each event."""
    table = "{csv: /a.csv, schema: 'host STRING, team STRING'}"
    text = flow(
        ALPHA, f"lookup: {{on: [host], table: {table}}}", BETA.replace("host = 'b'", "team = 'b'")
    )
    sink = "elasticsearch: {hosts: ['https://e:9200'], index: 'logs-{level}'}"
    with pytest.raises(SpecError, match="places events by level"):
        check_flow(text.replace("noop", sink) + "delivery: exactly-once\n")


def test_unmatched_events_keep_a_column_added_by_two_filters() -> None:
    def again(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert batch.schema.names == ["n", ROW]
            yield from add_text(iter([batch]))

    stage = ConditionalStage(again, BEHIND, BEHIND, frozenset({"text"}))
    numbers, texts = pa.array([1, 2, 3], pa.int64()), pa.array(["a", "b", None])
    for marks, expected in [
        ([True, False, False], ["n1", "b", None]),
        ([True, True, True], ["n1", "n2", "n3"]),
        ([False, False, False], ["a", "b", None]),
    ]:
        columns = [numbers, texts, pa.array(marks, pa.bool_())]
        (found,) = stage(iter([pa.RecordBatch.from_arrays(columns, ["n", "text", WHEN])]))
        assert found["text"].to_pylist() == expected
