"""JSON texts as Arrow columns, level by level.

msgspec finds the values of an object, and each column is then read from its values' texts at once.
Texts come as a column and leave as one, so no Python code runs for each of them.

Many objects are decoded in one go, one a line. Three facts ensure that no line is part of another:
each begins with ``{`` and ends with ``}``, no comma stands between two, and there are as many
objects as lines. An object that continued in the next line would need a comma before its brace, and
a string cannot hold the line's end. The same goes for arrays.

msgspec also writes the values out, as one array of MessagePack maps. It copies each value as it is,
behind a header of 0x80 to 0xBF and the name. In UTF-8 such a byte never follows ASCII, and each
JSON value ends with ASCII. So these bytes show where each value ends.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import ByteColumn, Mask, Positions, following
from flumeng.filters.formats.casts import cast
from flumeng.filters.time_texts import of_seconds

_BINARY = pa.binary()
_ABSENT = msgspec.Raw(b"null")
_MOST_SHORT_FIELDS, _MOST_FIELDS = 15, 127
"""Most fields of a map with a header of one byte, and of one whose count is an ASCII byte."""
_LONG_MAP = 3
"""The bytes of a longer header of a map: it ends with the count."""
_MOST_NAME_BYTES = 31
"""The longest name with a header of one byte."""
_ABOVE_HEADERS = 0xC0 - 256
"""The byte after 0x80 to 0xBF. As signed numbers these are the lowest."""
_INFINITE = ("NaN", "INF", "+INF", "-INF", "Infinity", "+Infinity", "-Infinity")
_encode = msgspec.msgpack.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines
_decode_texts = msgspec.json.Decoder(list[str]).decode
_decode_arrays = msgspec.json.Decoder(list[msgspec.Raw]).decode_lines
_decode_maps = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode_lines


def objects(texts: pa.Array, names: Sequence[str]) -> list[ByteColumn]:
    """Return the values of each of ``names`` in JSON objects, as JSON; ``null`` where absent.
    ``texts``: UTF-8. Raises ``msgspec.DecodeError``, RecursionError."""
    layout = _layout(tuple(names))
    decoded = _decoded(layout.decode, texts)
    if not names:
        return []
    if layout.gaps is None:
        get = [attrgetter(f"_{index}") for index in range(len(names))]
        return [_in_column(list(map(each, decoded))) for each in get]
    written = _bytes_of(_encode(decoded), pa.string())
    behind_all = len(written.data) + layout.gaps[-1][1]
    headers = np.append(_headers(written, len(decoded)), behind_all)
    begins = headers[:-1].reshape(len(decoded), len(names))
    ends = headers[1:].reshape(begins.shape)
    return [
        written.pieces(begins[:, index] + before, ends[:, index] - behind)
        for index, (before, behind) in enumerate(layout.gaps)
    ]


def _headers(written: ByteColumn, count: int) -> Positions:
    """Return the places of the headers behind ASCII, in an array of ``count`` MessagePack maps."""
    array_bytes = 1 if count < 16 else 3 if count < 65_536 else 5
    data = written.data[array_bytes:].view(np.int8)
    places = np.flatnonzero(data < _ABOVE_HEADERS)
    behind_ascii = data[places - 1] >= 0  # before the first byte comes the last, which is ASCII
    return places[behind_ascii] + array_bytes


def maps(texts: pa.Array) -> list[dict[str, msgspec.Raw]]:
    """Return the names and values of each JSON object; of a repeated name the last value. Raises
    the errors of ``objects``."""
    return _decoded(_decode_maps, texts)


def _in_column(raws: list[msgspec.Raw]) -> ByteColumn:
    written = _bytes_of(_encode_lines(raws))
    ends = written.find("\n")
    if len(ends) == len(raws):
        return written.pieces(np.concatenate([[0], ends + 1])[:-1], ends)
    ends = np.cumsum(np.fromiter(map(len, raws), np.int64, len(raws)))  # some have line ends inside
    return _bytes_of(b"".join(raws)).pieces(np.concatenate([[0], ends])[:-1], ends)


def inside(flat: ByteColumn, path: Sequence[str]) -> ByteColumn:
    """Return the values at ``path`` in each of ``flat``; ``null`` where there is none."""
    for name in path:
        braced = flat.at(flat.starts, flat.ends) == ord("{")
        (inner,) = objects(flat.column(flat.starts, flat.ends, braced).drop_null(), [name])
        places = pa.array(np.cumsum(braced) - 1, pa.int64(), mask=~braced)
        flat = ByteColumn(pc.fill_null(inner.array().take(places), b"null"))
    return flat


def as_map(decoded: list[dict[str, msgspec.Raw]]) -> pa.Array:
    offsets, _ = _offsets(decoded)
    keys, flat = _flattened(decoded)
    return pa.MapArray.from_arrays(offsets, keys, texts_of(flat, flat.at(flat.starts, flat.ends)))


def column(flat: ByteColumn, to: pa.DataType) -> tuple[pa.Array, Mask]:
    """Cast JSON values to a type; ``null`` becomes null. Also return which values do not fit."""
    first = flat.data[flat.starts]
    if pa.types.is_string(to):
        return texts_of(flat, first), np.zeros(len(flat), np.bool_)
    given = first != ord("n")
    if pa.types.is_struct(to):
        return _nested(flat, given, first == ord("{"), to, _structs)
    if pa.types.is_map(to):
        return _nested(flat, given, first == ord("{"), to, _maps)
    if pa.types.is_list(to):
        return _nested(flat, given, first == ord("["), to, _lists)
    quoted = first == ord('"')
    number = given & ~quoted & (first != ord("t")) & (first != ord("f")) & (first < ord("["))
    if pa.types.is_boolean(to):
        taken = (first == ord("t")) | (first == ord("f"))
    elif pa.types.is_integer(to):
        taken = number
    elif pa.types.is_floating(to):
        taken = number
        if quoted.any():
            taken = number | (quoted & _is_one_of(texts_of(flat, first), _INFINITE))
    elif pa.types.is_decimal(to):
        taken = number | quoted
    elif pa.types.is_binary(to):
        return _from_base64(texts_of(flat, first), quoted, given)
    else:
        taken = quoted
    casted, failed = cast(_within_quotes(flat, quoted, taken), to)
    failed |= given & ~taken
    if pa.types.is_timestamp(to) and number.any():
        casted, failed = _with_seconds(flat, number, casted, failed)
    return casted, failed


def texts_of(flat: ByteColumn, first: Any) -> pa.Array:
    """Return strings as their text, and other values as written; ``null`` becomes null."""
    return _within_quotes(flat, first == ord('"'), first != ord("n"))


def _within_quotes(flat: ByteColumn, quoted: Mask, taken: Mask) -> pa.Array:
    starts, ends = flat.starts + quoted, flat.ends - quoted
    plain = flat.texts(starts, ends, taken)
    backslashes = flat.find("\\")
    if not len(backslashes):
        return plain
    escaped = quoted & taken & (following(backslashes, starts, ends) < ends)
    if not escaped.any():
        return plain
    mask = pa.array(escaped)
    written = flat.array().filter(mask)
    unescaped = pa.array(_decode_texts(b"[" + in_one(written, b",") + b"]"), pa.string())
    return pc.replace_with_mask(plain, mask, unescaped)


@dataclass(frozen=True)
class _Layout:
    """Objects as MessagePack. ``gaps``: the bytes from the header before each value to the value,
    and from its end to the next header; None when some headers are not 0x80 to 0xBF."""

    decode: Callable[[memoryview], list[Any]]
    gaps: list[tuple[int, int]] | None


@lru_cache(64)
def _layout(names: tuple[str, ...]) -> _Layout:
    fields = [(f"_{index}", msgspec.Raw, _ABSENT) for index in range(len(names))]
    rename = {f"_{index}": name for index, name in enumerate(names)}
    made = msgspec.defstruct("Object", fields, rename=rename, gc=False)
    decode = msgspec.json.Decoder(made).decode_lines
    widths = [len(name.encode()) for name in names]
    if len(names) > _MOST_FIELDS or max(widths, default=0) > _MOST_NAME_BYTES:
        return _Layout(decode, None)
    before = [1 + width for width in widths]
    behind = [0 for _ in widths]
    if len(names) > _MOST_SHORT_FIELDS:
        behind[-1] = _LONG_MAP
    elif names:
        before[0] += 1  # the header of the map
    return _Layout(decode, list(zip(before, behind, strict=True)))


def _bytes_of(data: bytes, kind: pa.DataType = _BINARY) -> ByteColumn:
    """Return one row of all bytes. Pieces of ``kind`` string are known to be UTF-8."""
    bounds = pa.py_buffer(np.array([0, len(data)], np.int32))
    return ByteColumn(pa.Array.from_buffers(kind, 1, [None, bounds, pa.py_buffer(data)]))


def _decoded(decode: Callable[[memoryview], list[Any]], texts: pa.Array) -> list[Any]:
    decoded = decode(in_one(texts, b"\n"))
    if len(decoded) != len(texts):
        raise msgspec.DecodeError("not one value in each line")
    return decoded


def in_one(texts: pa.Array, separator: bytes) -> memoryview:
    texts = texts.view(pa.binary())
    everything = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return memoryview(pc.binary_join(everything, separator)[0].as_buffer())


def _nested(
    flat: ByteColumn,
    given: Mask,
    shaped: Mask,
    to: pa.DataType,
    read: Callable[[pa.Array, pa.DataType], tuple[pa.Array, Mask]],
) -> tuple[pa.Array, Mask]:
    """Call ``read`` for values of the right JSON kind. Others become null, and do not fit unless
    they are ``null``."""
    inner, inner_failed = read(flat.column(flat.starts, flat.ends, shaped).drop_null(), to)
    failed = given & ~shaped
    failed[shaped] = inner_failed
    places = pa.array(np.cumsum(shaped) - 1, pa.int64(), mask=~shaped)
    return inner.take(places), failed


def _structs(raws: pa.Array, to: pa.DataType) -> tuple[pa.Array, Mask]:
    fields = [to.field(index) for index in range(to.num_fields)]
    values = objects(raws, [field.name for field in fields])
    parts = [column(each, field.type) for each, field in zip(values, fields, strict=True)]
    failed = np.zeros(len(raws), np.bool_)
    for _, part_failed in parts:
        failed |= part_failed
    return pa.StructArray.from_arrays([part for part, _ in parts], fields=fields), failed


def _lists(raws: pa.Array, to: pa.DataType) -> tuple[pa.Array, Mask]:
    decoded = _decoded(_decode_arrays, raws)
    offsets, rows = _offsets(decoded)
    items, item_failed = column(_in_column(list(chain.from_iterable(decoded))), to.value_type)
    return pa.ListArray.from_arrays(offsets, items, type=to), _any(item_failed, rows, len(raws))


def _maps(raws: pa.Array, to: pa.DataType) -> tuple[pa.Array, Mask]:
    decoded = maps(raws)
    offsets, rows = _offsets(decoded)
    keys, flat = _flattened(decoded)
    items, item_failed = column(flat, to.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items, type=to), _any(
        item_failed, rows, len(raws)
    )


def _flattened(decoded: list[dict[str, msgspec.Raw]]) -> tuple[pa.Array, ByteColumn]:
    keys = pa.array(list(chain.from_iterable(decoded)), pa.string())
    return keys, _in_column(list(chain.from_iterable(map(dict.values, decoded))))


def _offsets(decoded: list[Any]) -> tuple[pa.Array, Positions]:
    counts = np.fromiter(map(len, decoded), np.int64, len(decoded))
    ends = np.cumsum(counts)
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    return offsets, np.repeat(np.arange(len(decoded)), counts)


def _any(failed: Mask, rows: Positions, count: int) -> Mask:
    any_failed = np.zeros(count, np.bool_)
    any_failed[rows[failed]] = True
    return any_failed


def _is_one_of(texts: pa.Array, words: Sequence[str]) -> Mask:
    is_word: Mask = pc.is_in(texts, value_set=pa.array(words)).to_numpy(zero_copy_only=False)
    return is_word


def _from_base64(texts: pa.Array, quoted: Mask, given: Mask) -> tuple[pa.Array, Mask]:
    decoded = [
        _base64(text) if is_text else None
        for text, is_text in zip(texts.to_pylist(), quoted, strict=True)
    ]
    values = pa.array(decoded, pa.binary())
    return values, given & values.is_null().to_numpy(zero_copy_only=False)


def _base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _with_seconds(
    flat: ByteColumn, number: Mask, casted: pa.Array, failed: Mask
) -> tuple[pa.Array, Mask]:
    """Read numbers as seconds since the epoch, perhaps with a fraction; keep other values."""
    micros, fits = of_seconds(flat.texts(flat.starts, flat.ends, number))
    moments = pa.array(micros, mask=~fits).cast(casted.type)
    return pc.if_else(pa.array(fits), moments, casted), failed & ~fits
