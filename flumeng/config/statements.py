"""Checks whole statements in Spark SQL over the events of a batch and further tables, without
Spark. Allowed are SELECT over the tables of the filter, WITH, joins that compare both sides,
independent subqueries, aggregates, windows of bounded work, UNION, INTERSECT and EXCEPT, with the
expressions of ``flumeng.config.expressions``. Spark receives text that
``flumeng.config.sql_generator`` makes of the checked tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from flumeng.config import functions, sql_text
from flumeng.config.column_kinds import Columns, Kind
from flumeng.config.expressions import Reader, called, constant, given, shown
from flumeng.config.functions import ATOMIC, BOOLEAN, INTEGER, TEXT, VOID
from flumeng.config.sql_text import MAX_DEPTH
from flumeng.platform.options.problems import nearest

EVENTS = "events"
IDENTITY: Columns = {"__journal": Kind(TEXT), "__seq": Kind(INTEGER), "__split": Kind(INTEGER)}
"""Reserved columns, present when a sink asks for them; ``*`` includes them."""
MOST_LIMIT = 2**31 - 1
MOST_READS = 64
"""Most reads of tables. Each use of a WITH part counts, since Spark's plan repeats it."""
_SELECT = {
    "expressions", "from_", "joins", "where", "group", "having", "distinct", "order", "limit",
    "offset", "with_",
}  # fmt: skip
_SET = {"this", "expression", "distinct", "order", "limit", "offset", "with_"}
_JOINS: Mapping[str, Sequence[str]] = {
    "": ("", "INNER", "SEMI", "ANTI"),
    "LEFT": ("", "OUTER", "SEMI", "ANTI"),
    "RIGHT": ("", "OUTER"),
    "FULL": ("", "OUTER"),
}
"""The kinds of joins for each side."""


@dataclass(frozen=True)
class Relation:
    """A table or query result. ``all``: columns with IDENTITY. ``reads``: number of table reads."""

    all: Columns
    reads: int = 1

    @property
    def columns(self) -> Columns:
        return {name: kind for name, kind in self.all.items() if name not in IDENTITY}

    @property
    def identity(self) -> dict[str, int]:
        """The positions of the relation's IDENTITY columns, by name."""
        return {name: index for index, name in enumerate(self.all) if name in IDENTITY}


Relations = Mapping[str, Relation]
"""Relations by lower-case name."""


def check(text: str, events: Columns, tables: Mapping[str, Columns]) -> dict[str, Kind]:
    """Check a statement and return its result columns. Raises ValueError."""
    relations = {name.lower(): Relation(columns) for name, columns in tables.items()}
    for columns in (events, *tables.values()):
        for name in columns:
            _require_other(name)
    relations[EVENTS] = Relation({**events, **IDENTITY})
    reader = _Statement()
    result = reader.query(sql_text.parse_query(text), relations, 0)
    if EVENTS not in reader.read:
        raise ValueError("expected a statement over the table events")
    return dict(result.columns)


def unsteady(text: str) -> str | None:
    """Return the part of a valid statement whose result depends on the order of events, or None.
    Ordering by IDENTITY is total."""
    for node in sql_text.parse_query(text).walk():
        if isinstance(node, exp.Limit | exp.Offset):
            query: Any = node.parent
            if not _is_total([query.args.get("order")]):
                return type(node).__name__.upper()
        elif isinstance(node, exp.Anonymous | exp.WindowSpec):
            window = node.parent if isinstance(node.parent, exp.Window) else exp.Window()
            parts = [window.args.get("order"), *(window.args.get("partition_by") or ())]
            what = str(node.this or node.args.get("kind")).lower()
            if what in functions.BY_ORDER and not _is_total(parts):
                return what.upper() if what == "rows" else what
    return None


def leaves_unread(text: str) -> bool:
    """Return whether a valid statement may end before it has read all events."""
    return any(
        query.args.get("limit") is not None and query.args.get("order") is None
        for query in sql_text.parse_query(text).find_all(exp.Query)
    )


def _is_total(parts: Sequence[Any]) -> bool:
    keys = [
        key
        for part in parts
        for key in (part.expressions if isinstance(part, exp.Order) else [part])
    ]
    columns = [key.this if isinstance(key, exp.Ordered) else key for key in keys]
    names = {column.name for column in columns if isinstance(column, exp.Column)}
    return names >= {"__journal", "__seq"}


