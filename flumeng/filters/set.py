"""The filter ``set``: computes columns and attributes, all from the columns before the filter."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events import attributes
from flumeng.events.byte_column import text
from flumeng.events.columns import changed, replaced
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.contract import EachBatch, Filter
from flumeng.filters.options import templates
from flumeng.filters.options.set import Set
from flumeng.filters.options.templates import ATTRIBUTE, Field, Part

Templates = tuple[tuple[str, tuple[Part, ...]], ...]


class SetFilter(Filter):
    def __init__(self, options: Set) -> None:
        self._templates = tuple((n, templates.parse(t)) for n, t in options.columns.items())

    def apply(self, batch: LazyBatch) -> LazyBatch:
        fields = [
            pa.field(name, _type(batch.schema, parts))
            for name, parts in self._templates
            if name not in batch.schema.names and not ATTRIBUTE.fullmatch(name)
        ]
        schema = replaced(batch.schema, *fields)
        return batch.arrow(SetStage(self._templates, schema), schema)


@dataclass(frozen=True)
class SetStage(EachBatch):
    templates: Templates
    schema: pa.Schema

    def each(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        results: dict[str, pa.Array] = {}
        for name, parts in self.templates:
            values = _made(batch, parts)
            if attribute := ATTRIBUTE.fullmatch(name):
                attrs = results.get(
                    "attrs", batch["attrs"] if "attrs" in batch.schema.names else None
                )
                results["attrs"] = attributes.put(attrs, attribute["key"], _as_text(values))
            else:
                results[name] = values.cast(self.schema.field(name).type)
        return changed(batch, results)


def _type(schema: pa.Schema, parts: tuple[Part, ...]) -> pa.DataType:
    if len(parts) == 1 and isinstance(field := parts[0], Field) and field.key is None:
        return schema.field(field.name).type
    return pa.string()


def _made(batch: pa.RecordBatch, parts: tuple[Part, ...]) -> pa.Array:
    """Return the values of a template; a null within a longer text becomes empty."""
    if len(parts) == 1 and isinstance(parts[0], Field):
        return _value(batch, parts[0])
    if all(isinstance(part, str) for part in parts):
        return pa.repeat(pa.scalar("".join(map(str, parts))), batch.num_rows)
    texts = [
        part if isinstance(part, str) else _as_text(_value(batch, part)).fill_null("")
        for part in parts
    ]
    return pc.binary_join_element_wise(*texts, "")


def _value(batch: pa.RecordBatch, field: Field) -> pa.Array:
    column = batch[field.name]
    return column if field.key is None else attributes.value(column, field.key)


def _as_text(values: pa.Array) -> pa.Array:
    if pa.types.is_binary(values.type):
        return text(values)
    if pa.types.is_timestamp(values.type):
        return pc.strftime(values, "%Y-%m-%dT%H:%M:%SZ")
    return values.cast(pa.string())
