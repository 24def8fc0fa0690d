"""The format ``csv``: one record in each body. The few rows with quotes elsewhere than around
fields are first rewritten with the standard library."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import because, misfit
from flumeng.events.byte_column import ByteColumn, Mask, Positions, contains, following, text
from flumeng.filters import ddl
from flumeng.filters.formats import Parsed
from flumeng.filters.formats.escapes import without_line_ends
from flumeng.filters.formats.fields import parsed_of, require_own_types
from flumeng.filters.formats.key_value import NAMED
from flumeng.filters.formats.pairs import typed
from flumeng.filters.options.parse import Parse

MALFORMED = "csv: malformed quotes"
csv.field_size_limit(2**31 - 1)


@dataclass(frozen=True)
class CsvReader:
    schema: pa.Schema
    delimiter: str
    quote: str

    @classmethod
    def of(cls, options: Parse) -> CsvReader:
        assert options.schema is not None
        schema = ddl.columns_of(options.schema)
        require_own_types(schema)
        delimiter = options.delimiter or ","
        return cls(schema, NAMED.get(delimiter, delimiter), options.quote or '"')

    @property
    def columns(self) -> pa.Schema:
        return pa.schema([field for field in self.schema if field.name not in ("ts", "host")])

    def read(self, bodies: pa.Array, _received: pa.Array) -> Parsed:
        records = _Records(self, bodies)
        malformed = np.zeros(len(bodies), np.bool_)
        irregular = records.irregular()
        if irregular.any():
            mask = pa.array(irregular)
            rewritten = [self._regular(body) for body in bodies.filter(mask).to_pylist()]
            malformed[irregular] = [it is None for it in rewritten]
            bodies = pc.replace_with_mask(bodies, mask, pa.array(rewritten, pa.binary()))
            records = _Records(self, pc.fill_null(bodies, b""))
        counted = records.counts == len(self.schema)
        unread = pc.coalesce(
            because(MALFORMED, malformed), because(f"csv: not {len(self.schema)} fields", ~counted)
        )
        misfits = pa.nulls(len(bodies), pa.string())
        columns = []
        for number, field in enumerate(self.schema):
            values = records.column(number, counted)
            column, failed = typed(values, field.type)
            columns.append(column)
            if failed.any():
                why = f"csv: {field.name} is no {ddl.shown(field.type)}"
                misfits = pc.coalesce(misfits, misfit(why, values, failed))
        return parsed_of(self.schema.names, columns, unread, misfits)

    def _regular(self, body: bytes) -> bytes | None:
        """Return the record with each field in quotes; None when it is malformed."""
        line = body.decode("utf-8", "surrogateescape").rstrip("\r\n")
        lines = io.StringIO(line, newline="")
        try:
            (record,) = csv.reader(
                lines, delimiter=self.delimiter, quotechar=self.quote, strict=True
            )
        except (csv.Error, ValueError):
            return None
        quote = self.quote
        fields = (quote + field.replace(quote, 2 * quote) + quote for field in record)
        return self.delimiter.join(fields).encode("utf-8", "surrogateescape")


class _Records:
    def __init__(self, reader: CsvReader, bodies: pa.Array) -> None:
        self.reader = reader
        self.flat = flat = without_line_ends(bodies)
        self.quotes = _Quotes.of(flat, reader.quote)
        breaks = self.quotes.outside(flat.find(reader.delimiter))
        first = np.searchsorted(breaks, flat.starts)
        self.counts: Positions = np.diff(np.append(first, len(breaks))) + 1
        self.starts = np.sort(np.concatenate([flat.starts, breaks + 1]), kind="stable")
        self.ends = np.sort(np.concatenate([flat.ends, breaks]), kind="stable")
        self.first = np.cumsum(self.counts) - self.counts

    def irregular(self) -> Mask:
        """Return the rows with a quote that neither encloses a field nor is doubled inside one."""
        mask = np.zeros(len(self.flat), np.bool_)
        places = self.quotes.places
        if not len(places):
            return mask
        rows, opening = self.quotes.rows, self.quotes.opening
        mask |= np.bincount(rows, minlength=len(mask)) % 2 == 1
        doubled = (np.diff(places) == 1) & (rows[1:] == rows[:-1])
        begins = np.append(False, doubled) | contains(self.starts, places)
        closes = np.append(doubled, False) | contains(self.ends, places + 1)
        mask[rows[~np.where(opening, begins, closes)]] = True
        return mask

    def column(self, number: int, counted: Mask) -> pa.Array:
        chosen = np.where(counted, self.first + number, 0)
        starts, ends = self.starts[chosen], self.ends[chosen]
        quote = ord(self.reader.quote)
        quoted = counted & (ends - starts > 1) & (self.flat.at(starts, ends) == quote)
        starts, ends = starts + quoted, ends - quoted
        texts = text(self.flat.column(starts, ends, counted))
        doubled = quoted & (following(self.quotes.places, starts, ends) < ends)
        if doubled.any():
            mask, once = pa.array(doubled), self.reader.quote
            halved = pc.replace_substring(texts.filter(mask), 2 * once, once)
            texts = pc.replace_with_mask(texts, mask, halved)
        return texts


@dataclass(frozen=True)
class _Quotes:
    """The sorted ``places`` of all quotes; in each row opening and closing ones alternate."""

    flat: ByteColumn
    places: Positions
    before_row: Positions

    @classmethod
    def of(cls, flat: ByteColumn, quote: str) -> _Quotes:
        places = flat.find(quote)
        return cls(flat, places, np.searchsorted(places, flat.starts))

    @property
    def rows(self) -> Positions:
        return np.searchsorted(self.flat.ends, self.places, side="right")

    @property
    def opening(self) -> Mask:
        within = np.arange(len(self.places)) - self.before_row[self.rows]
        opens: Mask = within % 2 == 0
        return opens

    def outside(self, marks: Positions) -> Positions:
        """Return the positions among the sorted ``marks`` that are outside quotes."""
        if not len(self.places):
            return marks
        before = np.searchsorted(self.places, marks)
        first = np.searchsorted(marks, self.flat.starts)
        counts = np.diff(np.append(first, len(marks)))
        kept: Positions = marks[(before - np.repeat(self.before_row, counts)) % 2 == 0]
        return kept
