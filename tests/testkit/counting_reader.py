"""A reader for tests of batches on a real Spark, whose workers import this module and no test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from flumeng.connectors.api.ranged import Range
from flumeng.connectors.journals.reader import JournalReader
from flumeng.events.schema import READ_SCHEMA


@dataclass(frozen=True)
class CountingReader:
    """Notes each range that is read, from whichever process."""

    notes: str
    modules: frozenset[str] = frozenset()

    @property
    def schema(self) -> pa.Schema:
        return READ_SCHEMA

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        with Path(self.notes).open("a") as file:
            file.write(f"{piece.start} {piece.end}\n")
        yield from JournalReader().read(piece, address)
