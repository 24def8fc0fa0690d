"""How large events are is counted where they are read, of ranges that are read to their end."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest

from flumeng.connectors.api.ranged import Range
from flumeng.connectors.ranged import reports
from flumeng.connectors.ranged.sizes import EventSizes
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import CorruptError

NUMBERS = pa.schema([pa.field("n", pa.int64())])


class Numbers:
    """Eight bytes an event, in batches of two; reading the journal `bad` fails."""

    schema = READ_SCHEMA
    modules: frozenset[str] = frozenset()

    def read(self, piece: Range, _address: str) -> Iterator[pa.RecordBatch]:
        for first in range(piece.start, piece.end, 2):
            numbers = pa.array(range(first, min(first + 2, piece.end)), pa.int64())
            yield pa.RecordBatch.from_arrays([numbers], schema=NUMBERS)
            if piece.partition == "bad":
                raise CorruptError("bits")


def test_mean_event_size_is_reported_once() -> None:
    with reports.collecting() as made:
        sizes = EventSizes(made)
        reader = pickle.loads(pickle.dumps(sizes.measured(Numbers())))
        assert sum(batch.num_rows for batch in reader.read(Range("j", 0, 5), "")) == 5
    assert sizes.take() == 8.0
    assert sizes.take() is None


def test_unreadable_range_is_not_counted() -> None:
    with reports.collecting() as made, pytest.raises(CorruptError):
        sizes = EventSizes(made)
        list(sizes.measured(Numbers()).read(Range("bad", 0, 5), ""))
    assert sizes.take() is None
