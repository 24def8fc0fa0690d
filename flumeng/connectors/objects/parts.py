"""What is found in an item: lines that are still to be cut, or rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from flumeng.control.snapshot.items import MOST_POSITION
from flumeng.events import json_text
from flumeng.platform.errors import CorruptError

TEXT_BYTES = 1 << 20


class Segment(NamedTuple):
    """Lines that lie one after the other: ``data`` begins at ``position`` and the next line at
    ``end``. One that is ``cut`` is the beginning of a line that is too long."""

    position: int
    end: int
    data: bytes
    cut: bool = False


class Rows(NamedTuple):
    """Rows that lie one after the other: the first one is number ``position``. Those that have an
    ``error`` are as they stand there, since they could not be read."""

    position: int
    bodies: pa.BinaryArray
    error: str = ""

    @property
    def end(self) -> int:
        return self.position + len(self.bodies)

    def between(self, start: int, end: int) -> Rows:
        """Those in [start, end), of which there is one at least."""
        first, last = max(start - self.position, 0), end - self.position
        return Rows(self.position + first, self.bodies[first:last], self.error)

    def behind(self, start: int) -> Rows:
        """Those from ``start`` on."""
        return self.between(start, self.end)


Part = Segment | Rows


def numbered(bodies: Iterator[pa.BinaryArray | str], start: int, end: int) -> Iterator[Rows]:
    """Those of all rows of an item that are in [start, end). No more is read than has to be. A text
    is why the row that follows could not be read."""
    position, error = 0, ""
    while position < end:
        found = next(bodies, None)
        if found is None:
            return
        if isinstance(found, str):
            error = found
            continue
        rows = Rows(position, found, error)
        if rows.end > MOST_POSITION:
            raise CorruptError(f"it has more than {MOST_POSITION} rows")
        position, error = rows.end, ""
        if max(start, rows.position) < min(end, rows.end):
            yield rows.between(start, end)


def texts_of(rows: pa.RecordBatch) -> Iterator[pa.BinaryArray]:
    """Each row as JSON, of so many at once that their texts take a few MB. Raises UserError for
    columns that JSON cannot show."""
    each = max(1, rows.num_rows * TEXT_BYTES // max(rows.nbytes, 1))
    for first in range(0, rows.num_rows, each):
        yield json_text.rows(rows[first : first + each])
