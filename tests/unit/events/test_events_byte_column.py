"""Column text and parse errors: byte-exact, for any rows."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.events.attributes import note
from flumeng.events.byte_column import ByteColumn, text

rows = st.lists(st.none() | st.binary(max_size=12) | st.text(max_size=6).map(str.encode))


@given(rows, st.integers(0, 3))
@settings(max_examples=3 * settings().max_examples)
def test_text_decodes_each_row_by_itself(given_rows: list[bytes | None], skip: int) -> None:
    column = pa.array(given_rows, pa.binary()).slice(skip)
    decoded = text(column)
    decoded.validate(full=True)
    assert decoded.to_pylist() == [
        None if row is None else row.decode("utf-8", "replace") for row in given_rows[skip:]
    ]


def test_halves_of_a_character_in_two_rows_do_not_join() -> None:
    assert text(pa.array([b"a\xc3", b"\xa9b", b"\xff"])).to_pylist() == [
        "a\ufffd",
        "\ufffdb",
        "\ufffd",
    ]


@given(st.lists(st.binary(max_size=9), min_size=1), st.integers(1, 6))
def test_byte_window_shows_the_rows_padded_with_zeros(given_rows: list[bytes], width: int) -> None:
    flat = ByteColumn(pa.array(given_rows, pa.binary()))
    window = flat.window(flat.starts, width, flat.ends)
    assert [bytes(window[:, row]) for row in range(len(given_rows))] == [
        row[:width].ljust(width, b"\0") for row in given_rows
    ]


attributes = st.none() | st.dictionaries(
    st.sampled_from(["a", "b", "parse_error"]), st.text(max_size=3)
)


@given(
    st.lists(st.tuples(attributes, st.none() | st.sampled_from(["bad", "worse"]))),
    st.integers(0, 2),
)
@settings(max_examples=3 * settings().max_examples)
def test_reason_is_added_where_there_is_none_yet(
    given_rows: list[tuple[dict[str, str] | None, str | None]], skip: int
) -> None:
    maps = [None if attrs is None else list(attrs.items()) for attrs, _ in given_rows]
    attrs = pa.array(maps, pa.map_(pa.string(), pa.string())).slice(skip)
    reasons = pa.array([reason for _, reason in given_rows], pa.string()).slice(skip)

    noted = note(attrs, reasons)

    noted.validate(full=True)
    assert noted.type == attrs.type
    for row, (before, reason) in zip(noted.to_pylist(), given_rows[skip:], strict=True):
        expected = dict(before or {})
        if reason is not None:
            expected.setdefault("parse_error", reason)
        assert dict(row or []) == expected


def test_attributes_are_not_copied_without_reasons() -> None:
    attrs = pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))
    assert note(attrs, pa.array([None], pa.string())) is attrs


def test_find_gives_positions_of_the_slice_only() -> None:
    flat = ByteColumn(pa.array([b" a ", b" b", b"c "]).slice(1, 1))
    assert flat.find(" ").tolist() == [3]
    assert np.array_equal(flat.starts, [3]) and np.array_equal(flat.ends, [5])
