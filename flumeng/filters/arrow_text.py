"""Translates the text of Spark SQL to the stages of ``arrow_sql``. Texts whose meaning or types
depend on Spark's analysis are left to Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from flumeng.config import sql_text
from flumeng.filters.arrow_sql import (
    CASTS,
    COMPARISONS,
    LOGIC,
    ORDERED,
    TYPES,
    Call,
    Cast,
    Column,
    Constant,
    Entry,
    Expression,
    FilterStage,
    LeftToSparkError,
    ProjectStage,
    field_of,
)

_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "EqualTo",
    exp.LT: "LessThan",
    exp.LTE: "LessThanOrEqual",
    exp.GT: "GreaterThan",
    exp.GTE: "GreaterThanOrEqual",
}
_CAST_TYPES = {"int": "int", "integer": "int", "bigint": "bigint", "string": "string"}
_INT = range(-(2**31), 2**31)
_BIGINT = range(-(2**63), 2**63)

Typed = tuple[Expression, pa.DataType]


def condition(schema: pa.Schema, text: str) -> FilterStage | None:
    """Return an Arrow stage for the condition ``text``; None when Spark has to compute it."""
    try:
        expression = _Reader(schema).logic(_parsed(text))
    except LeftToSparkError:
        return None
    return FilterStage(expression) if isinstance(expression, Call) and expression.reads else None


def columns(schema: pa.Schema, texts: Sequence[str]) -> ProjectStage | None:
    """Return an Arrow stage for ``texts``; None if names repeat or Spark has to compute one."""
    reader = _Reader(schema)
    sources: list[Expression] = []
    fields: dict[str, pa.Field] = {}
    try:
        for text in texts:
            every = [(Column(name), name) for name in schema.names]
            for source, name in every if text.strip() == "*" else [reader.named(_parsed(text))]:
                if name in fields:
                    return None
                sources.append(source)
                fields[name] = field_of(source, schema, name)
    except LeftToSparkError:
        return None
    return ProjectStage(tuple(sources), pa.schema(fields.values()))


def _parsed(text: str) -> exp.Expr:
    try:
        return sql_text.parse(text)
    except ValueError as error:
        raise LeftToSparkError(str(error)) from error


class _Reader:
    """Translates sqlglot's syntax trees for rows of ``schema``. Methods raise LeftToSparkError."""

    def __init__(self, schema: pa.Schema) -> None:
        self._types = {field.name: field.type for field in schema}
        self._names: dict[str, list[str]] = {}
        for name in schema.names:
            self._names.setdefault(name.lower(), []).append(name)

    def named(self, tree: exp.Expr) -> tuple[Column | Cast, str]:
        """Return the column or cast of ``tree``, and its name; a cast needs an alias."""
        of, name = (tree.this, tree.alias) if isinstance(tree, exp.Alias) else (tree, tree.name)
        if isinstance(of, exp.Cast) and isinstance(tree, exp.Alias):
            return self._cast(of)[0], name
        if not isinstance(of, exp.Column) or of.table or not name:
            raise LeftToSparkError(type(of).__name__)
        return Column(self._column(of.this)), name

    def _cast(self, node: exp.Cast) -> tuple[Cast, pa.DataType]:
        if node.args.get("safe"):  # TRY_CAST takes fewer texts for numbers than CAST
            raise LeftToSparkError("TryCast")
        value, source = self._value(node.this)
        target = TYPES.get(_CAST_TYPES.get(node.to.sql(dialect="spark").lower(), ""))
        if not value.reads or (source, target) not in CASTS:
            raise LeftToSparkError("Cast")
        return Cast(value, source, target), target

    def logic(self, node: Any) -> Expression:
        if isinstance(node, exp.Paren):
            return self.logic(node.this)
        if isinstance(node, exp.And | exp.Or):
            parts = [self.logic(part) for part in _chain(node)]
            return _balanced(LOGIC[type(node).__name__], parts)
        if isinstance(node, exp.Not):
            return self._negated(node.this)
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            return Call(LOGIC["IsNull"], (self._operand(node.this),))
        if isinstance(node, exp.NEQ):
            return Call(LOGIC["Not"], (self._comparison("EqualTo", node.this, node.expression),))
        if type(node) in _COMPARISONS:
            return self._comparison(_COMPARISONS[type(node)], node.this, node.expression)
        if isinstance(node, exp.In):
            return self._among(node)
        value, kind = self._value(node)
        if kind != pa.bool_():
            raise LeftToSparkError(str(kind))
        return value

    def _negated(self, node: Any) -> Expression:
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            return Call(LOGIC["IsNotNull"], (self._operand(node.this),))
        return Call(LOGIC["Not"], (self.logic(node),))

    def _operand(self, node: Any) -> Expression:
        """Return the operand of IS NULL: a value, or a condition in parentheses."""
        return self.logic(node) if _is_compound(node) else self._value(node)[0]

    def _among(self, node: exp.In) -> Expression:
        if {name for name, part in node.args.items() if part} != {"this", "expressions"}:
            raise LeftToSparkError("In")
        value = self._value(node.this)
        others = [self._value(other) for other in node.expressions]
        first, *rest = (_compared("EqualTo", value, other) for other in others)
        disjunction: Expression = first
        for other in rest:
            disjunction = Call(LOGIC["Or"], (disjunction, other))
        return disjunction

    def _comparison(self, kind: str, left: Any, right: Any) -> Call:
        return _compared(kind, self._value(left), self._value(right))

    def _value(self, node: Any) -> Typed:
        if isinstance(node, exp.Paren):
            return self._value(node.this)
        if isinstance(node, exp.Column) and not node.args.get("db"):
            if node.table:
                return self._entry(node.args["table"], node.name)
            name = self._column(node.this)
            return Column(name), self._types[name]
        if isinstance(node, exp.Bracket) and isinstance(node.this, exp.Column):
            key = node.expressions[0] if len(node.expressions) == 1 else None
            if node.this.table or not isinstance(key, exp.Literal) or not key.is_string:
                raise LeftToSparkError("Bracket")
            return self._entry(node.this.this, key.name)
        if isinstance(node, exp.Cast):
            return self._cast(node)
        if isinstance(node, exp.Boolean):
            return Constant(pa.scalar(bool(node.this), pa.bool_())), pa.bool_()
        if isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and node.is_string):
            return Constant(pa.scalar(str(node.name), pa.string())), pa.string()
        negative = isinstance(node, exp.Neg)
        return _whole_number(node.this if negative else node, -1 if negative else 1)

    def _column(self, node: Any) -> str:
        matches = self._names.get(node.name.lower(), []) if isinstance(node, exp.Identifier) else []
        if len(matches) != 1:
            raise LeftToSparkError(type(node).__name__)
        return matches[0]

    def _entry(self, column: Any, key: str) -> Typed:
        name = self._column(column)
        kind = self._types[name]
        if not pa.types.is_map(kind) or {kind.key_type, kind.item_type} != {pa.string()}:
            raise LeftToSparkError(str(kind))
        return Entry(name, key), pa.string()


