"""Rows of Avro's container files as JSON, block by block; fastavro makes Python objects of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any, cast
from uuid import UUID

import pyarrow as pa
from backports.zstd import ZstdError
from fastavro import block_reader
from fastavro.schema import SchemaParseException

from flumeng.errors import CorruptError, UserError
from flumeng.inputs.objects.block_file import BlockFile
from flumeng.inputs.objects.content import Content
from flumeng.inputs.objects.formats import chosen
from flumeng.inputs.objects.parts import Rows, texts_of
from flumeng.spec.objects_source import ObjectsSource

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


def parts(content: Content, source: ObjectsSource, start: int, end: int) -> Iterator[Rows]:
    """Rows [start, end). Raises CorruptError before the first block that is damaged, UserError for
    types that JSON or Arrow do not have."""
    file = BlockFile(content.blocks())
    with content.explained():
        try:
            yield from _parts(file, source, start, end)
        except (EOFError, ValueError):
            file.check()
            raise
        except (SchemaParseException, ZstdError) as error:
            raise CorruptError(f"it is damaged: {error}") from error


def _parts(file: BlockFile, source: ObjectsSource, start: int, end: int) -> Iterator[Rows]:
    reader = block_reader(cast(IO[bytes], file))
    schema = reader.writer_schema
    if not isinstance(schema, dict) or schema["type"] != "record":
        raise UserError("its Avro has values that are no records")
    named: dict[str, Any] = {}
    _define(schema, named)
    names = chosen(source, [field["name"] for field in schema["fields"]])
    fields = [field for field in schema["fields"] if field["name"] in names]
    kind = _type({**schema, "fields": fields}, named, ())
    row = 0
    for block in reader:
        last = row + block.num_records
        if last > start:
            values = cast(list[dict[str, Any]], list(block))[max(start - row, 0) : end - row]
            position = max(start, row)
            rows = pa.array([_plain({name: row[name] for name in names}) for row in values], kind)
            for bodies in texts_of(pa.RecordBatch.from_struct_array(rows)):
                yield Rows(position, bodies)
                position += len(bodies)
        row = last
        if row >= end:
            return


def _define(schema: Any, named: dict[str, Any]) -> None:
    """Puts schemas by their names into ``named``, to which others may refer."""
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
    """``named``: see ``_define``; ``within``: the names of those around."""
    if isinstance(schema, str):
        if schema in within:
            raise UserError(f"its Avro has a {schema} in each {schema}, which no column can hold")
        return _PLAIN[schema] if schema in _PLAIN else _type(named[schema], named, within)
    if isinstance(schema, list):
        kinds = [kind for kind in schema if kind != "null"]
        if len(kinds) != 1:
            raise UserError(f"its Avro has a union of several types: {schema}")
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
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    return _LOGICAL.get(schema.get("logicalType", ""), None) or _type(name, named, within)


def _plain(value: Any) -> Any:
    """As Arrow takes it: a UUID as its text, a map as its entries."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value
