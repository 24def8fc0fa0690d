"""Why an event could not be parsed, noted in its attributes: ``attrs.parse_error``."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import Mask

ATTRS, PARSE_ERROR = "attrs", "parse_error"
_MOST_SHOWN = 100
"""Characters of a value that a reason shows."""


def note(attrs: pa.MapArray, reasons: pa.Array, key: str = PARSE_ERROR) -> pa.MapArray:
    """``attrs`` with the reason added where there is one; an earlier reason of a row is kept."""
    wanted = reasons.is_valid().to_numpy(False)
    if not wanted.any():
        return attrs
    offsets = attrs.offsets.to_numpy().astype(np.int64)
    taken = np.flatnonzero(pc.equal(attrs.keys, key).to_numpy(False))
    rows = np.searchsorted(offsets, taken, side="right") - 1
    wanted[rows[(rows >= 0) & (rows < len(wanted))]] = False
    noted = np.flatnonzero(wanted)
    first, last = offsets[0], offsets[-1]
    entries = np.arange(first, last)
    places = offsets[noted + 1] - first
    key_order = np.insert(entries, places, len(attrs.keys))
    item_order = np.insert(entries, places, len(attrs.items) + np.arange(len(noted)))
    keys = pa.concat_arrays([attrs.keys, pa.array([key])]).take(pa.array(key_order))
    items = pa.concat_arrays([attrs.items, reasons.take(pa.array(noted))])
    grown = np.concatenate([[0], np.cumsum(np.diff(offsets) + wanted)]).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(grown), keys, items.take(pa.array(item_order)))


def has_reasons(schema: pa.Schema) -> bool:
    """Whether events of ``schema`` have their attributes, in which reasons are noted."""
    if ATTRS not in schema.names:
        return False
    kind = schema.field(ATTRS).type
    return bool(pa.types.is_map(kind) and pa.types.is_string(kind.key_type))


def parse_errors(events: pa.RecordBatch) -> int:
    """How many of the events could not be parsed."""
    if not events.num_rows or not has_reasons(events.schema):
        return 0
    attrs = events[ATTRS]
    first, last = attrs.offsets[0].as_py(), attrs.offsets[-1].as_py()
    found = pc.sum(pc.equal(attrs.keys.slice(first, last - first), PARSE_ERROR))
    return int(found.as_py() or 0)


def because(why: str, where: Mask) -> pa.Array:
    """The reason ``why`` where that is true."""
    return pa.array([why]).take(pa.array(np.zeros(len(where), np.int8), mask=~where))


def misfit(why: str, values: pa.Array, where: Mask) -> pa.Array:
    """The reason ``why`` with the value itself, a text, where that is true."""
    shown = values.take(pa.array(np.flatnonzero(where)))
    cut = pc.utf8_slice_codeunits(shown, 0, _MOST_SHOWN)
    cut = pc.if_else(pc.equal(cut, shown), cut, pc.binary_join_element_wise(cut, "...", ""))
    reasons = pc.binary_join_element_wise(why, cut, ": ")
    return reasons.take(pa.array(np.cumsum(where) - 1, mask=~where))