def _compared(kind: str, left: Typed, right: Typed) -> Call:
    (left_value, left_type), (right_value, right_type) = left, right
    if (left_type, right_type) == (pa.int32(), pa.int64()):
        left_value = _widened(left_value)
    elif (left_type, right_type) == (pa.int64(), pa.int32()):
        right_value = _widened(right_value)
    elif left_type != right_type:
        raise LeftToSparkError(f"{left_type} and {right_type}")
    elif left_type not in (TYPES if kind == "EqualTo" else ORDERED).values():
        raise LeftToSparkError(str(left_type))
    return Call(COMPARISONS[kind], (left_value, right_value))


def _widened(value: Expression) -> Expression:
    """Return a value of type int as a bigint."""
    if isinstance(value, Constant):
        return Constant(value.value.cast(pa.int64()))
    return Cast(value, pa.int32(), pa.int64())


def _whole_number(node: Any, sign: int) -> Typed:
    if not isinstance(node, exp.Literal) or node.is_string or not node.name.isdecimal():
        raise LeftToSparkError(type(node).__name__)
    number = sign * int(node.name)
    if number not in _BIGINT:
        raise LeftToSparkError("a decimal")
    kind = pa.int32() if number in _INT else pa.int64()
    return Constant(pa.scalar(number, kind)), kind


def _is_compound(node: Any) -> bool:
    return isinstance(node, exp.Paren) and (
        isinstance(node.this, exp.Predicate | exp.Connector | exp.Not) or _is_compound(node.this)
    )


def _chain(node: Any) -> list[Any]:
    kind, operands = type(node), []
    while type(node) is kind:
        operands.append(node.expression)
        node = node.this
    return [node, *reversed(operands)]


def _balanced(function: str, parts: Sequence[Expression]) -> Expression:
    """Join conditions as a balanced tree, like Spark's parser, so that it is not deep."""
    if len(parts) == 1:
        return parts[0]
    middle = (len(parts) - 1) // 2 + 1
    return Call(
        function, (_balanced(function, parts[:middle]), _balanced(function, parts[middle:]))
    )
