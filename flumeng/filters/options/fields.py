"""The options ``fields`` and ``schema``: ``{ms: "took.ms BIGINT"}``, or a schema in Spark DDL.
Paths are names with points between them; a name with a point or space stands in backticks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from flumeng.config.column_kinds import Columns, Kind

_NAME = r"(?:[^\s.`]+|`[^`]+`)"
_FIELD = re.compile(rf"({_NAME}(?:\.{_NAME})*)(?:\s+(\S.*))?")
_TYPE = re.compile(
    r"(?i)(STRING|BINARY|BOOLEAN|TINYINT|SMALLINT|INT|INTEGER|BIGINT|FLOAT|DOUBLE|DECIMAL|DATE|"
    r"TIMESTAMP|STRUCT|ARRAY|MAP)\b"
)
_NAMES = re.compile(_NAME)


@dataclass(frozen=True)
class Named:
    path: tuple[str, ...]
    type: str


def check_separator(text: str) -> None:
    if text not in ("tab", "space") and not re.fullmatch(r"[!#-/:-@\[\]^_`{|}~]+", text):
        raise ValueError("expected characters such as , ; | : or =, or the words tab or space")


def check_quote(text: str) -> None:
    if text not in ('"', "'", "`", "|"):
        raise ValueError("expected one of the characters \" ' ` |")


def named(schema: str | None, fields: Mapping[str, str] | None) -> dict[str, Named]:
    """Return path and type of each column. Raises ValueError."""
    from flumeng.config import sql_text  # noqa: PLC0415  # loads sqlglot

    by_column = {
        field.name: Named((field.name,), field.kind.sql("spark"))
        for field in (sql_text.parse_columns(schema).expressions if schema else ())
    }
    for column, text in (fields or {}).items():
        match = _FIELD.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f'expected a path and optionally a type, like "took.ms BIGINT", not {text}'
            )
        path = tuple(name.strip("`") for name in _NAMES.findall(match[1]))
        kind = match[2] or "STRING"  # the names in a STRUCT stay as they are
        by_column[column] = Named(path, kind if "<" in kind else kind.upper())
    return by_column


def kinds(schema: str | None, fields: Mapping[str, str] | None, *, nested: bool) -> Columns:
    from flumeng.config import expressions  # noqa: PLC0415  # loads sqlglot

    columns: dict[str, Kind] = dict(expressions.columns_of_ddl(schema)) if schema else {}
    for column, field in named(None, fields).items():
        if column in columns:
            raise ValueError(f"the column {column} is both in schema and in fields")
        if not _TYPE.match(field.type):
            raise ValueError(
                f"{column}: expected a type such as STRING, BIGINT, DOUBLE, BOOLEAN or TIMESTAMP "
                f'after the path, not "{field.type}"'
            )
        columns.update(expressions.columns_of_ddl(f"`{column}` {field.type}"))
    for column, kind in columns.items():
        if kind.inner and not nested:
            raise ValueError(f"{column}: only format json has values of the type {kind.name}")
    return columns