class _Statement:
    """Checks a statement, and records the tables that it reads. Methods raise ValueError."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self._reads = 0

    def query(self, node: Any, relations: Relations, depth: int) -> Relation:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        if isinstance(node, exp.Subquery) and set(given(node)) == {"this"}:
            return self.query(node.this, relations, depth + 1)
        relations = self._with(node, relations, depth + 1)
        if isinstance(node, exp.Select):
            return self._select(node, relations, depth + 1)
        if isinstance(node, exp.Union | exp.Except | exp.Intersect):
            return self._set(node, relations, depth + 1)
        raise ValueError(f"not allowed in statements: {shown(node)}")

    def _with(self, node: Any, relations: Relations, depth: int) -> Relations:
        clause = node.args.get("with_")
        if clause is None:
            return relations
        _only(clause, {"expressions"})
        relations = dict(relations)
        for part in clause.expressions:
            _only(part, {"this", "alias"})
            before = self._reads
            relation = self.query(part.this, relations, depth)
            names = part.args["alias"].args.get("columns") or []
            if names:
                relation = _renamed(relation, [name.name for name in names])
            relations[part.alias.lower()] = Relation(relation.all, self._reads - before)
        return relations

    def _set(self, node: Any, relations: Relations, depth: int) -> Relation:
        _only(node, _SET)
        left = self.query(node.this, relations, depth)
        right = self.query(node.expression, relations, depth)
        if len(left.columns) != len(right.columns):
            raise ValueError(
                f"both sides of {type(node).__name__.upper()} need equally many columns, but have "
                f"{len(left.columns)} and {len(right.columns)}"
            )
        kinds = [
            Kind(functions.common([a.name, b.name]), growth=max(a.growth, b.growth))
            if a.name in ATOMIC
            else a
            for a, b in zip(left.columns.values(), right.columns.values(), strict=True)
        ]
        columns = dict(zip(left.columns, kinds, strict=True))
        if left.identity.keys() == right.identity.keys():
            if left.identity != right.identity:
                raise ValueError(
                    f"both sides of {type(node).__name__.upper()} need {', '.join(left.identity)} "
                    "in the same places"
                )
            columns = {name: columns.get(name, kind) for name, kind in left.all.items()}
        result = Relation(columns)
        self._order(node, _Scope({"": result}), result)
        return result

    def _select(self, node: exp.Select, relations: Relations, depth: int) -> Relation:
        _only(node, _SELECT)
        if node.args.get("from_") is None:
            raise ValueError("expected FROM")
        scope = self._from(node, relations, depth)
        plain = _Reading(scope, self, relations)
        if node.args.get("where") is not None:
            plain.require(BOOLEAN, node.args["where"].this, depth)
        chosen = _Reading(scope, self, relations, aggregating=True)
        result = self._chosen(node, scope, chosen, depth)
        group = node.args.get("group")
        if group is not None:
            _only(group, {"expressions"})
            for part in group.expressions:
                _Reading(scope.beside(result), self, relations).key(part, depth)
        if node.args.get("having") is not None:
            aliases = _Reading(scope.beside(result), self, relations, aggregating=True)
            aliases.require(BOOLEAN, node.args["having"].this, depth)
        if (distinct := node.args.get("distinct")) is not None:
            _only(distinct, set())
        self._order(node, scope.beside(result), result)
        return result

    def _chosen(self, node: exp.Select, scope: _Scope, reading: _Reading, depth: int) -> Relation:
        columns: dict[str, Kind] = {}
        owners: set[str] = set()
        for part in node.expressions:
            if (star := scope.star(part)) is not None:
                _add(columns, star.all)
                owners |= scope.identified(part)
                continue
            name, inner = part.name, part
            if isinstance(part, exp.Alias):
                name, inner = part.alias, part.this
            elif not isinstance(part, exp.Column | exp.Dot):
                raise ValueError(f"{shown(part)} needs a name: {shown(part)} AS name")
            kind = reading.kind(inner, depth)
            if kind.name == VOID:
                raise ValueError("NULL has no type: CAST it")
            if isinstance(inner, exp.Column) and inner.name == name and name in IDENTITY:
                owners |= {inner.table.lower()} - {""}
            else:
                _require_other(name)
            _add(columns, {name: kind})
        if len(owners) > 1:
            raise ValueError(f"{', '.join(IDENTITY)} identify an event: take all of one table")
        return Relation(columns)

    def _order(self, node: Any, scope: _Scope, result: Relation) -> None:
        order, limit = node.args.get("order"), node.args.get("limit")
        for name in ("limit", "offset"):
            bound = node.args.get(name)
            if bound is not None:
                _only(bound, {"expression"})
            number = 0 if bound is None else constant(bound.expression)
            if not isinstance(number, int) or not 0 <= number <= MOST_LIMIT:
                raise ValueError(f"expected a number after {name.upper()}")
        if order is None:
            return
        if limit is None:
            raise ValueError(
                "events have no order after a statement: remove ORDER BY, or add LIMIT"
            )
        _only(order, {"expressions"})
        for part in order.expressions:
            _only(part, {"this", "desc", "nulls_first"})
            _Reading(scope.beside(result), self, {}, aggregating=True).key(part.this, 0)

    def _from(self, node: exp.Select, relations: Relations, depth: int) -> _Scope:
        scope = _Scope({})
        first = node.args["from_"]
        _only(first, {"this"})
        scope = scope.joined(*self._relation(first.this, relations, depth))
        for join in node.args.get("joins") or ():
            scope = self._join(scope, join, relations, depth)
        return scope

    def _relation(self, node: Any, relations: Relations, depth: int) -> tuple[str, Relation]:
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            _only(node, {"this", "alias"})
            name = node.name.lower()
            if name not in relations:
                raise ValueError(f"there is no table {node.name}; {nearest(name, list(relations))}")
            self.read.add(name)
            self._reads += relations[name].reads
            if self._reads > MOST_READS:
                raise ValueError(
                    f"the statement reads tables more than {MOST_READS} times; each use of a part "
                    "of WITH reads all of its tables"
                )
            _only_name(node)
            return (node.alias or node.name).lower(), relations[name]
        if isinstance(node, exp.Subquery):
            _only(node, {"this", "alias"})
            if not node.alias:
                raise ValueError(f"a subquery needs a name: {shown(node)} AS name")
            _only_name(node)
            return node.alias.lower(), self.query(node.this, relations, depth)
        raise ValueError(f"not allowed in statements: {shown(node)}")

    def _join(self, scope: _Scope, join: exp.Join, relations: Relations, depth: int) -> _Scope:
        _only(join, {"this", "on", "using", "side", "kind"})
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        if kind not in _JOINS.get(side, ()):
            raise ValueError(
                f"this join is not supported: {side} {kind}; compare both sides with ON".strip()
            )
        name, right = self._relation(join.this, relations, depth)
        both = scope.joined(name, right)
        if using := join.args.get("using"):
            both = both.merging(scope, right, [column.name for column in using])
        elif (on := join.args.get("on")) is None:
            raise ValueError(f"join {name} with ON or USING: cross joins are not supported")
        else:
            _Reading(both, self, relations).require(BOOLEAN, on, depth)
            if not any(_compares(part, scope, both) for part in _conjuncts(on)):
                raise ValueError(
                    f"ON has to compare a column of {name} by = with one of the tables before"
                )
        return scope if kind in ("SEMI", "ANTI") else both


@dataclass(frozen=True)
class _Scope:
    """The tables of FROM by name. ``merged``: columns of USING. ``aliases``: of the select list."""

    relations: Relations
    merged: Columns = field(default_factory=dict)
    aliases: Columns = field(default_factory=dict)

    def joined(self, name: str, relation: Relation) -> _Scope:
        if name in self.relations:
            raise ValueError(f"two tables are called {name}: give one another name")
        return _Scope({**self.relations, name: relation}, self.merged)

    def merging(self, before: _Scope, right: Relation, names: Sequence[str]) -> _Scope:
        merged = dict(self.merged)
        for name in names:
            kind = before.find(name)
            if _lower(right.columns).get(name.lower()) != kind:
                raise ValueError(f"USING ({name}) needs a column of the same kind on both sides")
            merged[name] = kind
        return _Scope(self.relations, merged)

    def beside(self, result: Relation) -> _Scope:
        return _Scope(self.relations, self.merged, result.all)

    def find(self, name: str, table: str = "") -> Kind:
        if table:
            relation = self.relations.get(table.lower())
            kind = None if relation is None else _lower(relation.all).get(name.lower())
            if kind is None:
                raise ValueError(f"there is no column {table}.{name}")
            return kind
        if name.lower() in (merged := _lower(self.merged)):
            return merged[name.lower()]
        kinds = [
            columns[name.lower()]
            for columns in (_lower(relation.all) for relation in self.relations.values())
            if name.lower() in columns
        ]
        if len(kinds) > 1:
            raise ValueError(f"{name} is a column of several tables: name the table")
        if not kinds and name.lower() in (aliases := _lower(self.aliases)):
            return aliases[name.lower()]
        if not kinds:
            names = [n for relation in self.relations.values() for n in relation.columns]
            raise ValueError(f'there is no column "{name}"; {nearest(name, names)}')
        return kinds[0]

    def identified(self, star: Any) -> set[str]:
        """Return the tables whose IDENTITY columns a ``*`` includes."""
        names = self.relations if isinstance(star, exp.Star) else [star.table.lower()]
        return {name for name in names if self.relations[name].identity}

    def star(self, node: Any) -> Relation | None:
        """Return the columns of a ``*``; None for any other node."""
        if isinstance(node, exp.Star):
            _only(node, set())
            columns: dict[str, Kind] = dict(self.merged)
            for relation in self.relations.values():
                kept = {
                    name: kind
                    for name, kind in relation.all.items()
                    if name.lower() not in _lower(self.merged)
                }
                _add(columns, kept)
            return Relation(columns)
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            _only(node.this, set())
            table = self.relations.get(node.table.lower())
            if table is None or node.args.get("db"):
                raise ValueError(f"there is no table {node.table}")
            return table
        return None


class _Reading(Reader):
    """Checks expressions of a statement over the tables of ``scope``."""

    def __init__(
        self, scope: _Scope, statement: _Statement, tables: Relations, *, aggregating: bool = False
    ) -> None:
        super().__init__({})
        self._scope = scope
        self._statement = statement
        self._tables = tables
        self._aggregating = aggregating

    def key(self, node: Any, depth: int) -> None:
        """Check a key of GROUP BY or ORDER BY; a number is the position of a column."""
        if not isinstance(constant(node), int) and self.kind(node, depth).name not in ATOMIC:
            raise ValueError(f"expected a plain value, not {shown(node)}")

    def _column(self, node: exp.Column) -> Kind:
        if not isinstance(node.this, exp.Identifier) or node.args.get("catalog"):
            raise ValueError(f"not allowed in statements: {shown(node)}")
        if node.args.get("db"):
            return self._field(self._scope.find(node.table, node.args["db"].name), node.this)
        if not node.table:
            return self._scope.find(node.name)
        if node.table.lower() in self._scope.relations:
            return self._scope.find(node.name, node.table)
        return self._field(self._scope.find(node.table), node.this)

    def _other(self, node: Any, depth: int) -> Kind:
        if isinstance(node, exp.In) and set(given(node)) == {"this", "query"}:
            result = self._statement.query(node.args["query"], self._tables, depth)
            if len(result.columns) != 1:
                raise ValueError("expected one column in the subquery of IN")
            (kind,) = result.columns.values()
            self._compare(self._value(node.this, depth), kind)
            return Kind(BOOLEAN, growth=0)
        if isinstance(node, exp.Exists) and set(given(node)) == {"this"}:
            self._statement.query(node.this, self._tables, depth)
            return Kind(BOOLEAN, growth=0)
        if isinstance(node, exp.Window):
            return self._window(node, depth)
        return super()._other(node, depth)

    def _call(self, node: exp.Anonymous, depth: int) -> Kind:
        name = str(node.this).lower()
        if name not in functions.AGGREGATES:
            if name in functions.WINDOWS:
                raise ValueError(f"{name} needs OVER (...)")
            return super()._call(node, depth)
        if not self._aggregating:
            raise ValueError(f"{name} is not allowed here: it aggregates many rows")
        return self._aggregate(functions.AGGREGATES, node, depth)

    def _aggregate(
        self, allowed: Mapping[str, functions.Function], node: exp.Anonymous, depth: int
    ) -> Kind:
        """Return the kind of a call over a group or window; each argument is of one row."""
        _only(node, {"this", "expressions"})
        name, parts = str(node.this).lower(), list(node.expressions)
        if name == "count" and len(parts) == 1 and isinstance(parts[0], exp.Star):
            _only(parts[0], set())
            return Kind(INTEGER, growth=0)
        if len(parts) == 1 and isinstance(parts[0], exp.Distinct):
            _only(parts[0], {"expressions"})
            parts = parts[0].expressions
        one_row = _Reading(self._scope, self._statement, self._tables)
        arguments = [one_row.kind(part, depth) for part in parts]
        return called(allowed[name], arguments, [constant(part) for part in parts])

    def _window(self, node: exp.Window, depth: int) -> Kind:
        _only(node, {"this", "partition_by", "order", "spec", "over"})
        if not self._aggregating or not isinstance(node.this, exp.Anonymous):
            raise ValueError(f"OVER is not allowed here: {shown(node)}")
        allowed = {**functions.AGGREGATES, **functions.WINDOWS}
        if str(node.this.this).lower() not in allowed:
            raise ValueError(f"the function {node.this.this} is not allowed with OVER")
        for part in node.args.get("partition_by") or ():
            self.key(part, depth)
        if (order := node.args.get("order")) is not None:
            _only(order, {"expressions"})
            for part in order.expressions:
                _only(part, {"this", "desc", "nulls_first"})
                self.key(part.this, depth)
        if (frame := node.args.get("spec")) is not None:
            _check_frame(frame)
        return self._aggregate(allowed, node.this, depth)


def _check_frame(frame: exp.WindowSpec) -> None:
    """Raise ValueError for window frames that take quadratic time."""
    _only(frame, {"kind", "start", "start_side", "end", "end_side"})
    ends = []
    for name in ("start", "end"):
        end = frame.args.get(name)
        side = frame.args.get(f"{name}_side") or ""
        if isinstance(end, exp.Literal):
            end = "FEW" if 0 <= int(end.name) <= functions.FRAME_ROWS else "MANY"
            side = ""
        ends.append(f"{end} {side}".strip())
    if not functions.frame_allowed(frame.args.get("kind") or "", ends[0], ends[1]):
        raise ValueError(
            "expected a window from UNBOUNDED PRECEDING to CURRENT ROW or UNBOUNDED FOLLOWING, or "
            f"ROWS of at most {functions.FRAME_ROWS} PRECEDING and FOLLOWING"
        )


def _conjuncts(node: Any) -> Iterator[Any]:
    if isinstance(node, exp.Paren):
        yield from _conjuncts(node.this)
    elif isinstance(node, exp.And):
        yield from _conjuncts(node.this)
        yield from _conjuncts(node.expression)
    else:
        yield node


def _compares(node: Any, before: _Scope, both: _Scope) -> bool:
    if not isinstance(node, exp.EQ):
        return False
    sides = [
        {_is_before(column, before, both) for column in part.find_all(exp.Column)}
        for part in (node.this, node.expression)
    ]
    return sides in ([{True}, {False}], [{False}, {True}])


def _is_before(column: exp.Column, before: _Scope, both: _Scope) -> bool:
    table = column.args["db"].name if column.args.get("db") else column.table
    if table.lower() in both.relations:
        return table.lower() in before.relations
    name = table or column.name
    try:
        before.find(name)
    except ValueError:
        return False
    return True


def _renamed(relation: Relation, names: Sequence[str]) -> Relation:
    if len(names) != len(relation.columns):
        raise ValueError(f"a table has {len(names)} names for its {len(relation.columns)} columns")
    columns: dict[str, Kind] = {}
    for name, kind in zip(names, relation.columns.values(), strict=True):
        _require_other(name)
        _add(columns, {name: kind})
    return Relation(columns)


def _require_other(name: str) -> None:
    if name.lower() in IDENTITY:
        raise ValueError(f"{name} is reserved for the identity of events: use another name")


def _add(columns: dict[str, Kind], more: Columns) -> None:
    taken = _lower(columns)
    for name, kind in more.items():
        if name.lower() in taken:
            raise ValueError(f"two columns are called {name}: give one another name with AS")
        columns[name] = kind
        taken[name.lower()] = kind


def _lower(columns: Columns) -> dict[str, Kind]:
    return {name.lower(): kind for name, kind in columns.items()}


def _only_name(node: Any) -> None:
    alias = node.args.get("alias")
    if alias is not None:
        _only(alias, {"this"})


def _only(node: Any, allowed: set[str]) -> None:
    for name in given(node):
        if name not in allowed:
            raise ValueError(f"not allowed in statements: {name.rstrip('_')} in {shown(node)}")


def taken_over(query: str, events: Columns) -> set[str]:
    """Return the ``events`` columns that a plain SELECT over the events leaves unchanged."""
    tree = sql_text.parse_query(query)
    source = tree.args.get("from_") if isinstance(tree, exp.Select) else None
    table = source.this if source is not None else None
    if not isinstance(table, exp.Table) or table.name.lower() != EVENTS:
        return set()
    names = ("", (table.alias or table.name).lower())
    unchanged: set[str] = set()
    for part in tree.expressions:
        if part.is_star and getattr(part, "table", "").lower() in names:
            unchanged |= events.keys()
        elif isinstance(part, exp.Column) and part.table.lower() in names:
            unchanged |= {part.name} & events.keys()
    return unchanged
