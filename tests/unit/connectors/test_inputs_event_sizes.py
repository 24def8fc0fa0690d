"""How large events are is counted where they are read, of ranges that are read to their end."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest

from flumeng.connectors.api.ranged import Range
from flumeng.connectors.ranged.sizes import EventSizes
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import CorruptError
from tests.unit.agent.local_accumulator import LocalAccumulator

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


def test_mean_event_size_is_reported_once_and_by_task() -> None:
    counts = LocalAccumulator()
    web, api = EventSizes(counts, "web/0"), EventSizes(counts, "api/0")
    reader = pickle.loads(pickle.dumps(web.measured(Numbers())))
    assert sum(batch.num_rows for batch in reader.read(Range("j", 0, 5), "")) == 5
    assert (web.take(), api.take()) == (8.0, None)
    assert web.take() is None
    again = EventSizes(counts, "web/0")
    assert again.take() is None, "what the pipeline before has read is not told again"


def test_unreadable_range_is_not_counted() -> None:
    sizes = EventSizes(LocalAccumulator(), "web/0")
    with pytest.raises(CorruptError):
        list(sizes.measured(Numbers()).read(Range("bad", 0, 5), ""))
    assert sizes.take() is None
