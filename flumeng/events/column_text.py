"""The values of a column as text, for what takes nothing but text: keys, headers, names."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.platform.errors import UserError


def check_plain(events: pa.Schema, names: Iterable[str], place: str) -> None:
    """Raises UserError when a column is not there, or holds lists, maps or structs."""
    for name in names:
        if name not in events.names:
            raise UserError(f"{place}: there is no column {name}; there are {_names(events)}")
        if pa.types.is_nested(events.field(name).type):
            raise UserError(
                f"{place}: the column {name} is no plain value but {_type(events, name)}"
            )


def texts(column: pa.Array) -> pa.BinaryArray:
    """Binary as it is, times as RFC 3339 in UTC, the rest as Arrow writes it; null stays null."""
    if pa.types.is_timestamp(column.type):
        shown = pc.strftime(column, "%Y-%m-%dT%H:%M:%S")
        return pc.binary_join_element_wise(shown, "Z", "").cast(pa.binary())
    if pa.types.is_binary(column.type):
        return column
    return column.cast(pa.string()).cast(pa.binary())


def _names(events: pa.Schema) -> str:
    return ", ".join(events.names) or "none"


def _type(events: pa.Schema, name: str) -> str:
    return str(events.field(name).type)
