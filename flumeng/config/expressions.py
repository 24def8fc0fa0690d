"""Checks expressions in Spark SQL from their text, without Spark.

Allowed are existing columns, constants, operators, casts and the functions of
``flumeng.config.functions``, over kinds of values that Spark takes there. Everything else is
refused: queries, aggregates, windows, lambdas. Spark receives text that
``flumeng.config.sql_generator`` makes of the checked tree.

sqlglot takes a sixth of a second and 16 MB to load: import this only where expressions are used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from flumeng.config import functions, sql_patterns, sql_text
from flumeng.config.column_kinds import Columns, Kind, require_new
from flumeng.config.functions import (
    ATOMIC,
    BINARY,
    BOOLEAN,
    DATE,
    FRACTION,
    INTEGER,
    TEXT,
    TIMESTAMP,
    VOID,
    Literal,
)
from flumeng.config.sql_text import MAX_DEPTH, TextError
from flumeng.platform.options.problems import nearest

MAX_GROWTH = 100
_NUMBER = re.compile(r"[0-9]{1,18}|[0-9]{0,18}\.[0-9]{1,18}")
_CASTS = re.compile(
    "string|binary|boolean|tinyint|smallint|int|integer|bigint|float|double|date|timestamp|"
    r"decimal(?:\((?P<digits>[0-9]{1,2})(?:, ?(?P<scale>[0-9]{1,2}))?\))?",
    re.IGNORECASE,
)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ)
_SUMS = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod)
_PATTERNS = (exp.Like, exp.ILike, exp.RegexpLike)
_PREDICATES = (exp.Not, exp.And, exp.Or, exp.Is, exp.In, exp.Between, *_PATTERNS)
_COMPARABLE = {frozenset({DATE, TIMESTAMP}), frozenset({INTEGER, FRACTION})}
_INTO: Mapping[str, frozenset[str]] = {
    TEXT: ATOMIC,
    INTEGER: frozenset({TEXT, INTEGER, FRACTION, BOOLEAN, TIMESTAMP}),
    FRACTION: frozenset({TEXT, INTEGER, FRACTION, BOOLEAN, TIMESTAMP}),
    BOOLEAN: frozenset({TEXT, INTEGER, FRACTION, BOOLEAN}),
    TIMESTAMP: frozenset({TEXT, INTEGER, FRACTION, DATE, TIMESTAMP}),
    DATE: frozenset({TEXT, DATE, TIMESTAMP}),
    BINARY: frozenset({TEXT, BINARY}),
}


def check_condition(text: str, columns: Columns) -> None:
    """Raise ValueError unless ``text`` is a condition over ``columns``."""
    kind = Reader(columns).kind(sql_text.parse(text))
    if kind.name != BOOLEAN:
        raise ValueError(f"expected a condition, but the expression is a {kind.name}")


def chosen(text: str, columns: Columns) -> dict[str, Kind]:
    """Return the columns that an expression of ``select`` makes. Raises ValueError."""
    if text.strip() == "*":
        return dict(columns)
    tree = sql_text.parse(text)
    name = text.strip()
    if isinstance(tree, exp.Alias):
        name, tree = tree.alias, tree.this
    elif isinstance(tree, exp.Column):
        name = tree.name
    kind = Reader(columns).kind(tree)
    if kind.name == VOID:
        raise ValueError("NULL has no type: CAST it")
    return {name: kind}


def columns_of_ddl(text: str) -> dict[str, Kind]:
    """Return the columns of a list in Spark DDL (``name TYPE, ...``). Raises ValueError."""
    columns = _kind_of_type(sql_text.parse_columns(text), 0).inner
    require_new((), [name for name, _ in columns])
    return dict(columns)


class Reader:
    """Determines the kind of an expression over ``columns``. Methods raise ValueError."""

    def __init__(self, columns: Columns) -> None:
        self._columns = {name.lower(): kind for name, kind in columns.items()}

    def kind(self, node: Any, depth: int = 0) -> Kind:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        kind = self._kind(node, depth + 1)
        if kind.growth > MAX_GROWTH:
            raise ValueError(
                f"a value may grow to {kind.growth} times the size of the event: at most "
                f"{MAX_GROWTH} times is allowed"
            )
        return kind

    def _kind(self, node: Any, depth: int) -> Kind:
        if isinstance(node, exp.Paren):
            return self.kind(node.this, depth)
        if isinstance(node, exp.Literal | exp.RawString | exp.Boolean | exp.Null):
            return self._literal(node)
        if isinstance(node, exp.Column):
            return self._column(node)
        if isinstance(node, exp.Dot):
            return self._field(self.kind(node.this, depth), node.expression)
        if isinstance(node, exp.Bracket):
            return self._entry(node, depth)
        if isinstance(node, exp.And | exp.Or):
            return self._logic(node, depth)
        if isinstance(node, exp.Not):
            self.require(BOOLEAN, node.this, depth)
            return Kind(BOOLEAN, growth=0)
        if isinstance(node, _COMPARISONS):
            if isinstance(node.expression, _COMPARISONS):  # Spark groups from the left
                raise ValueError(f"put this in parentheses: {shown(node.expression)}")
            self._compare(self._value(node.this, depth), self._value(node.expression, depth))
            return Kind(BOOLEAN, growth=0)
        if isinstance(node, _SUMS):
            return self._sum(node, depth)
        if isinstance(node, exp.Neg):
            return Kind(self._number(node.this, depth), growth=0)
        return self._other(node, depth)

    def _other(self, node: Any, depth: int) -> Kind:
        if isinstance(node, exp.Is):
            return self._is(node, depth)
        if isinstance(node, exp.In) and set(given(node)) == {"this", "expressions"}:
            value = self._value(node.this, depth)
            for other in node.expressions:
                self._compare(value, entry := self._value(other, depth))
                if {value.name, entry.name} in ({TEXT, BINARY}, {TEXT, BOOLEAN}):
                    raise ValueError(f"a {value.name} cannot be in a list with a {entry.name}")
            return Kind(BOOLEAN, growth=0)
        if isinstance(node, exp.Between) and set(given(node)) == {"this", "low", "high"}:
            value = self._value(node.this, depth)
            self._compare(value, self._value(node.args["low"], depth))
            self._compare(value, self._value(node.args["high"], depth))
            return Kind(BOOLEAN, growth=0)
        if isinstance(node, _PATTERNS):
            return self._like(node, depth)
        if isinstance(node, exp.Cast):
            return self._cast(node, depth)
        if isinstance(node, exp.Case):
            return self._case(node, depth)
        if isinstance(node, exp.Anonymous):
            return self._call(node, depth)
        raise TextError(f"not allowed in expressions: {shown(node)}")

    def _literal(self, node: exp.Expr) -> Kind:
        if isinstance(node, exp.Boolean):
            return Kind(BOOLEAN, growth=0)
        if isinstance(node, exp.Null):
            return Kind(VOID, growth=0)
        if isinstance(node, exp.RawString) or node.is_string:
            return Kind(TEXT, growth=0)
        if not _NUMBER.fullmatch(node.name):
            raise TextError(f"expected a number of at most 18 digits, not {node.name}")
        return Kind(FRACTION if "." in node.name else INTEGER, growth=0)

    def _column(self, node: exp.Column) -> Kind:
        if (
            node.args.get("db")
            or node.args.get("catalog")
            or not isinstance(node.this, exp.Identifier)
        ):
            raise TextError(f"not allowed in expressions: {shown(node)}")
        if node.table:
            return self._field(self._named(node.table), node.this)
        return self._named(node.name)

    def _named(self, name: str) -> Kind:
        kind = self._columns.get(name.lower())
        if kind is None:
            raise ValueError(f'there is no column "{name}"; {nearest(name, list(self._columns))}')
        return kind

    def _field(self, of: Kind, name: Any) -> Kind:
        if not isinstance(name, exp.Identifier):
            raise TextError(f"not allowed in expressions: {shown(name)}")
        if of.name == "map" and of.inner[0][1].name == TEXT:
            return of.inner[1][1]
        for field, kind in of.inner if of.name == "struct" else ():
            if field.lower() == name.name.lower():
                return kind
        raise ValueError(f'a {of.name} has no field "{name.name}"')

    def _entry(self, node: exp.Bracket, depth: int) -> Kind:
        if set(given(node)) - {"this", "expressions"} or len(node.expressions) != 1:
            raise TextError(f"not allowed in expressions: {shown(node)}")
        of, key = self.kind(node.this, depth), self._value(node.expressions[0], depth)
        if of.name == "map" and key.name == of.inner[0][1].name:
            return of.inner[1][1]
        if of.name == "array" and key.name == INTEGER:
            return of.inner[0][1]
        raise ValueError(f"a {of.name} has no entry for a {key.name}")

    def _logic(self, node: exp.Expr, depth: int) -> Kind:
        """Check AND and OR in a loop, since their chains may be longer than the allowed depth."""
        parts = [node]
        while parts:
            part = parts.pop()
            if isinstance(part, exp.And | exp.Or):
                parts += [part.this, part.expression]
            else:
                self.require(BOOLEAN, part, depth)
        return Kind(BOOLEAN, growth=0)

    def require(self, expected: str, node: Any, depth: int) -> None:
        kind = self.kind(node, depth)
        if kind.name not in (expected, VOID):
            raise ValueError(f"expected a {expected}, but {shown(node)} is a {kind.name}")

    def _value(self, node: Any, depth: int) -> Kind:
        """Return the kind of an operand. Raises ValueError for a predicate without parentheses."""
        if isinstance(node, _PREDICATES):
            raise ValueError(f"put this in parentheses: {shown(node)}")
        return self.kind(node, depth)

    def _compare(self, left: Kind, right: Kind) -> None:
        names = {left.name, right.name}
        if names <= ATOMIC and (
            len(names) == 1 or VOID in names or TEXT in names or frozenset(names) in _COMPARABLE
        ):
            return
        raise ValueError(f"cannot compare a {left.name} with a {right.name}: CAST one")

    def _sum(self, node: exp.Expr, depth: int) -> Kind:
        kinds = {self._number(part, depth) for part in (node.this, node.expression)}
        whole = kinds == {INTEGER} and not isinstance(node, exp.Div)
        return Kind(INTEGER if whole else FRACTION, growth=0)

    def _number(self, node: Any, depth: int) -> str:
        kind = self._value(node, depth).name
        if kind not in (INTEGER, FRACTION, TEXT):
            raise ValueError(f"expected a number, but {shown(node)} is a {kind}")
        return FRACTION if kind == TEXT else kind

    def _is(self, node: exp.Is, depth: int) -> Kind:
        self_kind = self._value(node.this, depth)
        if isinstance(node.expression, exp.Boolean):
            if self_kind.name not in (BOOLEAN, VOID):
                raise ValueError(f"expected a {BOOLEAN}, but this is a {self_kind.name}")
        elif not isinstance(node.expression, exp.Null):
            raise TextError(f"not allowed in expressions: {shown(node)}")
        return Kind(BOOLEAN, growth=0)

    def _like(self, node: exp.Expr, depth: int) -> Kind:
        value = self._value(node.this, depth)
        pattern = constant(node.expression)
        if value.name not in ATOMIC or not isinstance(pattern, str):
            raise ValueError("expected a text on the left and a constant pattern on the right")
        if isinstance(node, exp.RegexpLike):
            sql_patterns.check(pattern)
        elif re.sub(r"\\[\\%_]", "", pattern).count("\\"):
            raise ValueError(r"expected %, _ or \ after each \ of a LIKE pattern")
        if set(given(node)) - {"this", "expression", "negate"}:
            raise TextError(f"not allowed in expressions: {shown(node)}")
        return Kind(BOOLEAN, growth=0)

    def _cast(self, node: exp.Cast, depth: int) -> Kind:
        of = self.kind(node.this, depth)
        into = _kind_of_cast(node.to)
        more = set(given(node)) - {"this", "to", "safe"}
        if more or (of.name != VOID and of.name not in _INTO[into]):
            raise ValueError(f"cannot cast a {of.name} to {into}")
        return Kind(into, growth=max(of.growth, 1) if into in (TEXT, BINARY) else 0)

    def _case(self, node: exp.Case, depth: int) -> Kind:
        of = self._value(node.this, depth) if node.this else None
        kinds = []
        for branch in node.args["ifs"]:
            if of is None:
                self.require(BOOLEAN, branch.this, depth)
            else:
                self._compare(of, self._value(branch.this, depth))
            kinds.append(self.kind(branch.args["true"], depth))
        if node.args.get("default") is not None:
            kinds.append(self.kind(node.args["default"], depth))
        if not kinds:
            raise ValueError("expected CASE WHEN ... THEN ... END")
        growth = max(kind.growth for kind in kinds)
        return Kind(functions.common([kind.name for kind in kinds]), growth=growth)

    def _call(self, node: exp.Anonymous, depth: int) -> Kind:
        name = node.this if isinstance(node.this, str) else ""
        function = functions.find(name)
        if function is None or set(given(node)) - {"this", "expressions"}:
            close = nearest(name.lower(), list(functions.FUNCTIONS))
            hint = f"; {close}" if "did you mean" in close else ""
            raise TextError(f"the function {name or shown(node)} is not allowed{hint}")
        arguments = [self.kind(part, depth) for part in node.expressions]
        return called(function, arguments, [constant(part) for part in node.expressions])


def called(
    function: functions.Function, arguments: Sequence[Kind], literals: Sequence[Literal]
) -> Kind:
    """Return the kind of a function call. Raises ValueError."""
    try:
        kind = function.check([_name(part) for part in arguments], literals)
    except ValueError as error:
        raise ValueError(f"{function.name}: {error}") from None
    growth = function.growth([part.growth for part in arguments], literals)
    inner = (("", Kind(TEXT, growth=growth)),) if kind == "array" else ()
    return Kind(kind, inner, growth)


def _name(kind: Kind) -> str:
    """Return the kind's name in signatures: ``other map`` unless all contents are texts."""
    texts = all(part.name == TEXT for _, part in kind.inner)
    return kind.name if texts or kind.name not in ("map", "array") else f"other {kind.name}"


