"""QRadar's Log Event Extended Format: ``LEEF:2.0|vendor|product|version|event|^|a=1^b=two words``.

The attributes are parted by tabs; version 2.0 may name another character, as such or as ``x5E``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import ByteColumn, Positions, following
from flumeng.events.reasons import because
from flumeng.filters.formats import Found
from flumeng.filters.formats.fields import Field, columns_of_fields, fields_of, found_of
from flumeng.filters.formats.key_value import unescape
from flumeng.filters.formats.pairs import Pairs
from flumeng.filters.formats.security_header import Header, trimmed
from flumeng.filters.options.parse import LEEF, Parse

_HEX = np.full(256, -1)
_HEX[[ord(digit) for digit in "0123456789abcdef"]] = np.arange(16)
_HEX[[ord(digit) for digit in "ABCDEF"]] = np.arange(10, 16)


@dataclass(frozen=True)
class LeefReader:
    fields: tuple[Field, ...]
    into: str | None

    @classmethod
    def of(cls, options: Parse) -> LeefReader:
        return cls(fields_of(options), options.into)

    @property
    def columns(self) -> pa.Schema:
        header = [pa.field(name, pa.string()) for name in LEEF]
        return pa.schema([*header, *columns_of_fields(self.fields, self.into)])

    def read(self, bodies: pa.Array, _received: pa.Array) -> Found:
        pipes = trimmed(bodies).find("|")
        header = Header.of(bodies, b"LEEF:", len(LEEF), pipes)
        columns, misfits = _attributes(header, pipes).columns("leef", self.fields, self.into)
        unread = pc.coalesce(
            because("leef: no LEEF:", ~header.named),
            because("leef: too few fields", ~header.whole),
        )
        names = [*LEEF, *(field.column for field in self.fields), self.into]
        return found_of(names, [*header.columns(escaped=False), *columns], unread, misfits)


def _delimiters(header: Header, pipes: Positions) -> tuple[Positions, Positions]:
    """Of each row the byte between attributes, and where they begin."""
    flat = header.flat
    end = following(pipes, header.behind, flat.ends)
    window = flat.window(header.behind, 4, end).astype(np.int64)
    width = end - header.behind
    prefix = np.where(width == 4, window[1], window[0]) | 0x20
    high, low = np.where(width == 4, window[2:], window[1:3])
    written = (prefix == ord("x")) & ((width == 3) | ((width == 4) & (window[0] == ord("0"))))
    written &= (_HEX[high] >= 0) & (_HEX[low] >= 0)
    given = flat.at(header.starts[0], flat.ends) == ord("2")
    given &= (end < flat.ends) & ((width <= 1) | written)
    delimiters = np.full(len(flat), ord("\t"))
    delimiters = np.where(given & (width == 1), window[0], delimiters)
    delimiters = np.where(given & written, _HEX[high] * 16 + _HEX[low], delimiters)
    return delimiters, np.where(given, np.minimum(end + 1, flat.ends), header.behind)


def _attributes(header: Header, pipes: Positions) -> Pairs:
    flat = header.flat
    delimiters, begins = _delimiters(header, pipes)
    parts = [
        _tokens(flat, np.flatnonzero(header.whole & (delimiters == byte)), begins, int(byte))
        for byte in np.unique(delimiters[header.whole])
    ]
    none = np.zeros((3, 0), np.int64)
    rows, starts, ends = np.concatenate([none, *parts], axis=1)
    order = np.argsort(rows, kind="stable")
    rows, starts, ends = rows[order], starts[order], ends[order]
    equals = following(flat.find("="), starts, ends)
    paired = (equals < ends) & (equals > starts)
    rows, starts, ends, equals = rows[paired], starts[paired], ends[paired], equals[paired]
    nothing = np.zeros(len(rows), np.bool_)
    return Pairs(flat, rows, starts, equals, equals + 1, ends, nothing, nothing, nothing, unescape)


def _tokens(flat: ByteColumn, rows: Positions, begins: Positions, byte: int) -> Positions:
    """Row, start and end of what lies between the delimiters of these rows."""
    breaks = flat.find(chr(byte))
    first = np.searchsorted(breaks, begins[rows])
    counts = np.searchsorted(breaks, flat.ends[rows]) - first
    of = np.repeat(np.arange(len(rows)), counts)
    chosen = breaks[first[of] + np.arange(len(of)) - (np.cumsum(counts) - counts)[of]]
    starts = np.sort(np.concatenate([begins[rows], chosen + 1]), kind="stable")
    ends = np.sort(np.concatenate([flat.ends[rows], chosen]), kind="stable")
    return np.stack([np.repeat(rows, counts + 1), starts, ends])
