"""The format ``json``: columns of a schema, values at paths, or all values as a map of texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import because, misfit
from flumeng.events.byte_column import ByteColumn, Mask, text
from flumeng.filters import ddl
from flumeng.filters.formats import Parsed, Reader, json_values
from flumeng.filters.formats.fields import (
    Field,
    columns_of_fields,
    fields_of,
    joined,
    parsed_of,
    require_own_types,
)
from flumeng.filters.json_check import are_json
from flumeng.filters.options.parse import Parse
from flumeng.platform.errors import UserError

MALFORMED, OTHER = "json: malformed", "json: not of the schema"
_WHITE_SPACE = " \t\n\r"
_HALVES = re.compile(
    rb"\\[^u]"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""Escapes; the group is a half of a surrogate pair without its other half."""
_FINER_EPOCHS = {
    "milliseconds (unix_ms)": "^[0-9]{13}$",
    "microseconds (unix_us)": "^[0-9]{16}$",
    "nanoseconds (unix_ns)": "^[0-9]{19}$",
}
"""Patterns of whole numbers that are times of this century in a smaller unit than seconds."""
T = TypeVar("T")


def reader(options: Parse) -> Reader:
    if options.schema is not None:
        return SchemaReader(ddl.columns_of(options.schema))
    fields = fields_of(options)
    return FieldsReader(fields, options.into)


@dataclass(frozen=True)
class SchemaReader:
    """Reads the columns of a schema; its ``ts`` and ``host`` replace those of the event."""

    schema: pa.Schema

    def __post_init__(self) -> None:
        require_own_types(self.schema)
        for field in self.schema:
            _require_text_keys(field.type)

    @property
    def columns(self) -> pa.Schema:
        return pa.schema([field for field in self.schema if field.name not in ("ts", "host")])

    def read(self, bodies: pa.Array, _received: pa.Array) -> Parsed:
        return unless_too_deep(self._read, bodies)

    def _read(self, bodies: pa.Array) -> Parsed:
        values, unread = each_object(
            bodies, lambda texts: json_values.objects(texts, self.schema.names)
        )
        columns = []
        misfits = pa.nulls(len(bodies), pa.string())
        for raws, field in zip(values, self.schema, strict=True):
            column, failed = json_values.column(raws, field.type)
            columns.append(column)
            if failed.any():
                why = f"{field.name} is no {ddl.shown(field.type)}"
                misfits = pc.coalesce(misfits, _misfit(why, field.type, raws, failed))
        return parsed_of(self.schema.names, columns, unread, misfits)


@dataclass(frozen=True)
class FieldsReader:
    """Reads ``fields``, values at paths, and all values into the column ``into``."""

    fields: tuple[Field, ...]
    into: str | None

    @property
    def columns(self) -> pa.Schema:
        return columns_of_fields(self.fields, self.into)

    def read(self, bodies: pa.Array, _received: pa.Array) -> Parsed:
        return unless_too_deep(self._read, bodies)

    def _read(self, bodies: pa.Array) -> Parsed:
        outer = list(dict.fromkeys(field.path[0] for field in self.fields))
        raws, unread = each_object(bodies, lambda texts: json_values.objects(texts, outer))
        outer_values = dict(zip(outer, raws, strict=True))
        columns = []
        misfits = pa.nulls(len(bodies), pa.string())
        for field in self.fields:
            values = json_values.inside(outer_values[field.path[0]], field.path[1:])
            column, failed = json_values.column(values, field.type)
            columns.append(column)
            if failed.any():
                why = _misfit(field.misfit, field.type, values, failed)
                misfits = pc.coalesce(misfits, why)
        if self.into is not None:
            columns.append(self._everything(bodies))
        names: list[str | None] = [field.column for field in self.fields]
        return parsed_of([*names, self.into], columns, unread, misfits)

    def _everything(self, bodies: pa.Array) -> pa.Array:
        decoded, _ = each_object(bodies, json_values.maps)
        return json_values.as_map(decoded)


def _misfit(why: str, kind: pa.DataType, raws: ByteColumn, failed: Mask) -> pa.Array:
    """Return why values failed, with a hint for numbers that are too large for seconds."""
    values = text(raws.array())
    reasons = misfit(f"json: {why}", values, failed)
    if not pa.types.is_timestamp(kind):
        return reasons
    for form, pattern in _FINER_EPOCHS.items():
        hint = f" (seconds are expected: take {form} as a BIGINT column, then the filter time)"
        finer = pc.match_substring_regex(values, pattern)
        hinted = pc.binary_join_element_wise(reasons, pa.scalar(hint), pa.scalar(""))
        reasons = pc.if_else(finer, hinted, reasons)
    return reasons


def unless_too_deep(read: Callable[[pa.Array], Parsed], bodies: pa.Array) -> Parsed:
    """Read bodies; treat one that is nested too deeply for the Python stack as malformed."""
    try:
        return read(bodies)
    except (msgspec.DecodeError, RecursionError):
        if len(bodies) > 1:
            middle = len(bodies) // 2
            halves = bodies.slice(0, middle), bodies.slice(middle)
            return joined([unless_too_deep(read, half) for half in halves])
    empty = read(pa.array([b"{}"], pa.binary()))
    return replace(empty, reasons=pa.array([MALFORMED]))


def each_object(bodies: pa.Array, decode: Callable[[pa.Array], T]) -> tuple[T, pa.Array]:
    """Decode each body, as ``{}`` when it is no object; also return why bodies are no objects."""
    texts = text(bodies)
    braced = _braced(texts)
    if not braced.all():
        trimmed = pc.ascii_trim(texts, characters=_WHITE_SPACE)
        texts = pc.if_else(pa.array(braced), texts, trimmed)
        braced = _braced(texts)
    reasons = pa.nulls(len(texts), pa.string())
    if not braced.all():
        others = are_json(texts.filter(pa.array(~braced)).cast(pa.binary()))
        why = pc.if_else(others, OTHER, MALFORMED)
        reasons = pc.replace_with_mask(reasons, pa.array(~braced), why)
        texts = pc.if_else(pa.array(braced), texts, "{}")
    try:
        return decode(texts), reasons
    except (msgspec.DecodeError, RecursionError):
        valid = are_json(texts.cast(pa.binary()))
    reasons = pc.coalesce(reasons, because(MALFORMED, ~valid.to_numpy(zero_copy_only=False)))
    return decode(_without_halves(pc.if_else(valid, texts, "{}"))), reasons


def _braced(texts: pa.Array) -> Mask:
    flat = ByteColumn(texts.view(pa.binary()))
    last = flat.at(flat.ends - 1, flat.ends)
    braced: Mask = (flat.at(flat.starts, flat.ends) == ord("{")) & (last == ord("}"))
    return braced


def _without_halves(texts: pa.Array) -> pa.Array:
    """Replace each half of a surrogate pair without its other half by U+FFFD."""
    halved = pc.match_substring_regex(texts, r"\\u[dD][89a-fA-F]")
    if not pc.any(halved).as_py():
        return texts
    mended = [_HALVES.sub(_mended, it.as_buffer().to_pybytes()) for it in texts.filter(halved)]
    return pc.replace_with_mask(texts, halved, pa.array(mended, pa.binary()).cast(pa.string()))


def _mended(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape[1] else escape[0]


def _require_text_keys(kind: Any) -> None:
    if pa.types.is_map(kind) and not pa.types.is_string(kind.key_type):
        raise UserError("parse: a MAP in JSON needs keys of the type STRING")
    for index in range(kind.num_fields if pa.types.is_nested(kind) else 0):
        inner = kind.field(index).type
        _require_text_keys(inner)
