"""Formats rows as JSON column by column in Arrow, without a Python object for each event.

Times are RFC 3339 in UTC with microseconds (years beyond 9999 and before 0 with a sign, as in ISO
8601), without ``Z`` if the column has no zone. Durations are numbers in the column's unit. Maps are
objects, decimals keep their digits, binary other than the body is base64, and a UUID is its usual
text. NaN and infinity are null. A body that is not UTF-8 has U+FFFD for invalid bytes, and comes as
``body_base64`` too.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.platform.errors import UserError

BODY, EXACT_BODY = "body", "body_base64"
SHORT = dict(zip(b'\\"\b\t\n\f\r', (b"\\" + bytes([c]) for c in b'\\"btnfr'), strict=True))
"""Short escapes of JSON by byte; other control characters are escaped by number."""
YEARS = {"D": (-719_528, 2_932_896), "us": (-62_167_219_200_000_000, 253_402_300_799_999_999)}
"""First and last moment of the years 0 to 9999, in days and microseconds since 1970."""
LARGEST = 2**63 - 1
NUMBER = {b"flumeng": b"number"}
"""The metadata of a field whose texts are numbers with any number of digits."""
_JSON_NUMBER = rb"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$"


@dataclass(frozen=True)
class _Texts:
    """JSON texts of a column: ``values`` between ``before`` and ``after``; a null has no text."""

    values: pa.Array
    before: bytes = b""
    after: bytes = b""

    def joined(self, before: bytes = b"", after: bytes = b"") -> pa.Array:
        before, after = before + self.before, self.after + after
        if not before and not after:
            return self.values
        return pc.binary_join_element_wise(before, self.values, after, b"")

    def or_null(self) -> pa.Array:
        return pc.fill_null(self.joined(), b"null")


def rows(events: pa.RecordBatch, *, nulls: bool = False, end: bytes = b"") -> pa.BinaryArray:
    """Return each row as one JSON object in UTF-8, followed by ``end``. Null fields are left out at
    every depth, unless ``nulls``. ``events`` are at most some 300 MB: a byte takes up to six.
    Raises UserError for a column of a type that JSON cannot show."""
    fields = []
    for field, column in zip(events.schema, events.columns, strict=True):
        if field.name == BODY and pa.types.is_binary(field.type):
            quoted = escaped(column)
            text = _as_utf8(quoted)
            fields.append((BODY, _Texts(text, b'"', b'"')))
            if text is not quoted or nulls:
                fields.append((EXACT_BODY, _exact(column, quoted, text)))
        elif is_number(field):
            fields.append((field.name, _Texts(_numbers(column))))
        else:
            fields.append((field.name, _texts(field.name, column, nulls)))
    return _objects(fields, events.num_rows, nulls, end)


def is_number(field: pa.Field) -> bool:
    return field.metadata is not None and NUMBER.items() <= field.metadata.items()


def values(name: str, column: pa.Array) -> pa.BinaryArray:
    """Return each value of the column ``name`` as JSON, null for a null. Raises as ``rows``."""
    return _texts(name, column, nulls=False).joined()


def parts(name: str, column: pa.Array) -> tuple[bytes, pa.BinaryArray, bytes]:
    """Return ``values`` as texts between two constants, for joining with other texts."""
    texts = _texts(name, column, nulls=False)
    return texts.before, texts.values, texts.after


def of_bodies(column: pa.BinaryArray) -> pa.BinaryArray:
    return _as_utf8(escaped(column))


def _objects(
    fields: list[tuple[str, _Texts]], count: int, nulls: bool, end: bytes = b""
) -> pa.Array:
    """Join fields to objects, with commas relative to the first field that is never null."""
    always = (n for n, (_, texts) in enumerate(fields) if nulls or not texts.values.null_count)
    pivot = next(always, None)
    parts: list[bytes | pa.Array] = [b"{"]
    for number, (name, texts) in enumerate(fields):
        key = json.dumps(name, ensure_ascii=False).encode("utf-8", "replace") + b":"
        before = b"," + key if pivot is None or number > pivot else key
        after = b"," if pivot is not None and number < pivot else b""
        if not texts.values.null_count:
            parts += [before + texts.before, texts.values, texts.after + after]
        elif nulls:
            parts += [before, texts.or_null(), after]
        else:
            parts.append(pc.fill_null(texts.joined(before, after), b""))
    pieces = list(merged([*parts, b"}" + end]))
    if len(pieces) == 1:
        return pa.repeat(pa.scalar(pieces[0], pa.binary()), count)
    objects = pc.binary_join_element_wise(*pieces, b"")
    if pivot is None:
        return pc.replace_substring(objects, b"{,", b"{", max_replacements=1)
    return objects


def merged(parts: Iterable[bytes | pa.Array]) -> Iterator[bytes | pa.Array]:
    constant = b""
    for part in parts:
        if isinstance(part, bytes):
            constant += part
            continue
        if constant:
            yield constant
        yield part
        constant = b""
    if constant:
        yield constant


def _texts(name: str, column: pa.Array, nulls: bool) -> _Texts:
    kind = column.type
    if isinstance(column, pa.UuidArray):
        values = (None if value is None else str(value).encode() for value in column.to_pylist())
        return _Texts(pa.array(values, pa.binary()), b'"', b'"')
    if isinstance(column, pa.ExtensionArray):
        return _texts(name, column.storage, nulls)
    if pa.types.is_dictionary(kind):
        return _texts(name, column.dictionary_decode(), nulls)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _Texts(escaped(column.cast(pa.binary())), b'"', b'"')
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return _Texts(_cast(column))
    if pa.types.is_floating(kind):
        return _Texts(_floats(column))
    if pa.types.is_timestamp(kind):
        return _Texts(_times(column), b'"', b'"' if kind.tz is None else b'Z"')
    if pa.types.is_date(kind):
        return _Texts(_dates(column), b'"', b'"')
    if pa.types.is_time(kind):
        return _Texts(_cast(column), b'"', b'"')
    if pa.types.is_null(kind):
        return _Texts(pa.nulls(len(column), pa.binary()))
    return _wide_texts(name, column, nulls)


def _wide_texts(name: str, column: pa.Array, nulls: bool) -> _Texts:
    kind = column.type
    if pa.types.is_map(kind):
        return _Texts(_lists(column, _entries(name, column, nulls)), b"{", b"}")
    if pa.types.is_fixed_size_list(kind):
        return _texts(name, column.cast(pa.list_(kind.value_type)), nulls)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        values = column.values.slice(start, end - start)
        return _Texts(_lists(column, _texts(name, values, nulls).or_null()), b"[", b"]")
    if pa.types.is_struct(kind):
        names = [kind.field(number).name for number in range(kind.num_fields)]
        columns = zip(names, column.flatten(), strict=True)
        fields = [(part, _texts(f"{name}.{part}", values, nulls)) for part, values in columns]
        return _Texts(_where_valid(column, _objects(fields, len(column), nulls)))
    if pa.types.is_duration(kind):
        return _Texts(_cast(column.cast(pa.int64())))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _Texts(_base64(column), b'"', b'"')
    if pa.types.is_fixed_size_binary(kind):
        return _Texts(_base64(column), b'"', b'"')
    raise UserError(f"the column {name} has the type {kind}, which JSON lacks: cast it in select")


def _numbers(column: pa.StringArray) -> pa.Array:
    texts = column.cast(pa.binary())
    valid = pc.match_substring_regex(texts, _JSON_NUMBER)
    return pc.if_else(valid, texts, pa.scalar(None, pa.binary()))


def _cast(column: pa.Array) -> pa.Array:
    return column.cast(pa.string()).cast(pa.binary())


def _where_valid(column: pa.Array, texts: pa.Array) -> pa.Array:
    if not column.null_count:
        return texts
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.binary()))


def _entries(name: str, column: pa.MapArray, nulls: bool) -> pa.Array:
    start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    keys = _texts(name, column.keys.slice(start, end - start), nulls)
    values = _texts(name, column.items.slice(start, end - start), nulls)
    quoted = keys.joined() if keys.before == b'"' else _Texts(keys.joined(), b'"', b'"').joined()
    if values.values.null_count:
        return pc.binary_join_element_wise(quoted, values.or_null(), b":")
    return pc.binary_join_element_wise(
        quoted, b":" + values.before, values.values, values.after, b""
    )


def _lists(column: pa.Array, texts: pa.Array) -> pa.Array:
    offsets = pc.subtract(column.offsets, column.offsets[0]).cast(pa.int32())
    return _where_valid(column, pc.binary_join(pa.ListArray.from_arrays(offsets, texts), b","))


def _floats(column: pa.Array) -> pa.Array:
    """Write floats with a point or an exponent, so that no reader takes them for integers."""
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    texts = _cast(column)
    bare = pc.invert(pc.match_substring_regex(texts, b"[.en]"))
    if pc.any(bare).as_py():
        texts = pc.if_else(bare, pc.binary_join_element_wise(texts, b".0", b""), texts)
    finite = pc.is_finite(column)
    if pc.any(pc.invert(finite)).as_py():
        texts = pc.if_else(finite, texts, pa.scalar(None, pa.binary()))
    return texts


def _times(column: pa.Array) -> pa.Array:
    micros = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.timestamp("us"))
    texts = pc.binary_replace_slice(_cast(micros), 10, 11, b"T")
    return _with_far_years(texts, micros.cast(pa.int64()), "us")


def _dates(column: pa.Array) -> pa.Array:
    days = column.cast(pa.date32())
    return _with_far_years(_cast(days), days.cast(pa.int32()).cast(pa.int64()), "D")


def _with_far_years(texts: pa.Array, numbers: pa.Array, unit: Literal["us", "D"]) -> pa.Array:
    """Replace ``texts`` of years outside 0 to 9999, which Arrow does not write as ISO 8601."""
    first, last = YEARS[unit]
    far = pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater(numbers, last)), False)
    if not pc.any(far).as_py():
        return texts
    moments = np.maximum(numbers.filter(far).to_numpy(), -LARGEST).astype(f"datetime64[{unit}]")
    signed = [_signed(str(moment)) for moment in np.datetime_as_string(moments, unit)]
    return pc.replace_with_mask(texts, far, pa.array(signed, pa.string()).cast(pa.binary()))


def _signed(moment: str) -> str:
    year, _, rest = moment.lstrip("-").partition("-")
    return f"{'-' if moment.startswith('-') else '+'}{year:0>4}-{rest}"


def _base64(column: pa.Array) -> pa.Array:
    values = (None if value is None else base64.b64encode(value) for value in column.to_pylist())
    return pa.array(values, pa.binary())


def escaped(column: pa.BinaryArray) -> pa.BinaryArray:
    """Escape quotes, backslashes and control characters."""
    for byte in _to_escape(content_of(column)):
        short = SHORT.get(byte, b"\\u%04x" % byte)
        column = pc.replace_substring(column, bytes([byte]), short)
    return column


def _to_escape(content: np.ndarray[Any, np.dtype[np.uint8]]) -> list[int]:
    whole = content.tobytes()
    to_escape = [byte for byte in b'\\"' if bytes([byte]) in whole]
    if whole and content.min() < 0x20:
        to_escape += np.flatnonzero(np.bincount(content[content < 0x20])).tolist()
    return to_escape


def content_of(column: pa.BinaryArray) -> np.ndarray[Any, np.dtype[np.uint8]]:
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return np.empty(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)
    start, end = bounds[column.offset], bounds[column.offset + len(column)]
    return np.frombuffer(data, np.uint8)[start:end]


def _as_utf8(quoted: pa.BinaryArray) -> pa.BinaryArray:
    """Replace invalid UTF-8 by U+FFFD. ``quoted`` contains no line end."""
    try:
        quoted.cast(pa.string())
        return quoted
    except pa.ArrowInvalid:
        whole = pa.ListArray.from_arrays([0, len(quoted)], pc.fill_null(quoted, b""))
        joined: bytes = pc.binary_join(whole, b"\n")[0].as_py()
        lines = pa.array([joined.decode("utf-8", "replace")], pa.large_string())
        return _where_valid(quoted, pc.split_pattern(lines, "\n").values.cast(pa.binary()))


def _exact(body: pa.BinaryArray, quoted: pa.BinaryArray, text: pa.BinaryArray) -> _Texts:
    none = pa.nulls(len(body), pa.binary())
    changed = pc.fill_null(pc.not_equal(text, quoted), False)
    exact = pc.replace_with_mask(none, changed, _base64(body.filter(changed)))
    return _Texts(exact, b'"', b'"')
