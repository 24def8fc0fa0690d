"""Translates Spark's analysed plan to Arrow where both compute exactly alike, with nulls and types;
any other expression is left to Spark. Spark SQL copies each event into the JVM and back, which
costs several times its parsing and writing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.filters.contract import EachBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


def condition(spark: SparkSession, schema: pa.Schema, text: str) -> FilterStage | None:
    """Return an Arrow stage for the condition ``text``; None when Spark has to compute it."""
    rows = _empty(spark, schema)
    plan = _analysed(rows.where(text))
    if not _is_directly("Filter", plan):
        return None
    try:
        expression = _Reader(rows, schema).read(plan.condition())
    except LeftToSparkError:
        return None
    return FilterStage(expression) if isinstance(expression, Call) and expression.reads else None


def columns(spark: SparkSession, schema: pa.Schema, texts: Sequence[str]) -> ProjectStage | None:
    """Return an Arrow stage for ``texts``; None unless all are columns or casts, none repeated."""
    rows = _empty(spark, schema)
    plan = _analysed(rows.selectExpr(*texts))
    if not _is_directly("Project", plan):
        return None
    reader = _Reader(rows, schema)
    sources: list[Expression] = []
    fields: dict[str, pa.Field] = {}
    for item in items(plan.projectList()):
        try:
            source = reader.read(item.child() if class_name(item) == "Alias" else item)
        except LeftToSparkError:
            return None
        if not isinstance(source, Column | Cast) or item.name() in fields:
            return None
        sources.append(source)
        fields[item.name()] = field_of(source, schema, item.name())
    return ProjectStage(tuple(sources), pa.schema(fields.values()))


def field_of(source: Column | Cast, schema: pa.Schema, name: str) -> pa.Field:
    if isinstance(source, Cast):
        return pa.field(name, source.target)
    return schema.field(source.name).with_name(name)


class _Reader:
    """Translates Spark's analysed expressions. Spark's ids identify columns: names may repeat."""

    def __init__(self, rows: DataFrame, schema: pa.Schema) -> None:
        ids = (column.exprId().id() for column in items(_analysed(rows).output()))
        self._names = dict(zip(ids, schema.names, strict=True))

    def read(self, node: Any) -> Expression:
        kind = class_name(node)
        parts = list(items(node.children()))
        if kind == "AttributeReference" and node.exprId().id() in self._names:
            return Column(self._names[node.exprId().id()])
        if kind == "GetMapValue":
            return self._entry(*parts)
        if kind == "Cast":
            return self._cast(node, parts[0])
        if kind in LOGIC:
            return Call(LOGIC[kind], tuple(map(self.read, parts)))
        if kind in COMPARISONS:
            return self._comparison(kind, *parts)
        if kind == "In":
            value, *others = parts
            either: Expression = self._comparison("EqualTo", value, others[0])
            for other in others[1:]:
                either = Call("or_kleene", (either, self._comparison("EqualTo", value, other)))
            return either
        return self._constant(node)

    def _cast(self, node: Any, part: Any) -> Expression:
        source = TYPES.get(part.dataType().simpleString())
        target = TYPES.get(node.dataType().simpleString())
        inner = self.read(part)
        if source is not None and source == target:  # of the list of IN, when the types differ
            return inner
        if not inner.reads or (source, target) not in CASTS:
            return self._constant(node)
        return Cast(inner, source, target)

    def _comparison(self, kind: str, left: Any, right: Any) -> Call:
        types = {part.dataType().simpleString() for part in (left, right)}
        if len(types) > 1 or types.isdisjoint(TYPES if kind == "EqualTo" else ORDERED):
            raise LeftToSparkError(kind)
        return Call(COMPARISONS[kind], (self.read(left), self.read(right)))

    def _entry(self, column: Any, key: Any) -> Entry:
        map_column, constant = self.read(column), self._constant(key)
        if column.dataType().simpleString() != "map<string,string>":
            raise LeftToSparkError("GetMapValue")
        assert isinstance(map_column, Column)
        return Entry(map_column.name, constant.value.as_py())

    def _constant(self, node: Any) -> Constant:
        """Return a literal, or one that Spark widens to bigint. Raises LeftToSparkError."""
        kind, name = class_name(node), node.dataType().simpleString()
        if kind == "Cast" and name == "bigint":
            inner = self._constant(node.child())
            if inner.value.type == pa.int32():
                return Constant(inner.value.cast(pa.int64()))
        elif kind == "Literal" and name in TYPES and node.value() is not None:
            value = node.value().toString() if name == "string" else node.value()
            return Constant(pa.scalar(value, TYPES[name]))
        raise LeftToSparkError(kind)


def _empty(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  loads pyspark

    return spark.createDataFrame([], from_arrow_schema(schema, prefer_timestamp_ntz=False))


def _analysed(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()


def _is_directly(kind: str, plan: Any) -> bool:
    return class_name(plan) == kind and bool(plan.child().children().isEmpty())


def class_name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def items(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


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
