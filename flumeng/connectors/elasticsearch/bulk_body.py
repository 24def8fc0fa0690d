"""Builds the lines of bulk requests: action, index, id and document of each event."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.elasticsearch.options import INDEX_PART, RESERVED, Elasticsearch
from flumeng.events import identity, json_text
from flumeng.events.pattern_path import DAY_MICROSECONDS, EARLIEST, LATEST, UNITS_MICROSECONDS
from flumeng.platform.errors import UserError

TIME_OF_STREAMS = "@timestamp"


class BulkBody:
    def __init__(self, options: Elasticsearch) -> None:
        self._names = IndexNames(options.index)
        self._identified = options.id == "event"
        self._routing = options.routing
        self._streams = options.data_stream
        self.op = "create" if options.data_stream else options.op

    def check(self, events: pa.Schema) -> None:
        """Raise UserError when a column is missing, of an unsuitable type, or reserved."""
        self._names.check(events)
        if self._routing is not None and self._routing not in events.names:
            raise UserError(f"routing needs the column {self._routing}, which is missing")
        kind = None if self._routing is None else events.field(self._routing).type
        if kind is not None and (pa.types.is_nested(kind) or pa.types.is_binary(kind)):
            raise UserError(f"routing: the column {self._routing} is {kind}: cast it to text")
        if self._streams and "ts" not in events.names:
            raise UserError("a data stream needs the column ts, which the filters do not keep")
        if reserved := sorted(RESERVED.intersection(events.names)):
            raise UserError(f"{', '.join(reserved)}: reserved by Elasticsearch: rename the column")

    def lines(self, events: pa.RecordBatch) -> pa.BinaryArray:
        """Return the two lines (action and document) of each event as one text."""
        parts: list[bytes | pa.Array] = [b'{"%s":{"_index":"' % self.op.encode()]
        parts += self._names.of(events)
        if self._identified:
            parts += [b'","_id":"', *_id(events)]
        parts.append(b'"')
        if self._routing is not None:
            parts.append(_routing(events.column(self._routing)))
        documents = json_text.rows(with_valid_keys(self._documents(identity.strip(events))))
        return pc.binary_join_element_wise(*parts, b"}}\n", documents, b"\n", b"")

    def _documents(self, events: pa.RecordBatch) -> pa.RecordBatch:
        if not self._streams:
            return events
        return events.rename_columns({"ts": TIME_OF_STREAMS})


def _id(events: pa.RecordBatch) -> list[bytes | pa.Array]:
    journal = json_text.escaped(events.column(identity.JOURNAL).cast(pa.binary()))
    seq = events.column(identity.SEQ).cast(pa.string()).cast(pa.binary())
    return [journal, b"-", seq]


def _routing(column: pa.Array) -> pa.Array:
    text = json_text.escaped(column.cast(pa.string()).cast(pa.binary()))
    return pc.fill_null(pc.binary_join_element_wise(b',"routing":"', text, b'"', b""), b"")


TIME_SLICES = {
    "%Y": slice(0, 4),
    "%m": slice(5, 7),
    "%d": slice(8, 10),
    "%H": slice(11, 13),
    "%M": slice(14, 16),
}
"""Positions of year, month, day, hour and minute in ``2026-03-01 10:20:30``."""
VALUE_CHARACTERS = 100
NAME_CHARACTERS = 255
NO_VALUE = "none"
_ILLEGAL = re.compile(r"[^a-z0-9._-]+")


class IndexNames:
    """Derives an event's index from its time and columns, so a repeat gets the same index."""

    def __init__(self, pattern: str) -> None:
        self._parts = [part for part in _split(pattern) if part[1]]
        times = [text for kind, text in self._parts if kind == "time"]
        self._unit = min((UNITS_MICROSECONDS.get(t, DAY_MICROSECONDS) for t in times), default=0)
        self._columns = [text for kind, text in self._parts if kind == "column"]
        left = NAME_CHARACTERS - sum(_characters(*part) for part in self._parts)
        self._most = min(VALUE_CHARACTERS, left // max(1, len(self._columns)))

    def check(self, events: pa.Schema) -> None:
        """Raise UserError when a column of the index name is missing or of an unsuitable type."""
        if self._unit and not ("ts" in events.names and _is_time(events.field("ts").type)):
            raise UserError("index needs the column ts as a time, which the filters do not keep")
        for name in self._columns:
            if name not in events.names:
                raise UserError(f"index needs the column {name}, which is missing")
            kind = events.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_binary(kind):
                raise UserError(f"index: the column {name} is {kind}: cast it to text")

    def of(self, events: pa.RecordBatch) -> list[bytes | pa.Array]:
        """Return parts of index names, constants or arrays. Events without a time get 1970's."""
        starts, periods = self._moments(events)
        parts: list[bytes | pa.Array] = []
        for number, (kind, text) in enumerate(self._parts):
            if kind == "column":
                column = events.column(text).cast(pa.string()).dictionary_encode("encode")
                values = [
                    legal(value, self._most, first=number == 0)
                    for value in column.dictionary.to_pylist()
                ]
                parts.append(_spread(values, column.indices))
            elif kind == "time":
                parts.append(_spread([start[TIME_SLICES[text]] for start in starts], periods))
            else:
                parts.append(text.encode())
        return parts

    def _moments(self, events: pa.RecordBatch) -> tuple[list[str], pa.Array]:
        """Return the distinct time periods of the events, and the number of each event's period."""
        if not self._unit:
            return [], pa.array([], pa.int32())
        times = events.column("ts").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        periods = np.clip(pc.fill_null(times, 0).to_numpy(), EARLIEST, LATEST) // self._unit
        numbers, period_numbers = periods[:1], np.zeros(len(periods), np.int64)
        if periods.min() != periods.max():
            numbers, period_numbers = np.unique(periods, return_inverse=True)
        starts = np.maximum(numbers * self._unit, EARLIEST)
        texts = pa.array(starts, pa.timestamp("us")).cast(pa.string())
        return texts.to_pylist(), pa.array(period_numbers, pa.int32())


def legal(value: str | None, most: int = VALUE_CHARACTERS, *, first: bool = False) -> str:
    """Return ``value`` as a legal part of an index name, of up to ``most`` characters. A ``first``
    part does not begin with ``-`` or ``_``, and does not consist of dots."""
    part = _ILLEGAL.sub("-", (value or "").lower())
    if first:
        part = part.lstrip("-_")
        part = part if part.strip(".") else ""
    return part[:most] or NO_VALUE


def _characters(kind: str, text: str) -> int:
    if kind == "time":
        return TIME_SLICES[text].stop - TIME_SLICES[text].start
    return len(text) if kind == "fixed" else 0


def _split(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the kind (``fixed``, ``time`` or ``column``) and text of each part of ``pattern``."""
    end = 0
    for part in INDEX_PART.finditer(pattern):
        yield "fixed", pattern[end : part.start()]
        yield ("time", part[1]) if part[1] else ("column", part[2])
        end = part.end()
    yield "fixed", pattern[end:]


def _spread(values: list[str], indices: pa.Array) -> bytes | pa.Array:
    if len(values) == 1:
        return values[0].encode()
    return pa.array(values, pa.string()).cast(pa.binary()).take(indices)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind))


BLANK_KEY = "_"
_BLANK_PART = r"(^|\.)[\s\v\pZ\x1c-\x1f]*(\.|$)"
_IS_BLANK = re.compile(r"\s*")


def with_valid_keys(events: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``events`` with map keys that Elasticsearch accepts. A blank part between dots becomes
    ``_``, with more underscores until the key is unique in its map, in the order of entries."""
    columns = [_with_valid_keys(column) for column in events.columns]
    return pa.RecordBatch.from_arrays(
        columns,
        schema=pa.schema(
            [f.with_type(c.type) for f, c in zip(events.schema, columns, strict=True)]
        ),
    )


def _with_valid_keys(column: pa.Array) -> pa.Array:
    """Return the column with valid map keys; without maps it is returned unchanged."""
    kind = column.type
    if not _has_maps(kind):
        return column
    mask = column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        parts = [_with_valid_keys(part) for part in column.flatten()]
        fields = [kind.field(n).with_type(part.type) for n, part in enumerate(parts)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)
    start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    offsets = pc.subtract(column.offsets, start).cast(pa.int32())
    if pa.types.is_map(kind):
        keys = column.keys.slice(start, end - start)
        items = _with_valid_keys(column.items.slice(start, end - start))
        return pa.MapArray.from_arrays(offsets, _valid_keys(keys, offsets), items, mask=mask)
    values = _with_valid_keys(column.values.slice(start, end - start))
    return pa.ListArray.from_arrays(offsets, values, mask=mask)


def _has_maps(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    if pa.types.is_struct(kind):
        return any(_has_maps(kind.field(number).type) for number in range(kind.num_fields))
    return pa.types.is_list(kind) and _has_maps(kind.value_type)


def _valid_keys(keys: pa.Array, offsets: pa.Array) -> pa.Array:
    if not pa.types.is_string(keys.type):
        return keys
    blank = pc.match_substring_regex(keys, _BLANK_PART)
    if not pc.any(blank).as_py():
        return keys
    texts = keys.to_pylist()
    bounds = offsets.to_pylist()
    blank_positions = set(pc.indices_nonzero(blank).to_pylist())
    for start, end in pairwise(bounds):
        positions = range(start, end)
        if not blank_positions.isdisjoint(positions):
            used = {texts[position] for position in positions if position not in blank_positions}
            for position in positions:
                if position in blank_positions:
                    texts[position] = _new_key(texts[position], used)
    return pa.array(texts, keys.type)


def _new_key(key: str, used: set[str]) -> str:
    unique = ".".join(BLANK_KEY if _IS_BLANK.fullmatch(part) else part for part in key.split("."))
    while unique in used:
        unique += BLANK_KEY
    used.add(unique)
    return unique
