"""Generates Spark SQL from checked trees of sqlglot.

Spark receives this text, not the user's. So it reads what was checked, even where Spark and sqlglot
read the user's text differently. Names stand in backticks, operands in parentheses, and constants
have no escapes but those of backslash, quote and dollar. Any other node is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from flumeng.config import sql_text

_BINARY: Mapping[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.Is: "IS",
    exp.Like: "LIKE",
    exp.ILike: "ILIKE",
    exp.RegexpLike: "RLIKE",
}
_SETS: Mapping[type[exp.Expr], str] = {
    exp.Union: "UNION",
    exp.Except: "EXCEPT",
    exp.Intersect: "INTERSECT",
}
_ATOMS = (
    exp.Anonymous, exp.Boolean, exp.Bracket, exp.Case, exp.Cast, exp.Column, exp.Dot, exp.Literal,
    exp.Null, exp.Paren, exp.RawString,
)  # fmt: skip
"""Nodes that bind more tightly than any operator."""
_FUNCTION = re.compile("[A-Za-z0-9_]+")
_NUMBER = re.compile(r"[0-9]*\.?[0-9]*")


def expression(tree: exp.Expr) -> str:
    """Return a checked expression as Spark SQL. Raises ValueError for a forbidden node."""
    return _Generator({}).named(tree).format()


def statement(tree: exp.Query, fields: Mapping[str, str]) -> str:
    """Return a checked statement as a format string with a field for each use of a table.
    ``fields``: their names by lower-case name of the table. Raises ValueError as ``expression``."""
    return _Generator({name: f"{{{field}}}" for name, field in fields.items()}).query(tree)


@dataclass(frozen=True)
class _Generator:
    """Generates format strings. ``relations``: the tables in scope, as they are written."""

    relations: Mapping[str, str]

    def named(self, node: Any) -> str:
        if isinstance(node, exp.Alias):
            return f"{self.expression(node.this)} AS {_name(node.alias)}"
        return self.expression(node)

    def expression(self, node: Any) -> str:
        if isinstance(node, exp.And | exp.Or):
            return f" {type(node).__name__.upper()} ".join(map(self._operand, _chain(node)))
        if isinstance(node, exp.Not) and isinstance(node.this, exp.Is):
            predicate = node.this
            sides = self._operand(predicate.this), self._operand(predicate.expression)
            return " IS NOT ".join(sides)
        if isinstance(node, exp.Not):
            return f"NOT {self._operand(node.this)}"
        if type(node) in _BINARY:
            sides = self._operand(node.this), self._operand(node.expression)
            made = f" {_BINARY[type(node)]} ".join(sides)
            return f"NOT ({made})" if node.args.get("negate") else made
        if isinstance(node, exp.Neg):
            return f"-{self._operand(node.this)}"
        if isinstance(node, exp.Between):
            bounds = self._operand(node.args["low"]), self._operand(node.args["high"])
            return f"{self._operand(node.this)} BETWEEN {bounds[0]} AND {bounds[1]}"
        if isinstance(node, exp.In):
            query = node.args.get("query")
            among = f"({self._list(node.expressions)})" if query is None else self._within(query)
            return f"{self._operand(node.this)} IN {among}"
        if isinstance(node, exp.Exists):
            return f"EXISTS {self._within(node.this)}"
        if isinstance(node, exp.Window):
            return self._window(node)
        return self._atom(node)

    def _operand(self, node: Any) -> str:
        made = self.expression(node)
        return made if isinstance(node, _ATOMS) else f"({made})"

    def _atom(self, node: Any) -> str:
        if isinstance(node, exp.Paren):
            return f"({self.expression(node.this)})"
        if isinstance(node, exp.Column):
            return ".".join(map(self._part, node.parts))
        if isinstance(node, exp.Dot):
            return f"{self._operand(node.this)}.{self._part(node.expression)}"
        if isinstance(node, exp.Bracket):
            return f"{self._operand(node.this)}[{self._list(node.expressions)}]"
        if isinstance(node, exp.Anonymous):
            return self._call(node)
        if isinstance(node, exp.Cast):
            return self._cast(node)
        if isinstance(node, exp.Case):
            return self._case(node)
        if isinstance(node, exp.Boolean):
            return str(bool(node.this)).upper()
        if isinstance(node, exp.Null):
            return "NULL"
        if isinstance(node, exp.Star):
            return "*"
        return _constant(node)

    def _part(self, node: Any) -> str:
        return "*" if isinstance(node, exp.Star) else _name(_required(node, exp.Identifier).name)

    def _list(self, nodes: Sequence[Any]) -> str:
        return ", ".join(map(self.expression, nodes))

    def _call(self, node: exp.Anonymous) -> str:
        name = node.this
        if not isinstance(name, str) or not _FUNCTION.fullmatch(name):
            raise _refused(node)
        parts, distinct = node.expressions, ""
        if len(parts) == 1 and isinstance(parts[0], exp.Distinct):
            parts, distinct = parts[0].expressions, "DISTINCT "
        return f"{name}({distinct}{self._list(parts)})"

    def _cast(self, node: exp.Cast) -> str:
        kind = node.to.sql(dialect="spark")
        if sql_text.is_time_constant(node):
            return f"{kind} {self.expression(node.this)}"
        name = "TRY_CAST" if node.args.get("safe") else "CAST"
        return f"{name}({self.expression(node.this)} AS {kind})"

    def _case(self, node: exp.Case) -> str:
        parts = ["CASE"]
        if node.this is not None:
            parts.append(self._operand(node.this))
        for branch in node.args["ifs"]:
            parts += ["WHEN", self.expression(branch.this)]
            parts += ["THEN", self.expression(branch.args["true"])]
        if node.args.get("default") is not None:
            parts += ["ELSE", self.expression(node.args["default"])]
        return " ".join([*parts, "END"])

    def _window(self, node: exp.Window) -> str:
        parts = []
        if of := node.args.get("partition_by"):
            parts.append(f"PARTITION BY {self._list(of)}")
        parts += self._order(node)
        frame = node.args.get("spec")
        if frame is not None:
            start, end = (_edge(frame, name) for name in ("start", "end"))
            edges = f"BETWEEN {start} AND {end}" if end else start
            parts.append(f"{frame.args['kind']} {edges}")
        return f"{self._call(_required(node.this, exp.Anonymous))} OVER ({' '.join(parts)})"

    def _order(self, node: exp.Expr) -> list[str]:
        order = node.args.get("order")
        if order is None:
            return []
        keys = [
            f"{self.expression(key.this)} {'DESC' if key.args.get('desc') else 'ASC'} "
            f"NULLS {'FIRST' if key.args.get('nulls_first') else 'LAST'}"
            for key in order.expressions
        ]
        return [f"ORDER BY {', '.join(keys)}"]

    def query(self, node: Any) -> str:
        if isinstance(node, exp.Subquery):
            return self._within(node)
        begin, inner = self._with(node)
        made = inner._select(node) if isinstance(node, exp.Select) else inner._set(node)
        parts = [*begin, *made, *inner._order(node)]
        for name in ("limit", "offset"):
            bound = node.args.get(name)
            if bound is not None:
                parts.append(f"{name.upper()} {self.expression(bound.expression)}")
        return " ".join(parts)

    def _within(self, node: Any) -> str:
        return f"({self.query(node.this if isinstance(node, exp.Subquery) else node)})"

    def _with(self, node: exp.Expr) -> tuple[list[str], _Generator]:
        clause = node.args.get("with_")
        if clause is None:
            return [], self
        inner, made = self, []
        for part in clause.expressions:
            name = _name(part.alias)
            columns = [_name(column.name) for column in part.args["alias"].columns]
            head = f"{name} ({', '.join(columns)})" if columns else name
            made.append(f"{head} AS {inner._within(part.this)}")
            inner = _Generator({**inner.relations, part.alias.lower(): name})
        return [f"WITH {', '.join(made)}"], inner

    def _set(self, node: Any) -> list[str]:
        if type(node) not in _SETS:
            raise _refused(node)
        rows = "DISTINCT" if node.args.get("distinct") else "ALL"
        sides = self._within(node.this), self._within(node.expression)
        return [sides[0], _SETS[type(node)], rows, sides[1]]

    def _select(self, node: exp.Select) -> list[str]:
        parts = ["SELECT DISTINCT" if node.args.get("distinct") else "SELECT"]
        parts += [", ".join(map(self.named, node.expressions))]
        parts += ["FROM", self._relation(node.args["from_"].this)]
        parts += map(self._join, node.args.get("joins") or ())
        if (where := node.args.get("where")) is not None:
            parts += ["WHERE", self.expression(where.this)]
        if (group := node.args.get("group")) is not None:
            parts += ["GROUP BY", self._list(group.expressions)]
        if (having := node.args.get("having")) is not None:
            parts += ["HAVING", self.expression(having.this)]
        return parts

    def _relation(self, node: Any) -> str:
        if isinstance(node, exp.Subquery):
            return f"{self._within(node)} AS {_name(node.alias)}"
        name = _required(node, exp.Table).name.lower()
        if name not in self.relations or len(node.parts) != 1:
            raise _refused(node)
        return f"{self.relations[name]} AS {_name(node.alias or node.name)}"

    def _join(self, join: exp.Join) -> str:
        kind = " ".join(filter(None, (join.side, join.kind, "JOIN", self._relation(join.this))))
        if using := join.args.get("using"):
            return f"{kind} USING ({', '.join(_name(column.name) for column in using)})"
        return f"{kind} ON {self.expression(join.args['on'])}"


def _edge(frame: exp.WindowSpec, name: str) -> str:
    """Return an end of a window's frame; empty when it is not given."""
    end = frame.args.get(name)
    if end is None:
        return ""
    text = end if isinstance(end, str) else _constant(end)
    return f"{text} {frame.args.get(f'{name}_side') or ''}".strip()


def _constant(node: Any) -> str:
    if isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and node.is_string):
        text = node.name.replace("\\", "\\\\").replace("'", "\\'").replace("${", r"\u0024{")
        return f"'{_escaped(text)}'"
    if not isinstance(node, exp.Literal) or not _NUMBER.fullmatch(node.name):
        raise _refused(node)
    return str(node.name)


def _name(name: str) -> str:
    return f"`{_escaped(name.replace('`', '``'))}`"


def _escaped(text: str) -> str:
    """Escape braces for a format string."""
    return text.replace("{", "{{").replace("}", "}}")


def _chain(node: Any) -> list[Any]:
    """Return the operands of a chain of AND or OR, which may be longer than Python's stack."""
    kind, operands = type(node), []
    while type(node) is kind:
        operands.append(node.expression)
        node = node.this
    return [node, *reversed(operands)]


def _required(node: Any, kind: type[exp.Expr]) -> Any:
    if not isinstance(node, kind):
        raise _refused(node)
    return node


def _refused(node: Any) -> ValueError:
    return ValueError(f"not allowed in Spark SQL: {type(node).__name__}")
