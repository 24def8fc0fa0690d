"""Parts of items: segments of uncut lines, or rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from flumeng.control.snapshot.items import MOST_POSITION
from flumeng.events import json_text
from flumeng.platform.errors import CorruptError

TEXT_BYTES = 1 << 20


class Segment(NamedTuple):
    """Consecutive lines; the next line begins at ``end``. ``cut``: the beginning of a line that is
    too long."""

    position: int
    end: int
    data: bytes
    cut: bool = False


class Rows(NamedTuple):
    """Consecutive rows; the first is number ``position``. Unreadable ones are verbatim, with an
    ``error``."""

    position: int
    bodies: pa.BinaryArray
    error: str = ""

    @property
    def end(self) -> int:
        return self.position + len(self.bodies)

    def between(self, start: int, end: int) -> Rows:
        """Those in [start, end), at least one."""
        first, last = max(start - self.position, 0), end - self.position
        return Rows(self.position + first, self.bodies[first:last], self.error)

    def behind(self, start: int) -> Rows:
        return self.between(start, self.end)


Part = Segment | Rows


def numbered(bodies: Iterator[pa.BinaryArray | str], start: int, end: int) -> Iterator[Rows]:
    """The rows [start, end) of an item, reading no further. A text is the error of the row that
    follows."""
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
    """Rows as JSON, a few MB at a time. Raises UserError for columns that JSON cannot show."""
    each = max(1, rows.num_rows * TEXT_BYTES // max(rows.nbytes, 1))
    for first in range(0, rows.num_rows, each):
        yield json_text.rows(rows[first : first + each])
