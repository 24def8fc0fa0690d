"""Keys of maps as Elasticsearch takes them: no part of a key between dots is blank.

A blank part is written as ``_``. Where a map has that key already, underscores are added until the
key is new. The order of the entries decides, so a repeated event gets the same keys.
"""

from __future__ import annotations

import re
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

BLANK = "_"
_ODD = r"(^|\.)[\s\v\pZ\x1c-\x1f]*(\.|$)"
_IS_BLANK = re.compile(r"\s*")


def taken(events: pa.RecordBatch) -> pa.RecordBatch:
    """``events`` with such keys in all of their maps."""
    columns = [_taken(column) for column in events.columns]
    return pa.RecordBatch.from_arrays(
        columns,
        schema=pa.schema(
            [f.with_type(c.type) for f, c in zip(events.schema, columns, strict=True)]
        ),
    )


def _taken(column: pa.Array) -> pa.Array:
    """The same array when it holds no map, or only maps with good keys."""
    kind = column.type
    if not _has_maps(kind):
        return column
    mask = column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        parts = [_taken(part) for part in column.flatten()]
        fields = [kind.field(n).with_type(part.type) for n, part in enumerate(parts)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)
    start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    offsets = pc.subtract(column.offsets, start).cast(pa.int32())
    if pa.types.is_map(kind):
        keys = column.keys.slice(start, end - start)
        items = _taken(column.items.slice(start, end - start))
        return pa.MapArray.from_arrays(offsets, _good(keys, offsets), items, mask=mask)
    values = _taken(column.values.slice(start, end - start))
    return pa.ListArray.from_arrays(offsets, values, mask=mask)


def _has_maps(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    if pa.types.is_struct(kind):
        return any(_has_maps(kind.field(number).type) for number in range(kind.num_fields))
    return pa.types.is_list(kind) and _has_maps(kind.value_type)


def _good(keys: pa.Array, offsets: pa.Array) -> pa.Array:
    """``keys`` of maps that begin at ``offsets``."""
    if not pa.types.is_string(keys.type):
        return keys
    odd = pc.match_substring_regex(keys, _ODD)
    if not pc.any(odd).as_py():
        return keys
    found = keys.to_pylist()
    bounds = offsets.to_pylist()
    odd_places = set(pc.indices_nonzero(odd).to_pylist())
    for start, end in pairwise(bounds):
        places = range(start, end)
        if not odd_places.isdisjoint(places):
            used = {found[place] for place in places if place not in odd_places}
            for place in places:
                if place in odd_places:
                    found[place] = _new(found[place], used)
    return pa.array(found, keys.type)


def _new(key: str, used: set[str]) -> str:
    found = ".".join(BLANK if _IS_BLANK.fullmatch(part) else part for part in key.split("."))
    while found in used:
        found += BLANK
    used.add(found)
    return found
