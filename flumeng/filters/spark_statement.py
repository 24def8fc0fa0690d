"""What Spark itself reads in a statement, before any of its tables is looked up.

``flumeng.config.statements`` says of a text what it means, with a parser that is not Spark's. What
counts is what Spark reads: a plan of listed nodes over tables that the filter has, with listed
expressions. Everything else (commands, files, catalogs, functions that make tables) is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from flumeng.config import aggregates, functions
from flumeng.config.sql_text import MAX_CHARACTERS
from flumeng.filters import spark_syntax
from flumeng.platform.errors import UserError

PLANS = (
    "Aggregate Distinct Except Filter GlobalLimit Intersect Join LocalLimit Offset Project Sort "
    "SubqueryAlias Union UnresolvedHaving UnresolvedRelation UnresolvedSubqueryColumnAliases "
    "UnresolvedWith"
)
NODES = (
    f"{spark_syntax.NODES} Exists InSubquery ListQuery SortOrder SpecifiedWindowFrame "
    "UnresolvedAlias UnresolvedOrdinal UnspecifiedFrame$ WindowExpression WindowSpecDefinition "
    "CurrentRow$ UnboundedPreceding$ UnboundedFollowing$"
)
QUERIES = ("Exists", "ListQuery")
EDGES = {
    "UnboundedPreceding$": "UNBOUNDED PRECEDING",
    "UnboundedFollowing$": "UNBOUNDED FOLLOWING",
    "CurrentRow$": "CURRENT ROW",
}


def require_allowed(spark: SparkSession, text: str, tables: Collection[str]) -> None:
    """Raises UserError for a statement that Spark cannot read, or that holds what is not allowed;
    ``tables`` are the names in small letters of those that it may read."""
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"sql: the statement has more than {MAX_CHARACTERS} characters")
    try:
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except (ParseException, Py4JError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"sql: no statement in Spark SQL: {first}") from error
    _Reader(tables).plan(plan, frozenset())


class _Reader:
    """Looks at each node of a plan. ``known`` are names that WITH has given."""

    def __init__(self, tables: Collection[str]) -> None:
        self._tables = tables

    def plan(self, node: Any, known: frozenset[str]) -> None:
        kind = _kind(node)
        if kind not in PLANS.split():
            raise UserError(f"sql: not allowed: Spark reads {kind} in the statement")
        if kind == "UnresolvedRelation":
            self._relation(node, known)
        if kind == "UnresolvedWith":
            if _is_recursive(node):
                raise UserError("sql: not allowed: WITH RECURSIVE")
            for part in _items(node.cteRelations()):
                self.plan(part._2(), known)
                known |= {str(part._1()).lower()}
        for expression in _items(node.expressions()):
            self._expression(expression, known)
        for child in _items(node.children()):
            self.plan(child, known)

    def _relation(self, node: Any, known: frozenset[str]) -> None:
        name = str(node.multipartIdentifier().mkString(".")).lower()
        if node.multipartIdentifier().size() != 1 or name not in {*self._tables, *known}:
            raise UserError(f"sql: not allowed: Spark reads the table {name} in the statement")
        if node.isStreaming() or not node.options().isEmpty():
            raise UserError(f"sql: not allowed: options of the table {name}")

    def _expression(self, node: Any, known: frozenset[str]) -> None:
        kind = _kind(node)
        if kind not in NODES.split():
            raise UserError(f"sql: not allowed: Spark reads {kind} in the statement")
        if kind == "UnresolvedFunction":
            _require_function(node)
        if kind == "SpecifiedWindowFrame":
            _require_frame(node)
        if kind in QUERIES:
            self.plan(node.plan(), known)
        if kind == "InSubquery":
            self.plan(node.query().plan(), known)
        for child in _items(node.children()):
            self._expression(child, known)


def _is_recursive(node: Any) -> bool:
    try:
        return bool(node.allowRecursion())
    except Py4JError:
        return False  # Spark 4.0 has no recursion


def _require_function(node: Any) -> None:
    name = str(node.nameParts().mkString(".")).lower()
    many = name in aggregates.AGGREGATES
    listed = many or name in aggregates.WINDOWS or functions.find(name) is not None
    plain = node.filter().isEmpty() and not spark_syntax.says_nulls(node)
    if not plain or (node.isDistinct() and not many):
        raise UserError(f"sql: not allowed: DISTINCT, FILTER or IGNORE NULLS of {name}")
    if not listed and name not in spark_syntax.OPERATORS:
        raise UserError(f"sql: not allowed: Spark reads a call of {name} in the statement")


def _require_frame(node: Any) -> None:
    kind = "ROWS" if _kind(node.frameType()) == "RowFrame$" else "RANGE"
    edges = [_edge(node.lower()), _edge(node.upper())]
    if not aggregates.frame_allowed(kind, *edges):
        raise UserError("sql: not allowed: a window whose work has no bound")


def _edge(node: Any) -> str:
    kind = _kind(node)
    if kind in EDGES:
        return EDGES[kind]
    text = str(node.sql()).strip("()- ")
    return "FEW" if text.isdecimal() and int(text) <= aggregates.FRAME_ROWS else "MANY"


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _items(sequence: Any) -> Iterator[Any]:
    for place in range(sequence.size()):
        yield sequence.apply(place)
