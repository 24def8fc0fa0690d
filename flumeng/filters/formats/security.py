"""ArcSight's Common Event Format and QRadar's Log Event Extended Format.

``CEF:0|vendor|product|version|class|name|severity|a=1 b=two``: a value goes on to the next name,
which is the word before an ``=`` without a backslash before it. A word that is no name, as in
``url=http://a/?b=c``, is a part of the value.

``LEEF:2.0|vendor|product|version|event|^|a=1^b=two words``: tabs separate the attributes; version
2.0 may name another character, as such or as ``x5E``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.config.column_kinds import Columns
from flumeng.events.attributes import because
from flumeng.events.byte_column import ByteColumn, Mask, Positions, following, text
from flumeng.filters.formats import Parsed
from flumeng.filters.formats.escapes import behind_backslash, unescape, without_line_ends
from flumeng.filters.formats.fields import Field, columns_of_fields, fields_of, parsed_of
from flumeng.filters.formats.pairs import Pairs
from flumeng.filters.options.parse import CEF, LEEF, Parse

_NAME = r"^[A-Za-z0-9_.\[\]-]+$"
_MOST_SPACES = 8
_LINE_ENDS = ((r"((?:^|[^\\])(?:\\\\)*)\\n", "\\1\n"), (r"((?:^|[^\\])(?:\\\\)*)\\r", "\\1\r"))
_HEX = np.full(256, -1)
_HEX[[ord(digit) for digit in "0123456789abcdef"]] = np.arange(16)
_HEX[[ord(digit) for digit in "ABCDEF"]] = np.arange(10, 16)


@dataclass(frozen=True)
class _Reader(ABC):
    fields: tuple[Field, ...]
    into: str | None

    name: ClassVar[str]
    header: ClassVar[Columns]
    escaped: ClassVar[bool]
    """Whether fields of the header may have escapes."""

    @classmethod
    def of(cls, options: Parse) -> _Reader:
        return cls(fields_of(options), options.into)

    @property
    def columns(self) -> pa.Schema:
        header = [pa.field(name, pa.string()) for name in self.header]
        return pa.schema([*header, *columns_of_fields(self.fields, self.into)])

    def read(self, bodies: pa.Array, _received: pa.Array) -> Parsed:
        flat = without_line_ends(bodies)
        pipes = flat.find("|")
        if self.escaped:
            pipes = pipes[~behind_backslash(flat, pipes)]
        start = f"{self.name.upper()}:"
        header = _Header.of(bodies, flat, start.encode(), len(self.header), pipes)
        columns, misfits = self.pairs(header, pipes).columns(self.name, self.fields, self.into)
        unread = pc.coalesce(
            because(f"{self.name}: no {start}", ~header.named),
            because(f"{self.name}: too few fields", ~header.whole),
        )
        names = [*self.header, *(field.column for field in self.fields), self.into]
        columns = [*header.columns(escaped=self.escaped), *columns]
        return parsed_of(names, columns, unread, misfits)

    @abstractmethod
    def pairs(self, header: _Header, pipes: Positions) -> Pairs:
        """Return the attributes after the header."""


class CefReader(_Reader):
    name, header, escaped = "cef", CEF, True

    def pairs(self, header: _Header, _pipes: Positions) -> Pairs:
        return _extension(header)


class LeefReader(_Reader):
    name, header, escaped = "leef", LEEF, False

    def pairs(self, header: _Header, pipes: Positions) -> Pairs:
        return _attributes(header, pipes)


@dataclass(frozen=True)
class _Header:
    """Headers ``CEF:0|vendor|product|...``, perhaps after other text. ``named``: rows with the
    format's name; ``whole``: rows with all fields too."""

    flat: ByteColumn
    starts: list[Positions]
    ends: list[Positions]
    behind: Positions
    named: Mask
    whole: Mask

    @classmethod
    def of(
        cls, bodies: pa.Array, flat: ByteColumn, name: bytes, count: int, pipes: Positions
    ) -> _Header:
        """Find ``count`` fields; the last one may extend to the end of the row."""
        offset = pc.find_substring(bodies, name).to_numpy(zero_copy_only=False)
        named = offset >= 0
        begin = np.where(named, flat.starts + offset + len(name), flat.ends)
        begin = np.minimum(begin, flat.ends)
        first = np.searchsorted(pipes, begin)
        padded = np.append(pipes, np.full(count, np.iinfo(np.int64).max))
        ends = [np.minimum(padded[first + number], flat.ends) for number in range(count)]
        starts = [begin, *(np.minimum(end + 1, flat.ends) for end in ends[:-1])]
        whole: Mask = named & (ends[count - 2] < flat.ends)
        return cls(flat, starts, ends, np.minimum(ends[-1] + 1, flat.ends), named, whole)

    def columns(self, *, escaped: bool) -> list[pa.Array]:
        return [
            self._column(*bounds, escaped) for bounds in zip(self.starts, self.ends, strict=True)
        ]

    def _column(self, starts: Positions, ends: Positions, escaped: bool) -> pa.Array:
        texts = text(self.flat.column(starts, ends, self.whole))
        if escaped and pc.any(pc.match_substring(texts, "\\")).as_py():
            return pc.replace_substring_regex(texts, r"\\([\\|])", r"\1")
        return texts


