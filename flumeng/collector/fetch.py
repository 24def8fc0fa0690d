"""The first stage of every batch: an executor reads its split from the journals' servers.

Where a journal is served is part of the split, so an executor needs neither ZooKeeper nor
configuration. A range comes whole and checked, or the Spark task fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from flumeng.collector.ranges import Split
from flumeng.journal.client import JournalClient

TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Fetch:
    """``addresses``: journal -> host:port, for every journal in ``splits``."""

    splits: tuple[Split, ...]
    addresses: Mapping[str, str]

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Takes batches of split numbers, gives READ_SCHEMA."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._read(self.splits[number])

    def _read(self, split: Split) -> Iterator[pa.RecordBatch]:
        for piece in split:
            with JournalClient(self.addresses[piece.journal], TIMEOUT_SECONDS) as client:
                yield from client.read(
                    piece.journal, piece.start, piece.end, replayed=piece.replayed
                )
