"""The first stage of every batch: an executor reads its split from the journals' servers.

Where a journal is served is part of the split, so an executor needs neither ZooKeeper nor
configuration. A range comes whole and checked, or the Spark task fails, and says where.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from flumeng.collector.ranges import Split
from flumeng.errors import CorruptError, UserError
from flumeng.journal.client import JournalClient

TIMEOUT_SECONDS = 60.0
_UNREADABLE = re.compile(r"journal (\S+) cannot be read at seq (\d+): (.*)")


class UnreadableError(CorruptError):
    """What a journal has from ``seq`` on cannot be read now; ``why`` is for people."""

    def __init__(self, journal: str, seq: int, why: str) -> None:
        super().__init__(journal, seq, why)
        self.journal, self.seq, self.why = journal, seq, why

    def __str__(self) -> str:
        return f"journal {self.journal} cannot be read at seq {self.seq}: {self.why}"

    @classmethod
    def parse(cls, text: str) -> UnreadableError:
        """The reverse: all that comes of an executor's error is its text."""
        found = _UNREADABLE.fullmatch(text)
        assert found, text
        return cls(found[1], int(found[2]), found[3])


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
            seq = piece.start
            with JournalClient(self.addresses[piece.journal], TIMEOUT_SECONDS) as client:
                try:
                    for batch in client.read(
                        piece.journal, seq, piece.end, replayed=piece.replayed
                    ):
                        yield batch
                        seq = batch.column("seq")[-1].as_py() + 1
                except (CorruptError, UserError) as error:
                    raise UnreadableError(piece.journal, seq, str(error)) from error
