"""Casts of whole columns: the same values as a slower way that reads every row by itself."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.filters import timestamps
from flumeng.filters.formats.casts import cast, moments

INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
FORMS = (
    "2026-11-09T10:12:15Z",
    "2026-11-09T10:12:15.003Z",
    "2026-11-09 10:12:15.123456+01:00",
    "2026-11-09T10:12:15.123456789Z",
    "2026-11-09T10:12:15-0730",
    "2026-11-09T10:12+14",
    "2026-11-09T10:12:15",
    "2026-11-09t10:12:15z",
    "2026-11-09T10+01:00",
    "2026-11-09T10Z",
    "2026-11-09 10:12:15 UTC",
    "2026-11-09",
    "20261109T101215Z",
    " 2026-11-09T10:12:15Z",
    "9999-12-31T23:59:59-01:00",
    "0001-01-01T00:00:00+01:00",
    "0000-01-01T00:00:00Z",
    "2026-02-29T00:00:00Z",
    "2026-01-01T23:59:60Z",
    "2026-01-01T24:00:00Z",
    "2026-01-01T00:00:00+24:00",
    "10:00",
    "",
)


def alike(form: str) -> st.SearchStrategy[str]:
    """Texts with digits where ``form`` has some, most of them those of ``form``."""
    parts = [
        st.just(it) | st.sampled_from("0123569") if it.isdigit() else st.just(it) for it in form
    ]
    return st.tuples(*parts).map("".join)


columns = st.sampled_from(FORMS).flatmap(
    lambda form: st.lists(st.none() | st.just(form) | alike(form), max_size=5)
)
mixed = st.lists(st.none() | st.sampled_from(FORMS).flatmap(alike) | st.text(max_size=3))


def row_by_row(texts: list[str | None]) -> list[int | None]:
    micros, valid = moments(pa.array([it or "" for it in texts], pa.string()))
    return [int(it) if fits else None for it, fits in zip(micros, valid, strict=True)]


def read(texts: list[str | None], to: pa.DataType) -> list[int | None]:
    values, failed = cast(pa.array(texts, pa.string()), to)
    found: list[int | None] = values.cast(pa.int64()).to_pylist()
    assert failed.tolist() == [
        text is not None and it is None for text, it in zip(texts, found, strict=True)
    ]
    return found


@pytest.mark.parametrize("to", [INSTANT, LOCAL])
@pytest.mark.parametrize("form", FORMS)
def test_a_column_of_one_form_has_the_times_of_its_rows(form: str, to: pa.DataType) -> None:
    texts = [form, None, form]
    assert read(texts, to) == row_by_row(texts)


@given(columns | mixed, st.sampled_from([INSTANT, LOCAL]))
def test_columns_have_the_times_of_their_rows(texts: list[str | None], to: pa.DataType) -> None:
    assert read(texts, to) == row_by_row(texts)
    assert all(
        it is None or timestamps.FIRST_MOMENT <= it <= timestamps.LAST_MOMENT
        for it in read(texts, to)
    )


edges = st.sampled_from([7, 8, 15, 16, 31, 32, 63, 64]).map(lambda bits: 2**bits)
integers = st.builds(lambda edge, off, sign: sign * (edge + off), edges, st.integers(-2, 2),
                     st.sampled_from([1, -1]))  # fmt: skip
written = st.builds(
    lambda sign, zeros, number: sign + "0" * zeros + number,
    st.sampled_from(["", "", "+", "-"]),
    st.sampled_from([0, 0, 1, 17, 37, 39]),
    st.integers(0, 10**20).map(str) | st.sampled_from(["0x1F", "1.0", "", " 1", "1e3", "٣"]),
)


@given(
    st.lists(st.none() | integers.map(str) | written, max_size=4),
    st.sampled_from([pa.int8(), pa.int16(), pa.int32(), pa.int64()]),
)
def test_whole_numbers_are_those_of_python_in_range(
    texts: list[str | None], to: pa.DataType
) -> None:
    values, failed = cast(pa.array(texts, pa.string()), to)
    wanted = [None if it is None else whole(it, to) for it in texts]
    assert values.to_pylist() == wanted
    assert failed.tolist() == [
        text is not None and it is None for text, it in zip(texts, wanted, strict=True)
    ]


def whole(text: str, to: Any) -> int | None:
    if not re.fullmatch("[+-]?[0-9]{1,38}", text):
        return None
    limit = 2 ** (to.bit_width - 1)
    return int(text) if -limit <= int(text) < limit else None


@pytest.mark.parametrize("rows", [2, 64, 65, 200])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_an_hour_alone_among_times_of_its_width_is_refused(rows: int, place: int) -> None:
    texts: list[str | None] = ["2026-11-09T10:12+14"] * rows
    texts[place] = "2026-11-09T10+01:00"
    values, failed = cast(pa.array(texts), INSTANT)
    assert values.cast(pa.int64()).to_pylist() == row_by_row(texts)
    assert failed.nonzero()[0].tolist() == [place % rows]
