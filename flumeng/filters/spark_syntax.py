"""What Spark itself reads in an expression, before anything of it is looked up or computed.

``flumeng.config.expressions`` says of a text what it means, with a parser that is not Spark's.
Should the two ever read a text in different ways, then what counts is what Spark reads: only kinds
of nodes and functions that are listed get through, and everything else is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from flumeng.config import functions
from flumeng.config.sql_text import MAX_CHARACTERS
from flumeng.platform.errors import UserError

NODES = (
    "Add Alias And CaseWhen Cast Divide EqualNullSafe EqualTo GreaterThan GreaterThanOrEqual ILike "
    "In IsNotNull IsNull LessThan LessThanOrEqual Like Literal Multiply Not Or RLike Remainder "
    "Subtract UnaryMinus UnaryPositive UnresolvedAttribute UnresolvedExtractValue "
    "UnresolvedFunction UnresolvedStar"
)

OPERATORS = frozenset({"between", "ilike"})
"""What Spark reads as calls and has an expression of its own in our texts."""


def require_allowed(spark: SparkSession, texts: Sequence[str]) -> None:
    """Raises UserError for a text that Spark cannot read, or that holds what is not allowed."""
    parser = spark._jsparkSession.sessionState().sqlParser()
    for text in texts:
        if len(text) > MAX_CHARACTERS:
            raise UserError(f"an expression has more than {MAX_CHARACTERS} characters")
        try:
            tree = parser.parseExpression(text)
        except (ParseException, Py4JError) as error:
            first = str(error).strip().splitlines()[0]
            raise UserError(f"{text!r} is no expression in Spark SQL: {first}") from error
        for node in _nodes(tree):
            _require_node(text, node)


def _nodes(tree: Any) -> Iterator[Any]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        children = node.children()
        waiting += [children.apply(place) for place in range(children.size())]


def _require_node(text: str, node: Any) -> None:
    kind = str(node.getClass().getSimpleName())
    if kind not in NODES.split():
        raise UserError(f"{text!r} is not allowed: Spark reads {kind} in it")
    if kind == "UnresolvedFunction":
        name = str(node.nameParts().mkString("."))
        plain = not node.isDistinct() and node.filter().isEmpty() and not says_nulls(node)
        if (name not in OPERATORS and functions.find(name) is None) or not plain:
            raise UserError(f"{text!r} is not allowed: Spark reads a call of {name} in it")


def says_nulls(call: Any) -> bool:
    """Whether there is RESPECT or IGNORE NULLS; Spark 4.0 tells of the latter only."""
    found = call.ignoreNulls()
    return found if isinstance(found, bool) else not found.isEmpty()
