"""In-memory size of the events that a task reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from flumeng.connectors.api.ranged import Range
from flumeng.connectors.ranged import reports
from flumeng.connectors.ranged.reading import Reader
from flumeng.connectors.ranged.reports import Reports

EVENTS, BYTES = "read events", "read bytes"


class EventSizes:
    """Measured event sizes of one task, in the driver."""

    def __init__(self, given: Reports) -> None:
        self._reports = given
        self._before = self._values()
        self._taken = self._before[0]

    def measured(self, reader: Reader) -> MeasuredReader:
        return MeasuredReader(reader)

    def take(self) -> float | None:
        """Return the bytes per event since the last call; None when there were no events."""
        before, self._before = self._before, self._values()
        events, nbytes = (now - then for now, then in zip(self._before, before, strict=True))
        return nbytes / events if events else None

    def take_events(self) -> int:
        before, self._taken = self._taken, self._values()[0]
        return self._taken - before

    def _values(self) -> tuple[int, int]:
        counts = self._reports.counts
        return counts.get(EVENTS, 0), counts.get(BYTES, 0)


@dataclass(frozen=True)
class MeasuredReader:
    """A ``Reader`` that counts the events and bytes of each range that is read to its end."""

    reader: Reader

    @property
    def schema(self) -> pa.Schema:
        return self.reader.schema

    @property
    def modules(self) -> frozenset[str]:
        return self.reader.modules

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        events = nbytes = 0
        for batch in self.reader.read(piece, address):
            events += batch.num_rows
            nbytes += batch.nbytes
            yield batch
        reports.count({EVENTS: events, BYTES: nbytes})
