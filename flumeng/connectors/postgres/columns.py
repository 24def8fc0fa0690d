"""Encodes columns for PostgreSQL's binary COPY. Its text is UTF-8 without NUL; other bytes become
U+FFFD, except in ``bytea``."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events import json_text
from flumeng.platform.errors import FlumengError, UserError

REPLACEMENT = "\ufffd"
ESCAPED_NUL, ESCAPED_REPLACEMENT = rb"\u0000", rb"\ufffd"
_ESCAPE = re.compile(rb"\\(?:u0000|.)", re.DOTALL)
JSONB_VERSION = b"\1"
"""Prefix of a value in the binary form of ``jsonb``."""
TARGETS: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "interval": pa.duration("us"),
    "numeric": pa.decimal128(38, 9),
}
TEXTS = ("text", "varchar", "bpchar")
JSONS = ("json", "jsonb")
ABLE = (*TARGETS, *TEXTS, *JSONS, "bytea")
"""Supported column types, by their names in ``pg_type``."""
FIRST_TIME = -210_866_803_200_000_000
"""PostgreSQL's first day, in 4714 BC, in microseconds since 1970."""

_CREATED: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "smallint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_float32, "real"),
    (pa.types.is_float64, "double precision"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
    (pa.types.is_duration, "interval"),
    (pa.types.is_nested, "jsonb"),
)


class UnfitError(FlumengError):
    """A value does not fit the type of its column."""


def type_for(kind: pa.DataType) -> str:
    """Return the column type for a table that flumeng creates."""
    for is_kind, name in _CREATED:
        if is_kind(kind):
            return name
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    return "text"


def encode(name: str, column: pa.Array, target: str) -> pa.Array:
    """Return the column as ``target``. Raises UnfitError for a value, UserError for a type."""
    try:
        return _encoded(name, column, target)
    except pa.ArrowInvalid as error:
        raise UnfitError(f"column {name}: {str(error).splitlines()[0]}") from error
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise UserError(
            f"the column {name} is {column.type}, and {target} in the table: change one of them"
        ) from error


def as_text(name: str, column: pa.Array) -> pa.Array:
    if pa.types.is_nested(column.type):
        return as_json(name, column).cast(pa.string())
    if pa.types.is_binary(column.type):
        column = _decoded(column)
    text = column.cast(pa.string())
    data = text.buffers()[2]
    if data is not None and data.size and np.frombuffer(data, np.uint8).min() == 0:
        return pc.replace_substring(text, "\0", REPLACEMENT)
    return text


def as_json(name: str, column: pa.Array) -> pa.Array:
    """Return nested values as JSON; the text of others is assumed to be JSON."""
    if not pa.types.is_nested(column.type):
        return _without_nul(as_text(name, column).cast(pa.binary()))
    return _without_nul(json_text.values(name, column))


def _encoded(name: str, column: pa.Array, target: str) -> pa.Array:
    if target in TEXTS:
        return as_text(name, column)
    if target in JSONS:
        texts = as_json(name, column)
        if target == "json":
            return texts
        return pc.binary_join_element_wise(JSONB_VERSION, texts, b"")
    if target == "bytea":
        return column.cast(pa.binary())
    if target == "numeric" and pa.types.is_decimal(column.type):
        return column
    if target == "numeric" and pa.types.is_integer(column.type):
        return column.cast(pa.decimal128(20, 0))
    if target == "numeric" or pa.types.is_binary(column.type):
        column = as_text(name, column)
    values = column.cast(TARGETS[target])
    if pa.types.is_timestamp(values.type):
        _check_times(values)
    return values


def _without_nul(texts: pa.Array) -> pa.Array:
    """Replace escaped NULs. Escapes are read in order, as a backslash may itself be escaped."""
    has_nul = pc.fill_null(pc.match_substring(texts, ESCAPED_NUL), False)
    if not pc.any(has_nul).as_py():
        return texts
    changed = [_ESCAPE.sub(_replaced, text) for text in texts.filter(has_nul).to_pylist()]
    return pc.replace_with_mask(texts, has_nul, pa.array(changed, pa.binary()))


def _replaced(escape: re.Match[bytes]) -> bytes:
    return ESCAPED_REPLACEMENT if escape[0] == ESCAPED_NUL else escape[0]


def _decoded(column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        values = column.to_pylist()
        texts = [None if v is None else v.decode("utf-8", "replace") for v in values]
        return pa.array(texts, pa.string())


def _check_times(times: pa.Array) -> None:
    first = pc.min(times.cast(pa.int64())).as_py()
    if first is not None and first < FIRST_TIME:
        raise pa.ArrowInvalid("a time before the year 4714 BC")
