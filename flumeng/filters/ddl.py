"""Columns in Spark DDL as Arrow types, and Arrow types as kinds, without Spark."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
from sqlglot import exp

from flumeng.config import sql_text
from flumeng.config.column_kinds import Columns, Kind
from flumeng.config.functions import BINARY, BOOLEAN, DATE, FRACTION, INTEGER, TEXT, TIMESTAMP
from flumeng.platform.errors import UserError

_PLAIN = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_KINDS = {
    pa.types.is_string: TEXT,
    pa.types.is_binary: BINARY,
    pa.types.is_boolean: BOOLEAN,
    pa.types.is_integer: INTEGER,
    pa.types.is_floating: FRACTION,
    pa.types.is_decimal: FRACTION,
    pa.types.is_date: DATE,
    pa.types.is_timestamp: TIMESTAMP,
}
_DECIMAL = re.compile(r"decimal(?:\(([0-9]+)(?:, ([0-9]+))?\))?")


def columns_of(ddl: str) -> pa.Schema:
    """Return the columns of a Spark DDL text as an Arrow schema, all nullable. Raises UserError."""
    try:
        return pa.schema(_fields(sql_text.parse_columns(ddl)))
    except ValueError as error:
        raise UserError(f"{ddl!r} is not a list of columns in Spark DDL: {error}") from error


def type_of(text: str) -> pa.DataType:
    return columns_of(f"it {text}").field(0).type


def kinds_of(schema: pa.Schema) -> Columns:
    """Return the kinds of columns, as far as expressions distinguish them."""
    return {field.name: _kind(field.type) for field in schema}


def _kind(kind: pa.DataType) -> Kind:
    for test, name in _KINDS.items():
        if test(kind):
            return Kind(name)
    if pa.types.is_struct(kind):
        return Kind("struct", tuple((field.name, _kind(field.type)) for field in kind.fields))
    if pa.types.is_map(kind):
        return Kind("map", (("", _kind(kind.key_type)), ("", _kind(kind.item_type))))
    if pa.types.is_list(kind):
        return Kind("array", (("", _kind(kind.value_type)),))
    return Kind(str(kind))


def shown(kind: pa.DataType) -> str:
    """Return a type as DDL; of a nested type only its kind, such as STRUCT."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_nested(kind):
        return "STRUCT" if pa.types.is_struct(kind) else "MAP" if pa.types.is_map(kind) else "ARRAY"
    return next(name for name, plain in _PLAIN.items() if plain == kind).upper()


def _fields(struct: Any) -> list[pa.Field]:
    names = {field.name.lower() for field in struct.expressions}
    if len(names) < len(struct.expressions):
        raise ValueError("a column name occurs twice")
    if not all(isinstance(field, exp.ColumnDef) for field in struct.expressions):
        raise ValueError("expected a name and a type for each column")
    return [pa.field(field.name, _type(field.kind)) for field in struct.expressions]


def _type(node: Any) -> pa.DataType:
    if not isinstance(node, exp.DataType):
        raise ValueError("expected a type")
    if node.is_type(exp.DType.STRUCT):
        return pa.struct(_fields(node))
    inner = [_type(part) for part in node.expressions if isinstance(part, exp.DataType)]
    if node.is_type(exp.DType.ARRAY):
        return pa.list_(*inner)
    if node.is_type(exp.DType.MAP):
        return pa.map_(*inner)
    name = node.sql(dialect="spark").lower()
    decimal = _DECIMAL.fullmatch(name)
    if decimal:
        return pa.decimal128(int(decimal[1] or 10), int(decimal[2] or 0))
    if name not in _PLAIN:
        raise ValueError(f"no type {name}")
    return _PLAIN[name]
