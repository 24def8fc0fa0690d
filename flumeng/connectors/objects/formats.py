"""Formats of items, and the parts they yield: segments of lines not split yet, or rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

import pyarrow as pa

from flumeng.connectors.objects.content import Content, is_utf8
from flumeng.connectors.objects.options import Format, ObjectsSource
from flumeng.control.snapshot.items import MOST_POSITION
from flumeng.events import json_text
from flumeng.platform.errors import CorruptError
from flumeng.platform.options.patterns import split_query

TEXT_BYTES = 1 << 20


class Segment(NamedTuple):
    """Consecutive lines at byte positions [``position``, ``end``). ``cut``: ``data`` is only the
    beginning of one overlong line."""

    position: int
    end: int
    data: bytes
    cut: bool = False


class Rows(NamedTuple):
    """Consecutive rows from number ``position`` on. ``error``: their parse error, or empty."""

    position: int
    bodies: pa.BinaryArray
    error: str = ""

    @property
    def end(self) -> int:
        return self.position + len(self.bodies)

    def between(self, start: int, end: int) -> Rows:
        first, last = max(start - self.position, 0), end - self.position
        return Rows(self.position + first, self.bodies[first:last], self.error)

    def behind(self, start: int) -> Rows:
        return self.between(start, self.end)


Part = Segment | Rows


def numbered(bodies: Iterator[pa.BinaryArray | str], start: int, end: int) -> Iterator[Rows]:
    """Yield rows [start, end), read no further. A text in ``bodies`` is the next array's error."""
    position, error = 0, ""
    while position < end:
        body = next(bodies, None)
        if body is None:
            return
        if isinstance(body, str):
            error = body
            continue
        rows = Rows(position, body, error)
        if rows.end > MOST_POSITION:
            raise CorruptError(f"the content has more than {MOST_POSITION} rows")
        position, error = rows.end, ""
        if max(start, rows.position) < min(end, rows.end):
            yield rows.between(start, end)


def texts_of(rows: pa.RecordBatch) -> Iterator[pa.BinaryArray]:
    """Yield rows as JSON, in parts of a few MB. Raises UserError for types that JSON lacks."""
    each = max(1, rows.num_rows * TEXT_BYTES // max(rows.nbytes, 1))
    for first in range(0, rows.num_rows, each):
        yield json_text.rows(rows[first : first + each])


MODULES: Mapping[Format, str] = {
    "lines": "flumeng.connectors.objects.lines",
    "ndjson": "flumeng.connectors.objects.lines",
    "json": "flumeng.connectors.objects.json_elements",
    "csv": "flumeng.connectors.objects.csv_rows",
    "parquet": "flumeng.connectors.objects.parquet_rows",
    "avro": "flumeng.connectors.objects.avro_rows",
}
SUFFIXES = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4", ".bz2": "bz2", ".xz": "xz"}
TAR_SUFFIXES = (".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst")
_WHOLE = (*SUFFIXES, *TAR_SUFFIXES, ".zip")

FindParts = Callable[[Content, ObjectsSource, int, int], Iterator[Part]]


def parts_of(form: Format) -> FindParts:
    parts: FindParts = import_module(MODULES[form]).parts
    return parts


def chosen(source: ObjectsSource, names: Sequence[str]) -> list[str]:
    """Return those of ``names`` that are configured columns; all by default. Raises CorruptError
    when there are none."""
    if source.columns is None:
        return list(names)
    columns = [name for name in names if name in source.columns]
    if names and not columns:
        raise CorruptError(f"the content has none of the columns {', '.join(source.columns)}")
    return columns


def cuttable(source: ObjectsSource) -> Callable[[str], bool]:
    """Return a test whether the item at a location can be read from any position."""
    if source.format not in ("lines", "ndjson") or not is_utf8(source.encoding):
        return lambda _location: False
    return lambda location: not split_query(location)[0].endswith(_WHOLE)