def _unescape_cef(texts: pa.Array) -> pa.Array:
    r"""Decode ``\n``, ``\r``, ``\\``, ``\=`` and ``\|``. A pattern finds only one of two adjacent
    line ends, so each pattern runs twice."""
    for pattern, end in _LINE_ENDS * 2:
        texts = pc.replace_substring_regex(texts, pattern, end)
    return pc.replace_substring_regex(texts, r"\\([\\=|])", r"\1")


def _extension(header: _Header) -> Pairs:
    flat = header.flat
    equals = flat.find("=")
    rows = np.searchsorted(flat.ends, equals, side="right").clip(max=len(flat) - 1)
    within = (equals >= header.behind[rows]) & (equals < flat.ends[rows]) & header.whole[rows]
    equals, rows = equals[within], rows[within]
    plain = ~behind_backslash(flat, equals)
    equals, rows = equals[plain], rows[plain]
    spaces = flat.find(" ")
    before = np.append(spaces, -1)[np.searchsorted(spaces, equals) - 1]
    starts = np.maximum(before + 1, header.behind[rows])
    alone = np.append(-1, equals[:-1])[: len(equals)] < starts  # no name has an = in it
    equals, rows, starts = equals[alone], rows[alone], starts[alone]
    names = text(flat.column(starts, equals, np.ones(len(equals), np.bool_)))
    named = pc.match_substring_regex(names, _NAME).to_numpy(zero_copy_only=False)
    equals, rows, starts = equals[named], rows[named], starts[named]
    followed = np.append(rows[1:] == rows[:-1], False)[: len(rows)]
    ends = np.where(followed, np.append(starts[1:], 0)[: len(rows)] - 1, flat.ends[rows])
    ends = _without_spaces(flat, equals + 1, ends)
    nothing = np.zeros(len(rows), np.bool_)
    backslashes = flat.find("\\")
    at = np.append(backslashes, np.iinfo(np.int64).max)[np.searchsorted(backslashes, equals)]
    return Pairs(
        flat, rows, starts, equals, equals + 1, ends, nothing, at < ends, nothing, _unescape_cef
    )


def _without_spaces(flat: ByteColumn, starts: Positions, ends: Positions) -> Positions:
    ends = np.maximum(starts, ends)
    for _ in range(_MOST_SPACES):
        spaced = (flat.at(ends - 1, ends) == ord(" ")) & (ends > starts)
        if not spaced.any():
            break
        ends = ends - spaced
    return ends


def _delimiters(header: _Header, pipes: Positions) -> tuple[Positions, Positions]:
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


def _attributes(header: _Header, pipes: Positions) -> Pairs:
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
    breaks = flat.find(chr(byte))
    first = np.searchsorted(breaks, begins[rows])
    counts = np.searchsorted(breaks, flat.ends[rows]) - first
    of = np.repeat(np.arange(len(rows)), counts)
    chosen = breaks[first[of] + np.arange(len(of)) - (np.cumsum(counts) - counts)[of]]
    starts = np.sort(np.concatenate([begins[rows], chosen + 1]), kind="stable")
    ends = np.sort(np.concatenate([flat.ends[rows], chosen]), kind="stable")
    return np.stack([np.repeat(rows, counts + 1), starts, ends])
