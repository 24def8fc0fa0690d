"""Batches of the size that a sink wants: no event is lost, doubled or moved."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flumeng.connectors.api import chunks


def batch(*bodies: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], ["body"])


@pytest.mark.parametrize("about_bytes", [1, 1_000, 4 * 2**20])
def test_gathered_batches_keep_every_event_and_are_cut_by_size(about_bytes: int) -> None:
    small = [batch(b"x" * 100, b"y") for _ in range(5)]
    large = [b"z" * 2**20] * 40
    found = list(chunks.gathered(iter([*small, batch(), batch(*large)]), about_bytes))
    assert [body.as_py() for part in found for body in part["body"]] == [
        *[b"x" * 100, b"y"] * 5,
        *large,
    ]
    assert all(part.num_rows for part in found)
    assert max(part.nbytes for part in found) <= max(2 * about_bytes, 2**20 + 1_000)
    assert list(chunks.gathered(iter([]), about_bytes)) == []


def test_tables_reach_the_requested_size_except_the_last() -> None:
    parts = [batch(b"x" * 1_000, b"y" * 1_000) for _ in range(5)]
    found = list(chunks.tables(iter([batch(), *parts]), 3_000))
    assert [table.num_rows for table in found] == [4, 4, 2]
