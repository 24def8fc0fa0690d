"""Access logs in a site's own format: each value ends where the text after it begins."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import because, misfit
from flumeng.events.byte_column import ByteColumn, Mask, Positions, following, text
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.filters import ddl
from flumeng.filters.formats import Parsed, Reader
from flumeng.filters.formats.access_log import TIME_WIDTH, AccessLogReader, request_parts, times
from flumeng.filters.formats.escapes import behind_backslash, unescape
from flumeng.filters.formats.fields import parsed_of
from flumeng.filters.formats.pairs import typed
from flumeng.filters.options import log_formats
from flumeng.filters.options.log_formats import Part, Variable
from flumeng.filters.options.parse import Parse
from flumeng.filters.time_texts import TextFormat
from flumeng.platform.errors import UserError

_MOST_LISTED = 64


def reader(options: Parse) -> Reader:
    """Return a reader of the flow's log format, or of the usual formats. Raises UserError."""
    if options.log_format is None:
        return AccessLogReader()
    try:
        return LogFormatReader(log_formats.read(options.log_format))
    except ValueError as error:
        raise UserError(f"parse: {error}") from error


@dataclass(frozen=True)
class LogFormatReader:
    parts: tuple[Part, ...]

    @property
    def columns(self) -> pa.Schema:
        return pa.schema(
            [
                pa.field(name, ddl.type_of(kind))
                for part in self.parts
                if isinstance(part, Variable)
                for name, kind in part.columns.items()
            ]
        )

    def read(self, bodies: pa.Array, received: pa.Array) -> Parsed:
        line = _Lines(ByteColumn(bodies), received)
        if isinstance(first := self.parts[0], str):
            line.fail(f"access_log: no {first!r}", ~line.is_at(first.encode(), line.places))
        for part, behind in pairwise([*self.parts, ""]):
            if isinstance(part, Variable):
                line.value(part, str(behind))
            else:
                line.places = np.minimum(line.places + len(part.encode()), line.flat.ends)
        line.fail("access_log: more than the format has", line.places < line.flat.ends)
        columns = [*line.columns.values(), line.ts]
        return parsed_of([*line.columns, "ts"], columns, line.unread, line.misfits)


class _Lines:
    """The lines of a column while they are read; the next part of each begins at ``places``."""

    def __init__(self, flat: ByteColumn, received: pa.Array) -> None:
        self.flat = flat
        self.received = received.cast(pa.int64()).fill_null(0).to_numpy(False)
        self.places = flat.starts
        self._found_at: dict[bytes, Positions] = {}
        self.columns: dict[str, pa.Array] = {}
        self.ts = pa.nulls(len(flat), EVENT_SCHEMA.field("ts").type)
        self.unread = self.misfits = pa.nulls(len(flat), pa.string())

    def fail(self, why: str, where: Mask) -> None:
        """Mark lines that are not of the format. An earlier reason stays."""
        if where.any():
            self.unread = pc.coalesce(self.unread, because(why, where))

    def misfit(self, why: str, values: pa.Array, where: Mask) -> None:
        """Mark values that are not of their type. An earlier reason stays."""
        if where.any():
            self.misfits = pc.coalesce(self.misfits, misfit(f"access_log: {why}", values, where))

    def value(self, of: Variable, behind: str) -> None:
        """Read the value before the text ``behind``, or before the end of the line."""
        starts, ends = self.places, self._next(behind.encode())
        if of.listed and behind.startswith(" "):
            ends = self._list_end(starts, ends, behind.encode())
        self.places = ends
        if behind:
            missing = ends == self.flat.ends
            self.fail(f"access_log: no {behind!r} behind {of.text}", missing)
        escaped = behind.startswith('"')
        if of.time == "common_log":
            micros, valid = times(self.flat.window(starts, TIME_WIDTH, ends))
            texts = self._texts(starts, ends, escaped=False)
            self._set_ts(of, texts, micros, valid & (ends - starts == TIME_WIDTH))
        elif of.time is not None:
            texts = self._texts(starts, ends, escaped=False)
            self._set_ts(of, texts, *TextFormat.named(of.time, "UTC").read(texts, self.received))
        elif of.column == "":
            bounds = request_parts(self.flat, self._finds(b" "), starts, ends)
            for name, (first, last) in bounds.items():
                self.columns[name] = self._texts(first, last, escaped=name == "path")
        else:
            texts = self._texts(starts, ends, escaped=escaped)
            column, failed = typed(texts, ddl.type_of(of.type))
            self.columns[of.column] = column
            self.misfit(f"{of.text} is no {of.type}", texts, failed)

    def _set_ts(self, of: Variable, texts: pa.Array, micros: Positions, valid: Mask) -> None:
        self.misfit(f"{of.text} is no time", pc.fill_null(texts, "-"), ~valid)
        self.ts = pa.array(micros, pa.int64(), mask=~valid).cast(self.ts.type)

    def _next(self, separator: bytes) -> Positions:
        if not separator:
            return self.flat.ends
        return following(self._finds(separator), self.places, self.flat.ends)

    def _list_end(self, starts: Positions, ends: Positions, separator: bytes) -> Positions:
        """Return the end of an nginx list: ``, `` is between servers, `` : `` between groups."""
        for _ in range(_MOST_LISTED):
            group = self.is_at(b" : ", ends)
            more = group | ((self.flat.at(ends - 1, ends) == ord(",")) & (ends > starts))
            more &= ends < self.flat.ends
            if not more.any():
                return ends
            behind = np.minimum(np.where(group, ends + 3, ends + 1), self.flat.ends)
            further = following(self._finds(separator), behind, self.flat.ends)
            ends = np.where(more, further, ends)
        self.fail(f"access_log: a list of over {_MOST_LISTED} values", more)
        return ends

    def _finds(self, separator: bytes) -> Positions:
        if separator not in self._found_at:
            places = self._begins(separator[:1])
            for ahead, byte in enumerate(separator[1:], 1):
                within = places[places + ahead < len(self.flat.data)]
                places = within[self.flat.data[within + ahead] == byte]
            if len(separator) > 1:
                line = np.searchsorted(self.flat.ends, places, side="right")
                places = places[places + len(separator) <= self.flat.ends[line]]
            self._found_at[separator] = places
        return self._found_at[separator]

    def _begins(self, first: bytes) -> Positions:
        if first not in self._found_at:
            places = self.flat.find(first.decode("latin-1"))
            if first == b'"':
                places = places[~behind_backslash(self.flat, places)]
            self._found_at[first] = places
        return self._found_at[first]

    def is_at(self, expected: bytes, places: Positions) -> Mask:
        window = self.flat.window(places, len(expected), self.flat.ends)
        matched: Mask = (window == np.frombuffer(expected, np.uint8)[:, None]).all(axis=0)
        return matched

    def _texts(self, starts: Positions, ends: Positions, *, escaped: bool) -> pa.Array:
        """Return the texts within bounds; empty ones and ``-`` become null."""
        given = ends > starts
        given &= (ends - starts != 1) | (self.flat.at(starts, ends) != ord("-"))
        texts = text(self.flat.column(starts, ends, given))
        if escaped and pc.any(pc.match_substring(texts, "\\")).as_py():
            return unescape(texts)
        return texts
