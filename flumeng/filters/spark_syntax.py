"""Allowlist for expressions and statements as Spark's own parser reads them.

``flumeng.config`` checks them with another parser. Where the two parsers read a text differently,
this list decides before anything is looked up or computed: it allows kinds of nodes, functions, and
the tables of the filter. Commands, files, catalogs and functions that make tables are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from flumeng.config import functions
from flumeng.config.sql_text import MAX_CHARACTERS
from flumeng.filters.arrow_sql import class_name, items
from flumeng.platform.errors import UserError

NODES = (
    "Add Alias And CaseWhen Cast Divide EqualNullSafe EqualTo GreaterThan GreaterThanOrEqual ILike "
    "In IsNotNull IsNull LessThan LessThanOrEqual Like Literal Multiply Not Or RLike Remainder "
    "Subtract UnaryMinus UnaryPositive UnresolvedAttribute UnresolvedExtractValue "
    "UnresolvedFunction UnresolvedStar"
)

PLANS = (
    "Aggregate Distinct Except Filter GlobalLimit Intersect Join LocalLimit Offset Project Sort "
    "SubqueryAlias Union UnresolvedHaving UnresolvedRelation UnresolvedSubqueryColumnAliases "
    "UnresolvedWith"
)
STATEMENT_NODES = (
    f"{NODES} Exists InSubquery ListQuery SortOrder SpecifiedWindowFrame "
    "UnresolvedAlias UnresolvedOrdinal UnspecifiedFrame$ WindowExpression WindowSpecDefinition "
    "CurrentRow$ UnboundedPreceding$ UnboundedFollowing$"
)
QUERIES = ("Exists", "ListQuery")
EDGES = {
    "UnboundedPreceding$": "UNBOUNDED PRECEDING",
    "UnboundedFollowing$": "UNBOUNDED FOLLOWING",
    "CurrentRow$": "CURRENT ROW",
}
OPERATORS = frozenset({"between", "ilike"})
"""Operators in flumeng's SQL that Spark parses as function calls."""


def require_expressions(spark: SparkSession, texts: Sequence[str]) -> None:
    """Check that Spark can read each text and that it is allowed. Raises UserError otherwise."""
    parser = spark._jsparkSession.sessionState().sqlParser()
    for text in texts:
        if len(text) > MAX_CHARACTERS:
            raise UserError(f"{text[:40]!r}... has more than {MAX_CHARACTERS} characters")
        try:
            tree = parser.parseExpression(text)
        except (ParseException, Py4JJavaError) as error:
            first = str(error).strip().splitlines()[0]
            raise UserError(f"{text!r} is not an expression in Spark SQL: {first}") from error
        for node in _nodes(tree):
            _require_node(text, node)


def _nodes(tree: Any) -> Iterator[Any]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += items(node.children())


def _require_node(text: str, node: Any) -> None:
    kind = class_name(node)
    if kind not in NODES.split():
        raise UserError(f"{text!r} has the Spark expression {kind}, which is not allowed")
    if kind == "UnresolvedFunction":
        name = str(node.nameParts().mkString("."))
        plain = not node.isDistinct() and node.filter().isEmpty() and not _says_nulls(node)
        if (name not in OPERATORS and functions.find(name) is None) or not plain:
            raise UserError(f"{text!r} calls the function {name} in a way that is not allowed")


def _says_nulls(call: Any) -> bool:
    """Whether a function call has RESPECT or IGNORE NULLS; Spark 4.0 reports only the latter."""
    ignores = call.ignoreNulls()
    return ignores if isinstance(ignores, bool) else not ignores.isEmpty()


def require_statement(spark: SparkSession, text: str, tables: Collection[str]) -> None:
    """Check that Spark can read a statement and that it is allowed. Raises UserError otherwise.
    ``tables``: lower-case names of the tables that it may read."""
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"sql: the statement has more than {MAX_CHARACTERS} characters")
    try:
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except (ParseException, Py4JJavaError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"sql: the statement is not valid in Spark SQL: {first}") from error
    _Reader(tables).plan(plan, frozenset())


class _Reader:
    """Checks each node of a plan. ``names`` are the tables defined by WITH."""

    def __init__(self, tables: Collection[str]) -> None:
        self._tables = tables

    def plan(self, node: Any, names: frozenset[str]) -> None:
        kind = class_name(node)
        if kind not in PLANS.split():
            raise UserError(f"sql: the statement has the Spark plan {kind}, which is not allowed")
        if kind == "UnresolvedRelation":
            self._relation(node, names)
        if kind == "UnresolvedWith":
            if _is_recursive(node):
                raise UserError("sql: WITH RECURSIVE is not allowed")
            for part in items(node.cteRelations()):
                self.plan(part._2(), names)
                names |= {str(part._1()).lower()}
        for expression in items(node.expressions()):
            self._expression(expression, names)
        for child in items(node.children()):
            self.plan(child, names)

    def _relation(self, node: Any, names: frozenset[str]) -> None:
        name = str(node.multipartIdentifier().mkString(".")).lower()
        if node.multipartIdentifier().size() != 1 or name not in {*self._tables, *names}:
            raise UserError(f"sql: the statement reads the table {name}, which is not allowed")
        if node.isStreaming() or not node.options().isEmpty():
            raise UserError(f"sql: options of the table {name} are not allowed")

    def _expression(self, node: Any, names: frozenset[str]) -> None:
        kind = class_name(node)
        if kind not in STATEMENT_NODES.split():
            raise UserError(f"sql: the statement has the expression {kind}, which is not allowed")
        if kind == "UnresolvedFunction":
            _require_function(node)
        if kind == "SpecifiedWindowFrame":
            _require_frame(node)
        if kind in QUERIES:
            self.plan(node.plan(), names)
        if kind == "InSubquery":
            self.plan(node.query().plan(), names)
        for child in items(node.children()):
            self._expression(child, names)


def _is_recursive(node: Any) -> bool:
    try:
        return bool(node.allowRecursion())
    except Py4JError:
        return False  # Spark 4.0 has no recursion


def _require_function(node: Any) -> None:
    name = str(node.nameParts().mkString(".")).lower()
    many = name in functions.AGGREGATES
    listed = many or name in functions.WINDOWS or functions.find(name) is not None
    plain = node.filter().isEmpty() and not _says_nulls(node)
    if not plain or (node.isDistinct() and not many):
        raise UserError(f"sql: DISTINCT, FILTER or IGNORE NULLS of {name} is not allowed")
    if not listed and name not in OPERATORS:
        raise UserError(f"sql: the statement calls {name}, which is not allowed")


def _require_frame(node: Any) -> None:
    kind = "ROWS" if class_name(node.frameType()) == "RowFrame$" else "RANGE"
    edges = [_edge(node.lower()), _edge(node.upper())]
    if not functions.frame_allowed(kind, *edges):
        raise UserError("sql: a window without bounds is not allowed: set ROWS or RANGE BETWEEN")


def _edge(node: Any) -> str:
    kind = class_name(node)
    if kind in EDGES:
        return EDGES[kind]
    text = str(node.sql()).strip("()- ")
    return "FEW" if text.isdecimal() and int(text) <= functions.FRAME_ROWS else "MANY"
