"""Memory that a body may take before its content is known."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.connectors.http import body as http_body
from flumeng.connectors.http.body import (
    MOST_ENTRIES,
    MemoryBound,
    OverBoundError,
    RefusedError,
    Share,
)

LIMIT = 4 << 20
JSON = "application/json"


def lone() -> Share:
    return Share(MemoryBound(0))


def test_shares_together_stay_within_the_bound_and_one_alone_may_exceed_it() -> None:
    bound = MemoryBound(100)
    with bound.share() as first, bound.share() as second:
        first.take(150)
        with pytest.raises(OverBoundError):
            second.take(1)
        first.give_back_to(60)
        first.give_back_to(80)
        second.take(40)
        with pytest.raises(OverBoundError):
            first.take(1)
        assert (first.held_bytes, second.held_bytes, bound.held_bytes) == (60, 40, 100)
    with pytest.raises(OverBoundError):
        first.take(1)  # by a thread that parses a body whose request is over
    assert bound.held_bytes == 0


@pytest.mark.parametrize(
    "entries",
    [
        b"[" + b"1," * (LIMIT // 2 - 1) + b"1]",
        b"[" + b"," * (LIMIT - 2) + b"]",
        b"[" + b"[]," * (LIMIT // 3 - 1) + b"1]",
    ],
    ids=["ones", "commas", "lists"],
)
def test_an_array_of_too_many_entries_is_refused_before_they_are_made(entries: bytes) -> None:
    """One of 4 MiB was 147 MiB of them."""
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError, match="more than 100000 entries") as refused:
            http_body.pieces(entries, "", JSON, LIMIT, lone())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413
    assert peak < 20 << 20


def test_commas_within_entries_do_not_count() -> None:
    rows = [{"n": list(range(50)), "t": 'a,"b\\\\",[{'} for _ in range(3000)]
    (piece,) = http_body.pieces(json.dumps(rows).encode(), "", JSON, LIMIT, lone())
    assert piece.bounds is not None
    assert len(piece.bounds[0]) == 3000


texts = st.text(alphabet='a",\\[]{}\u00e4', max_size=6)
values = st.recursive(
    st.one_of(st.none(), st.integers(), texts),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.lists(values, min_size=1, max_size=8), st.booleans(), st.sampled_from([None, 2]))
def test_entries_of_an_array_are_counted_as_decoded(
    array: list[Any], ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(array, ensure_ascii=ascii_only, indent=indent).encode()
    assert http_body._entries(text) == len(array)
    long = b"[" + b" " * (http_body._SCAN_BYTES - 3) + text[1:]
    assert http_body._entries(long) == len(array)


def test_memory_is_taken_before_a_body_is_unpacked_into_it() -> None:
    """A body of any unpacked size stops at the available memory."""
    bound, bomb = MemoryBound(1 << 20), gzip.compress(bytes(LIMIT))
    with bound.share() as other, bound.share() as memory:
        other.take(1)
        tracemalloc.start()
        try:
            with pytest.raises(OverBoundError):
                http_body.pieces(bomb, "gzip", "", LIMIT, memory)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert memory.held_bytes <= bound.most_bytes
        assert peak < 3 << 20
    assert bound.held_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("", b"x\n" * 100_000),
        ("application/x-ndjson", b"1\n" * 300_000),
        (JSON, b"[" + b"1," * (MOST_ENTRIES - 1) + b"1]"),
        (JSON, b'[{"a": "' + b"x" * 200 + b'"}' + b', {"b": [1, 2, 3]}' * 9000 + b"]"),
        (JSON, b'"' + b"x" * 3_000_000 + b'"'),
    ],
)
def test_memory_taken_for_parsing_covers_its_peak(kind: str, body: bytes) -> None:
    memory = lone()
    tracemalloc.start()
    try:
        found = http_body.pieces(body, "", kind, LIMIT, memory)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found
    assert peak < memory.held_bytes + (2 << 20)