def given(node: exp.Expr) -> list[str]:
    return [name for name, value in node.args.items() if value not in (None, False, [])]


def constant(node: Any) -> Literal:
    if isinstance(node, exp.RawString):
        return str(node.name)
    if isinstance(node, exp.Neg):
        inner = constant(node.this)
        return -inner if isinstance(inner, int) else None
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return str(node.name)
    return int(node.name) if node.name.isdecimal() else None


def shown(node: Any) -> str:
    try:
        text = str(node.sql(dialect="spark"))
    except (AttributeError, SqlglotError, RecursionError):
        return type(node).__name__
    return text if len(text) <= 60 else text[:57] + "..."


def _kind_of_cast(node: exp.DataType) -> str:
    text = node.sql(dialect="spark")
    match = _CASTS.fullmatch(text)
    if match is None:
        raise ValueError(f"CAST to {text} is not allowed")
    if match["digits"] and not int(match["scale"] or 0) <= int(match["digits"]) <= 38:
        raise ValueError("a decimal has at most 38 digits")
    return _ATOMIC_TYPES[text.lower().partition("(")[0]]


def _typed(field: exp.ColumnDef) -> exp.DataType:
    if not isinstance(field.kind, exp.DataType):
        raise ValueError(f"expected a type after {shown(field)}")
    return field.kind


