"""Expressions that Arrow computes exactly as Spark does, with nulls and types; any other is left to
Spark. Spark SQL copies each event into the JVM and back, which costs several times its parsing and
writing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.filters.contract import EachBatch

COMPARISONS = {
    "EqualTo": "equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
}
LOGIC = {
    "And": "and_kleene",
    "Or": "or_kleene",
    "Not": "invert",
    "IsNull": "is_null",
    "IsNotNull": "is_valid",
}
ORDERED = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string()}
TYPES: Mapping[str, pa.DataType] = {**ORDERED, "boolean": pa.bool_()}


class LeftToSparkError(Exception):
    """The expression has no exact equivalent in Arrow, so Spark has to compute it."""


@dataclass(frozen=True)
class Column:
    name: str
    reads: ClassVar[bool] = True

    def of(self, batch: pa.RecordBatch) -> Any:
        return batch[self.name]


@dataclass(frozen=True)
class Constant:
    value: pa.Scalar
    reads: ClassVar[bool] = False

    def of(self, _batch: pa.RecordBatch) -> Any:
        return self.value


@dataclass(frozen=True)
class Entry:
    column: str
    key: str
    reads: ClassVar[bool] = True

    def of(self, batch: pa.RecordBatch) -> Any:
        return pc.map_lookup(batch[self.column], self.key, "first")


@dataclass(frozen=True)
class Call:
    function: str
    arguments: tuple[Expression, ...]

    @property
    def reads(self) -> bool:
        """Whether the call reads a column; otherwise its result is a single value."""
        return any(part.reads for part in self.arguments)

    def of(self, batch: pa.RecordBatch) -> Any:
        return pc.call_function(self.function, [part.of(batch) for part in self.arguments])


@dataclass(frozen=True)
class Cast:
    """Spark's CAST: text to a whole number, int to bigint, or a whole number or boolean to text."""

    argument: Expression
    source: pa.DataType
    target: pa.DataType

    @property
    def reads(self) -> bool:
        return self.argument.reads

    def of(self, batch: pa.RecordBatch) -> Any:
        value = self.argument.of(batch)
        if self.source == pa.string():
            return whole_numbers(value, self.target)
        return pc.cast(value, self.target)


CASTS = {
    (pa.string(), pa.int32()),
    (pa.string(), pa.int64()),
    (pa.int32(), pa.int64()),
    (pa.int32(), pa.string()),
    (pa.int64(), pa.string()),
    (pa.bool_(), pa.string()),
}
Expression = Column | Constant | Entry | Call | Cast


@dataclass(frozen=True)
class FilterStage(EachBatch):
    condition: Call

    def each(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(self.condition.of(batch))


@dataclass(frozen=True)
class ProjectStage(EachBatch):
    sources: tuple[Expression, ...]
    schema: pa.Schema

    def each(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [source.of(batch) for source in self.sources]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def field_of(source: Column | Cast, schema: pa.Schema, name: str) -> pa.Field:
    if isinstance(source, Cast):
        return pa.field(name, source.target)
    return schema.field(source.name).with_name(name)


_NUMBER = (
    r"^[\x00-\x20\x7f]*(?P<sign>[+-]?)(?P<zeros>0*)(?P<digits>[0-9]*)(?P<point>\.?)[0-9]*"
    r"[\x00-\x20\x7f]*$"
)
_MOST_DIGITS = 19
"""Numbers with more digits do not fit a bigint; all with 19 fit an unsigned 64-bit integer."""


def whole_numbers(texts: Any, kind: pa.DataType) -> Any:
    """Cast strings to int32 or int64 like Spark's ``UTF8String.toInt`` and ``toLong`` without ANSI
    mode: strip spaces and control characters, truncate decimals, return null where Spark does."""
    parts = pc.extract_regex(texts, pattern=_NUMBER)
    sign, zeros, digits, point = (
        pc.struct_field(parts, [name]) for name in ("sign", "zeros", "digits", "point")
    )
    some = pc.not_equal(pc.binary_join_element_wise(zeros, digits, point, ""), "")
    short = pc.less_equal(pc.binary_length(digits), _MOST_DIGITS)
    plain = pc.if_else(pc.and_(short, pc.not_equal(digits, "")), digits, "0")
    negative = pc.equal(sign, "-")
    most = 2 ** (kind.bit_width - 1)
    limit = pc.if_else(negative, pa.scalar(most, pa.uint64()), pa.scalar(most - 1, pa.uint64()))
    fits = pc.and_(pc.and_(some, short), pc.less_equal(pc.cast(plain, pa.uint64()), limit))
    signed = pc.binary_join_element_wise(pc.if_else(negative, "-", ""), plain, "")
    return pc.cast(pc.if_else(fits, signed, pa.scalar(None, pa.string())), kind)
