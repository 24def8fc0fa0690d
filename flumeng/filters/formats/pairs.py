"""Converts names and values in bodies to columns and maps; the last of repeated names counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import misfit
from flumeng.events.byte_column import ByteColumn, Mask, Positions, text
from flumeng.filters.formats.casts import cast
from flumeng.filters.formats.fields import Field

Unescape = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class Pairs:
    """Names and values in a column of bodies. Pair i is in row ``rows[i]``, ascending. Its value is
    ``true`` where ``bare``. ``unescape`` converts ``escaped`` values and ``escaped_keys``."""

    flat: ByteColumn
    rows: Positions
    key_starts: Positions
    key_ends: Positions
    starts: Positions
    ends: Positions
    bare: Mask
    escaped: Mask
    escaped_keys: Mask
    unescape: Unescape

    def columns(
        self, form: str, fields: Sequence[Field], into: str | None
    ) -> tuple[list[pa.Array], pa.Array]:
        keys = self._keys()
        codes = keys.indices.to_numpy()
        columns = []
        reasons = pa.nulls(len(self.flat), pa.string())
        for field in fields:
            code = keys.dictionary.index(field.path[0]).as_py()
            values = self._values_of(np.flatnonzero(codes == code))
            column, failed = typed(values, field.type)
            columns.append(column)
            if failed.any():
                why = misfit(f"{form}: {field.misfit}", values, failed)
                reasons = pc.coalesce(reasons, why)
        if into is not None:
            columns.append(self._map(keys, codes))
        return columns, reasons

    def _keys(self) -> pa.DictionaryArray:
        everything = np.ones(len(self.rows), np.bool_)
        keys = text(self.flat.column(self.key_starts, self.key_ends, everything))
        return _unescaped(keys, self.escaped_keys, self.unescape).dictionary_encode()

    def _values_of(self, pairs: Positions) -> pa.Array:
        """Return the value of one name in each row, from its ``pairs``; null where missing."""
        last = np.full(len(self.flat), -1)
        last[self.rows[pairs]] = pairs
        return self._values(last, last >= 0)

    def _values(self, pairs: Positions, present: Mask) -> pa.Array:
        if not len(self.rows):
            return pa.nulls(len(pairs), pa.string())
        bare = self.bare[pairs] & present
        values = text(self.flat.column(self.starts[pairs], self.ends[pairs], present & ~bare))
        if bare.any():
            values = pc.if_else(pa.array(bare), "true", values)
        return _unescaped(values, self.escaped[pairs] & present, self.unescape)

    def _map(self, keys: pa.DictionaryArray, codes: Positions) -> pa.Array:
        kept = np.arange(len(self.rows))
        numbers = (self.rows * max(1, len(keys.dictionary)) + codes)[::-1]
        unique, places = np.unique(numbers, return_index=True)
        if len(unique) < len(numbers):
            kept = np.sort(len(numbers) - 1 - places)
        offsets = np.searchsorted(self.rows[kept], np.arange(len(self.flat) + 1))
        names = keys.dictionary.take(pa.array(codes[kept]))
        values = self._values(kept, np.ones(len(kept), np.bool_))
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, values)


def typed(texts: pa.Array, to: pa.DataType) -> tuple[pa.Array, Mask]:
    """Cast texts like ``cast``; an empty text becomes null unless the type is text."""
    if not pa.types.is_string(to):
        texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    return cast(texts, to)


def _unescaped(texts: pa.Array, escaped: Mask, unescape: Unescape) -> pa.Array:
    if not escaped.any():
        return texts
    mask = pa.array(escaped)
    return pc.replace_with_mask(texts, mask, unescape(texts.filter(mask)))
