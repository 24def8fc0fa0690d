"""Reads ranges of the journals of another flow."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from flumeng.connectors.api.ranged import Range, Split
from flumeng.connectors.journals.reader import JournalReader
from flumeng.connectors.ranged.reading import bounds
from flumeng.control.snapshot.partitions import journal_of, subscribed


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

    def credentials(self) -> Hashable:
        return self.inner.credentials()

    def admitted(self, splits: Sequence[Split], addresses: Mapping[str, str]) -> dict[str, str]:
        known = {journal_of(name): addresses[name] for name in bounds(splits)}
        journals = [
            tuple(replace(piece, partition=journal_of(piece.partition)) for piece in split)
            for split in splits
        ]
        admitted = self.inner.admitted(journals, known)
        return {subscribed(name): address for name, address in admitted.items()}

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        return self.inner.read(replace(piece, partition=journal_of(piece.partition)), address)