def _kind_of_type(node: exp.DataType, depth: int) -> Kind:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if node.is_type(exp.DType.STRUCT):
        fields = []
        for field in node.expressions:
            if not isinstance(field, exp.ColumnDef) or field.args.get("constraints"):
                raise ValueError(f"expected a name and a type, not {shown(field)}")
            fields.append((field.name, _kind_of_type(_typed(field), depth + 1)))
        return Kind("struct", tuple(fields))
    if node.is_type(exp.DType.MAP, exp.DType.ARRAY):
        inner = tuple(("", _kind_of_type(part, depth + 1)) for part in node.expressions)
        name = "map" if node.is_type(exp.DType.MAP) else "array"
        if len(inner) != (2 if name == "map" else 1):
            raise ValueError(f"expected types in {shown(node)}")
        return Kind(name, inner)
    return Kind(_kind_of_cast(node))


_ATOMIC_TYPES: Mapping[str, str] = {
    "string": TEXT,
    "binary": BINARY,
    "boolean": BOOLEAN,
    "tinyint": INTEGER,
    "smallint": INTEGER,
    "int": INTEGER,
    "integer": INTEGER,
    "bigint": INTEGER,
    "float": FRACTION,
    "double": FRACTION,
    "decimal": FRACTION,
    "date": DATE,
    "timestamp": TIMESTAMP,
}
