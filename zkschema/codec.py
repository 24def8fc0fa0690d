"""Records to bytes and back: JSON with a format version ``"v"``.

Unknown fields are kept; a newer ``"v"``, a missing field or one of the wrong type is an error that
names the place. Fields that are None by default are written only when set. Numbers are finite.
Large documents are gzipped, and never unpacked beyond a bound.
"""

from __future__ import annotations

import gzip
import json
import math
import types
import typing
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, Union, get_args, get_origin

from zkschema.records import Record

R = TypeVar("R", bound=Record)

PACK_FROM_BYTES = 4 * 1024
UNPACKED_BYTES = 64 * 1024 * 1024
ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False)
GZIP_MAGIC = b"\x1f\x8b"


class DecodeError(ValueError):
    """The bytes are not a record of this kind."""


class NewerVersionError(DecodeError):
    """The record was written by a newer flumeng: upgrade this process first."""


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def text_of(record: Record) -> str:
    """Return compact JSON with sorted keys: equal records are equal texts. Errors are shortened."""
    return ENCODER.encode({"v": type(record).VERSION, **_plain_fields(record.bounded())})


def encode(record: Record) -> bytes:
    """Return the bytes of ``text_of``, gzipped from 4 KiB on."""
    data = text_of(record).encode()
    return data if len(data) < PACK_FROM_BYTES else gzip.compress(data, compresslevel=6, mtime=0)


def unpack(data: bytes) -> bytes:
    """Return the JSON in ``data``. Raises DecodeError when damaged or over 64 MiB unpacked."""
    if not data.startswith(GZIP_MAGIC):
        return data
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        text = unpacker.decompress(data, UNPACKED_BYTES)
    except zlib.error as error:
        raise DecodeError(f"the gzip data is damaged: {error}") from error
    if not unpacker.eof:
        raise DecodeError("the gzip data is truncated, or larger than 64 MiB when unpacked")
    return text


def decode(kind: type[R], data: bytes) -> R:
    """Decode a record. Raises DecodeError with the place of the fault, and NewerVersionError for a
    higher ``"v"``."""
    try:
        document = DECODER.decode(unpack(data).decode())
    except DecodeError as error:
        raise DecodeError(f"{kind.__name__} record: {error}") from error
    except RecursionError as error:
        raise DecodeError(f"{kind.__name__} record: the JSON is nested too deeply") from error
    except ValueError as error:
        raise DecodeError(f"{kind.__name__} record: not JSON (UTF-8, finite): {error}") from error
    if not isinstance(document, dict):
        raise DecodeError(f"{kind.__name__} record: expected a JSON object")
    version = document.pop("v", None)
    if type(version) is not int or version < 1:
        raise DecodeError(
            f'{kind.__name__} record: its format version "v" is missing or not a positive integer'
        )
    if version > kind.VERSION:
        raise NewerVersionError(
            f"{kind.__name__} record: it has format version {version}, and this flumeng reads "
            f"only up to version {kind.VERSION}: upgrade this flumeng"
        )
    record = _record(kind, document, kind.__name__)
    assert isinstance(record, kind)
    return record


def _plain_fields(record: Record) -> dict[str, Any]:
    kind: Any = type(record)
    names, values, composite, optional = _layout(kind)
    plain = dict(zip(names, values(record), strict=True))
    for name in composite:
        plain[name] = _plain(plain[name])
    for name in optional:
        if plain[name] is None:
            del plain[name]
    return {**record.extra, **plain} if record.extra else plain


@cache
def _layout(
    kind: Any,
) -> tuple[tuple[str, ...], Callable[[Any], Iterable[Any]], tuple[str, ...], tuple[str, ...]]:
    """Return field names, a getter of values, and the names of composite and of optional fields."""
    names = tuple(f.name for f in fields(kind) if f.name != "extra")
    composite = tuple(name for name in names if not _is_json(_hints(kind)[name]))
    optional = tuple(f.name for f in fields(kind) if f.default is None)
    values = attrgetter(*names) if len(names) > 1 else lambda it: [getattr(it, n) for n in names]
    return names, values, composite, optional


def _is_json(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType, tuple):
        return all(part is Ellipsis or _is_json(part) for part in get_args(hint))
    return hint in (str, int, float, bool, types.NoneType)


def _plain(value: Any) -> Any:
    if isinstance(value, int | str):
        return value
    if isinstance(value, Record):
        return _plain_fields(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [item if isinstance(item, int | str) else _plain(item) for item in value]
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _record(kind: Any, document: Any, path: str) -> Record:
    if not isinstance(document, dict):
        raise DecodeError(f"{path}: expected an object, got {type(document).__name__}")
    hints = _hints(kind)
    values: dict[str, Any] = {}
    for f in fields(kind):
        if f.name == "extra":
            continue
        if f.name in document:
            values[f.name] = _value(hints[f.name], document.pop(f.name), f"{path}.{f.name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise DecodeError(f"{path}.{f.name}: the field is missing")
    record: Record = kind(**values, extra=document)
    return record


def _value(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (hint,) = [a for a in arguments if a is not type(None)]
        return _value(hint, value, path)
    if origin is tuple:
        return _tuple(arguments, value, path)
    if origin is Mapping:
        return _mapping(arguments, value, path)
    if issubclass(hint, Record):
        return _record(hint, value, path)
    if hint is float and type(value) is int:
        return _float(value, path)
    if type(value) is not hint:
        raise DecodeError(f"{path}: expected {hint.__name__}, got {type(value).__name__}")
    return value


def _float(value: int, path: str) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise DecodeError(f"{path}: the number is too large") from error


def _mapping(arguments: tuple[Any, ...], value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DecodeError(f"{path}: expected an object, got {type(value).__name__}")
    return {key: _value(arguments[1], item, f"{path}.{key}") for key, item in value.items()}


def _tuple(arguments: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise DecodeError(f"{path}: expected a list, got {type(value).__name__}")
    if arguments[-1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        raise DecodeError(f"{path}: expected {len(arguments)} items, got {len(value)}")
    pairs = enumerate(zip(arguments, value, strict=True))
    return tuple(_value(hint, item, f"{path}[{i}]") for i, (hint, item) in pairs)
