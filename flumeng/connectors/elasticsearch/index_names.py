"""The index of each event: from its own time and columns, the same whenever it is written."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.elasticsearch.options import INDEX_PART
from flumeng.events.pattern_path import DAY_MICROSECONDS, EARLIEST, LATEST, UNITS_MICROSECONDS
from flumeng.platform.errors import UserError

PLACES = {
    "%Y": slice(0, 4),
    "%m": slice(5, 7),
    "%d": slice(8, 10),
    "%H": slice(11, 13),
    "%M": slice(14, 16),
}
"""Where a part of the time stands in ``2026-03-01 10:20:30``."""
VALUE_CHARACTERS = 100
NAME_CHARACTERS = 255
NO_VALUE = "none"
_ILLEGAL = re.compile(r"[^a-z0-9._-]+")


class IndexNames:
    def __init__(self, pattern: str) -> None:
        self._parts = [part for part in _split(pattern) if part[1]]
        times = [text for kind, text in self._parts if kind == "time"]
        self._unit = min((UNITS_MICROSECONDS.get(t, DAY_MICROSECONDS) for t in times), default=0)
        self._columns = [text for kind, text in self._parts if kind == "column"]
        left = NAME_CHARACTERS - sum(_characters(*part) for part in self._parts)
        self._most = min(VALUE_CHARACTERS, left // max(1, len(self._columns)))

    def check(self, events: pa.Schema) -> None:
        """Raises UserError when ``events`` do not have what the names are made of."""
        if self._unit and not ("ts" in events.names and _is_time(events.field("ts").type)):
            raise UserError("index needs the column ts, which select has dropped")
        for name in self._columns:
            if name not in events.names:
                raise UserError(f"index needs the column {name}, which is not there")
            kind = events.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_binary(kind):
                raise UserError(f"index cannot have the column {name} in it, which is {kind}")

    def of(self, events: pa.RecordBatch) -> list[bytes | pa.Array]:
        """Parts of names, the same for all events or an array; one after the other they are the
        names. An event without a time goes where 1970 is."""
        moments, which = self._moments(events)
        found: list[bytes | pa.Array] = []
        for place, (kind, text) in enumerate(self._parts):
            if kind == "column":
                column = events.column(text).cast(pa.string()).dictionary_encode("encode")
                values = [
                    legal(value, self._most, first=place == 0)
                    for value in column.dictionary.to_pylist()
                ]
                found.append(_spread(values, column.indices))
            elif kind == "time":
                found.append(_spread([moment[PLACES[text]] for moment in moments], which))
            else:
                found.append(text.encode())
        return found

    def _moments(self, events: pa.RecordBatch) -> tuple[list[str], pa.Array]:
        """The periods of the events, and which of them each event is in."""
        if not self._unit:
            return [], pa.array([], pa.int32())
        times = events.column("ts").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        periods = np.clip(pc.fill_null(times, 0).to_numpy(), EARLIEST, LATEST) // self._unit
        numbers, which = periods[:1], np.zeros(len(periods), np.int64)
        if periods.min() != periods.max():
            numbers, which = np.unique(periods, return_inverse=True)
        starts = np.maximum(numbers * self._unit, EARLIEST)
        texts = pa.array(starts, pa.timestamp("us")).cast(pa.string())
        return texts.to_pylist(), pa.array(which, pa.int32())


def legal(value: str | None, most: int = VALUE_CHARACTERS, *, first: bool = False) -> str:
    """``value`` as a part of an index name that every cluster takes, or as its ``first`` part: no
    name begins with ``-``, ``_`` or ``+``, and none is ``.`` or ``..``."""
    found = _ILLEGAL.sub("-", (value or "").lower())
    if first:
        found = found.lstrip("-_")
        found = found if found.strip(".") else ""
    return found[:most] or NO_VALUE


def _characters(kind: str, text: str) -> int:
    """How many a part takes that is not a column."""
    if kind == "time":
        return PLACES[text].stop - PLACES[text].start
    return len(text) if kind == "fixed" else 0


def _split(pattern: str) -> Iterator[tuple[str, str]]:
    """Kind and text of each part: ``fixed``, ``time`` or ``column``."""
    end = 0
    for part in INDEX_PART.finditer(pattern):
        yield "fixed", pattern[end : part.start()]
        yield ("time", part[1]) if part[1] else ("column", part[2])
        end = part.end()
    yield "fixed", pattern[end:]


def _spread(values: list[str], which: pa.Array) -> bytes | pa.Array:
    if len(values) == 1:
        return values[0].encode()
    return pa.array(values, pa.string()).cast(pa.binary()).take(which)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind))
