"""Reads and changes entries of ``attrs``, for a whole column at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import Mask

ATTRS, PARSE_ERROR = "attrs", "parse_error"
_MOST_SHOWN = 100
"""Most characters of a value that a reason shows."""


def note(attrs: pa.MapArray, reasons: pa.Array, key: str = PARSE_ERROR) -> pa.MapArray:
    """Add ``reasons`` under ``key``, except null ones; an earlier reason of a row is kept."""
    if reasons.null_count == len(reasons):
        return attrs
    noting = reasons.is_valid().to_numpy(False)
    offsets = attrs.offsets.to_numpy().astype(np.int64)
    taken = np.flatnonzero(pc.equal(attrs.keys, key).to_numpy(False))
    rows = np.searchsorted(offsets, taken, side="right") - 1
    noting[rows[(rows >= 0) & (rows < len(noting))]] = False
    noted = np.flatnonzero(noting)
    first, last = offsets[0], offsets[-1]
    entries = np.arange(first, last)
    places = offsets[noted + 1] - first
    key_order = np.insert(entries, places, len(attrs.keys))
    item_order = np.insert(entries, places, len(attrs.items) + np.arange(len(noted)))
    keys = pa.concat_arrays([attrs.keys, pa.array([key])]).take(pa.array(key_order))
    items = pa.concat_arrays([attrs.items, reasons.take(pa.array(noted))])
    grown = np.concatenate([[0], np.cumsum(np.diff(offsets) + noting)]).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(grown), keys, items.take(pa.array(item_order)))


def has_reasons(schema: pa.Schema) -> bool:
    if ATTRS not in schema.names:
        return False
    kind = schema.field(ATTRS).type
    return bool(pa.types.is_map(kind) and pa.types.is_string(kind.key_type))


def parse_errors(events: pa.RecordBatch) -> int:
    if not events.num_rows or not has_reasons(events.schema):
        return 0
    attrs = events[ATTRS]
    first, last = attrs.offsets[0].as_py(), attrs.offsets[-1].as_py()
    count = pc.sum(pc.equal(attrs.keys.slice(first, last - first), PARSE_ERROR))
    return int(count.as_py() or 0)


def because(why: str, where: Mask) -> pa.Array:
    return pa.array([why]).take(pa.array(np.zeros(len(where), np.int8), mask=~where))


def misfit(why: str, values: pa.Array, where: Mask) -> pa.Array:
    """Return ``why`` and the row's value, perhaps shortened, where the mask is true, else null."""
    shown = values.take(pa.array(np.flatnonzero(where)))
    cut = pc.utf8_slice_codeunits(shown, 0, _MOST_SHOWN)
    cut = pc.if_else(pc.equal(cut, shown), cut, pc.binary_join_element_wise(cut, "...", ""))
    reasons = pc.binary_join_element_wise(why, cut, ": ")
    return reasons.take(pa.array(np.cumsum(where) - 1, mask=~where))


def value(attrs: pa.MapArray, key: str) -> pa.Array:
    return pc.map_lookup(attrs, key, "first")


def put(attrs: pa.MapArray, key: str, values: pa.Array) -> pa.MapArray:
    """Set ``values`` under ``key``; rows with a null value stay unchanged."""
    return note(without(attrs, [key], values.is_valid().to_numpy(False)), values, key)


def without(attrs: pa.MapArray, keys: Sequence[str], rows: Mask | None = None) -> pa.MapArray:
    """Remove the entries of ``keys``, in all rows or only where ``rows`` is true."""
    offsets = attrs.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    entries = attrs.keys.slice(first, last - first)
    taken = pc.is_in(entries, pa.array(keys, pa.string())).to_numpy(False)
    lengths = np.diff(offsets)
    if rows is not None:
        taken &= np.repeat(rows, lengths)
    if not taken.any():
        return attrs
    left = np.concatenate([[0], np.cumsum(~taken)])[offsets - first]
    kept = pa.array(first + np.flatnonzero(~taken))
    return pa.MapArray.from_arrays(
        pa.array(left.astype(np.int32)), attrs.keys.take(kept), attrs.items.take(kept)
    )
