"""Avro rows as JSON, block by block, through fastavro. A value out of Python's and Arrow's range
(the year 10000) stays a number; its row gets a ``parse_error``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import IO, Any, cast
from uuid import UUID

import msgspec
import pyarrow as pa
from backports.zstd import ZstdError
from fastavro import block_reader
from fastavro.read import LOGICAL_READERS
from fastavro.schema import SchemaParseException

from flumeng.connectors.objects.content import BlockFile, Content
from flumeng.connectors.objects.formats import Rows, chosen, texts_of
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.platform.errors import CorruptError, UserError
from flumeng.platform.memory import require_memory

_PLAIN: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "time-millis": pa.time64("us"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}


MOST_DIGITS = 38


def parts(content: Content, source: ObjectsSource, start: int, end: int) -> Iterator[Rows]:
    """Yield rows. Raises CorruptError at a damaged block, UserError for unsupported types."""
    file = BlockFile(content.blocks())
    with content.explained():
        try:
            yield from _parts(file, source, start, end)
        except (EOFError, ValueError):
            file.check()
            raise
        except (SchemaParseException, ZstdError) as error:
            require_memory(error)
            raise CorruptError(f"the Avro data is damaged: {error}") from error


def _parts(file: BlockFile, source: ObjectsSource, start: int, end: int) -> Iterator[Rows]:
    reader = block_reader(cast(IO[bytes], file))
    schema = reader.writer_schema
    if not isinstance(schema, dict) or schema["type"] != "record":
        raise UserError("the Avro values are not records")
    named: dict[str, Any] = {}
    _define(schema, named)
    names = chosen(source, [field["name"] for field in schema["fields"]])
    fields = [field for field in schema["fields"] if field["name"] in names]
    kind = _row_type({**schema, "fields": fields}, named)
    row = 0
    for block in reader:
        last = row + block.num_records
        if last > start:
            values = cast(list[dict[str, Any]], list(block))[max(start - row, 0) : end - row]
            position = max(start, row)
            for bodies in _bodies([{name: row[name] for name in names} for row in values], kind):
                yield Rows(position, *bodies)
                position += len(bodies[0])
        row = last
        if row >= end:
            return


@dataclass(frozen=True)
class _Unfit:
    value: Any


def _guarded(read: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(value: Any, *schemas: Any) -> Any:
        try:
            return read(value, *schemas)
        except (ArithmeticError, ValueError):
            return _Unfit(value)

    return guarded


LOGICAL_READERS.update({name: _guarded(read) for name, read in LOGICAL_READERS.items()})
LOGICAL_READERS["fixed-uuid"] = _guarded(lambda value, *_: UUID(bytes=value))


def _bodies(
    rows: Sequence[Mapping[str, Any]], kind: pa.DataType | None
) -> Iterator[tuple[pa.BinaryArray, str]]:
    """Yield bodies and their error. Without a ``kind`` rows are encoded one by one."""
    plain = [_plain(row) for row in rows]
    unfit = [number for number, row in enumerate(rows) if _unfit_names(row)]
    first = 0
    for number in [*unfit, len(rows)]:
        yield from _together(plain[first:number], kind)
        if number < len(rows):
            names = ", ".join(_unfit_names(rows[number]))
            yield _alone(plain[number]), f"avro: {names}: the value does not fit its type"
        first = number + 1


def _together(
    rows: Sequence[Mapping[str, Any]], kind: pa.DataType | None
) -> Iterator[tuple[pa.BinaryArray, str]]:
    if not rows:
        return
    if kind is not None:
        try:
            batch = pa.RecordBatch.from_struct_array(pa.array(rows, kind))
            bodies = list(texts_of(batch))
        except (pa.ArrowException, ArithmeticError):
            pass
        else:
            yield from ((some, "") for some in bodies)
            return
    yield from ((_alone(row), "") for row in rows)


def _alone(row: Mapping[str, Any]) -> pa.BinaryArray:
    """Encode one row without Arrow, in the same format."""
    given = {name: value for name, value in row.items() if value is not None}
    return pa.array([_ENCODER.encode(_shown(given))], pa.binary())


_ENCODER = msgspec.json.Encoder(decimal_format="number")


def _shown(value: Any) -> Any:
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "Z"
        moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return moment.isoformat(timespec="microseconds") + zone
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, time):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, dict):
        return {name: _shown(each) for name, each in value.items()}
    return [_shown(each) for each in value] if isinstance(value, list) else value


def _unfit_names(row: Mapping[str, Any]) -> list[str]:
    return [name for name, value in row.items() if _has_unfit(value)]


def _has_unfit(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_unfit, value.values() if isinstance(value, dict) else value))
    return isinstance(value, _Unfit)


def _row_type(schema: Any, named: Mapping[str, Any]) -> pa.DataType | None:
    """Return the rows' type; None when a column is a union of several types. Raises UserError for a
    recursive schema."""
    try:
        return _type(schema, named, ())
    except _UnionError:
        return None


class _UnionError(Exception):
    """A union of several types, for which Arrow has no column type."""


def _define(schema: Any, named: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for each in schema:
            _define(each, named)
    elif isinstance(schema, dict):
        if "name" in schema:
            named[schema["name"]] = schema
        inner = [field["type"] for field in schema.get("fields", ())]
        for each in (*inner, *(schema.get(key) for key in ("type", "items", "values"))):
            _define(each, named)


def _type(schema: Any, named: Mapping[str, Any], within: tuple[str, ...]) -> pa.DataType:
    if isinstance(schema, str):
        if schema in within:
            raise UserError(f"the Avro schema is recursive, which no column can hold: {schema}")
        return _PLAIN[schema] if schema in _PLAIN else _type(named[schema], named, within)
    if isinstance(schema, list):
        kinds = [kind for kind in schema if kind != "null"]
        if len(kinds) != 1:
            raise _UnionError
        return _type(kinds[0], named, within)
    name = schema["type"]
    if name == "record":
        around = (*within, schema["name"])
        return pa.struct(
            [pa.field(f["name"], _type(f["type"], named, around)) for f in schema["fields"]]
        )
    if name == "array":
        return pa.list_(_type(schema["items"], named, within))
    if name == "map":
        return pa.map_(pa.string(), _type(schema["values"], named, within))
    if schema.get("logicalType") == "decimal":
        digits = schema["precision"]
        make = pa.decimal128 if digits <= MOST_DIGITS else pa.decimal256
        return make(digits, schema.get("scale", 0))
    return _LOGICAL.get(schema.get("logicalType", ""), None) or _type(name, named, within)


def _plain(value: Any) -> Any:
    """Return the value as Arrow accepts it: a UUID as text, an unfit value as in the file."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, _Unfit):
        return value.value
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value
