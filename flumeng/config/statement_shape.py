"""Derives from the tree of a checked statement which columns of events it may read, and whether
each of its rows stays with its event."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Any

from sqlglot import exp

from flumeng.config import functions
from flumeng.config.statements import EVENTS


def used(tree: exp.Query) -> frozenset[str] | None:
    """Return the names in lower case that a statement mentions; None if ``*`` may include all
    columns of events."""
    if any(map(_takes_all, tree.find_all(exp.Star))):
        return None
    return frozenset(name.name.lower() for name in tree.find_all(exp.Identifier))


def _takes_all(star: exp.Star) -> bool:
    """Whether ``*`` may include columns of events directly. Those of a subquery or of a part of
    WITH are mentioned there."""
    if isinstance(star.parent, exp.Anonymous):
        return False  # count(*)
    select = star.find_ancestor(exp.Select)
    if select is None:
        return True
    of = star.parent.table.lower() if isinstance(star.parent, exp.Column) else ""
    return any(
        isinstance(relation, exp.Table)
        and relation.name.lower() == EVENTS
        and of in ("", relation.alias_or_name.lower())
        for relation in _relations(select)
    )


def _relations(select: exp.Select) -> Iterator[Any]:
    yield select.args["from_"].this
    yield from (join.this for join in select.args.get("joins") or ())


class _Rows(Enum):
    """The rows of a relation. EVENTS: each in the partition of its event. TABLE: of one table of
    the filter, which Spark broadcasts."""

    EVENTS = 0
    TABLE = 1
    OTHER = 2


_JOINS: Mapping[tuple[_Rows, _Rows], Collection[str]] = {
    (_Rows.EVENTS, _Rows.TABLE): ("", "INNER", "LEFT", "SEMI", "ANTI"),
    (_Rows.TABLE, _Rows.EVENTS): ("", "INNER", "RIGHT"),
}
"""The joins that Spark can run while it broadcasts the side of the table."""


def in_place(tree: exp.Query, tables: Collection[str]) -> bool:
    """Return whether Spark certainly leaves each row in the partition of its event. ``tables``:
    lower-case names of the further tables, which Spark is asked to broadcast."""
    relations = {**dict.fromkeys(tables, _Rows.TABLE), EVENTS: _Rows.EVENTS}
    return _rows(tree, relations) is _Rows.EVENTS


def _rows(node: Any, relations: Mapping[str, _Rows]) -> _Rows:
    if isinstance(node, exp.Table):
        return relations[node.name.lower()]
    if isinstance(node, exp.Subquery):
        return _rows(node.this, relations)
    if not isinstance(node, exp.Select):
        return _Rows.OTHER
    if (clause := node.args.get("with_")) is not None:
        relations = dict(relations)
        for part in clause.expressions:
            rows = _rows(part.this, relations)
            hinted = rows is _Rows.TABLE  # Spark loses the hint for a part of WITH
            relations[part.alias.lower()] = _Rows.OTHER if hinted else rows
    rows = _rows(node.args["from_"].this, relations)
    for join in node.args.get("joins") or ():
        kind = join.kind.upper().replace("OUTER", "") or join.side.upper()
        pair = rows, _rows(join.this, relations)
        rows = _Rows.EVENTS if kind in _JOINS.get(pair, ()) else _Rows.OTHER
    if rows is _Rows.EVENTS:
        return _Rows.OTHER if _moves(node, relations) else rows
    return _Rows.OTHER if _queries(node) else rows


def _moves(select: exp.Select, relations: Mapping[str, _Rows]) -> bool:
    """Whether a SELECT over events groups, numbers or cuts them, or has a subquery that reads more
    than one table, or one outside of WHERE."""
    clauses = ("group", "having", "distinct", "order", "limit", "offset")
    if any(select.args.get(name) for name in clauses):
        return True
    if any(_groups(node) for part in select.expressions for node in part.walk()):
        return True
    where = select.args.get("where")
    conditions = [] if where is None else _queries(where)
    return len(conditions) < len(_queries(select)) or any(
        _rows(query, relations) is not _Rows.TABLE for query in conditions
    )


def _groups(node: exp.Expr) -> bool:
    return isinstance(node, exp.Window) or (
        isinstance(node, exp.Anonymous) and str(node.this).lower() in functions.AGGREGATES
    )


def _queries(node: exp.Expr) -> list[Any]:
    """Return the subqueries of IN and EXISTS, without those in FROM, JOIN and WITH."""
    queries: list[Any] = []
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, exp.Exists):
            queries.append(part.this)
        elif not isinstance(part, exp.Subquery | exp.With):
            if isinstance(part, exp.In) and part.args.get("query") is not None:
                queries.append(part.args["query"])
            waiting += part.iter_expressions()
    return queries
