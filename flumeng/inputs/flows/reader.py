"""Reads ranges of the journals of another flow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from flumeng.inputs import Range
from flumeng.inputs.journals.reader import JournalReader
from flumeng.state.partitions import journal_of


@dataclass(frozen=True)
class SubscribedReader:
    """See ``Reader``. Events have the identity that they have in the flow that received them."""

    inner: JournalReader

    @property
    def schema(self) -> pa.Schema:
        return self.inner.schema

    @property
    def modules(self) -> frozenset[str]:
        return self.inner.modules

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        return self.inner.read(replace(piece, partition=journal_of(piece.partition)), address)
