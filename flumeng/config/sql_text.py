"""Parses expressions in Spark SQL to trees of sqlglot. sqlglot accepts more than Spark. Texts that
the two interpret differently, comments, hints and second statements are refused here;
``flumeng.config.expressions`` checks the tree."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from itertools import pairwise
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

MAX_CHARACTERS = 8192
MAX_DEPTH = 40
TYPES = (
    "string binary boolean tinyint smallint int integer bigint float double date timestamp decimal"
)

_SYMBOLS = "( ) [ ] , . - + * / % < > <= >= = == <> != <=>"
_NOT_HERE = ("ISNULL", "NOTNULL")
_TIMES = {
    "date": re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "timestamp": re.compile(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)?Z?"
    ),
}
_CLAUSES = ("GROUP BY", "ORDER BY", "PARTITION BY")
_BEGINNINGS = (TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN)
_DIALECT = Spark()


class TextError(ValueError):
    """The text is invalid, independent of the columns."""


_TIME_CONSTANT = "time_constant"


def is_time_constant(node: exp.Cast) -> bool:
    """Return whether a cast is a constant with its type, like ``DATE '2020-01-01'``."""
    return bool(node.meta.get(_TIME_CONSTANT))


def _time_constant(this: exp.Expr, to: exp.DataType) -> exp.Cast:
    node = exp.Cast(this=this, to=to)
    node.meta[_TIME_CONSTANT] = isinstance(this, exp.Literal)
    return node


class _Parser(SparkParser):
    """Parses every call but CAST as an unknown function, so that the call keeps its name."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST")
    }
    NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
    TYPE_LITERAL_PARSERS: ClassVar[dict[Any, Any]] = {
        kind: lambda self, this, to: self.expression(_time_constant(this, to))
        for kind in (exp.DType.DATE, exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ)
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        "CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]
    }


def parse(text: str) -> exp.Expr:
    """Parse one expression. Raises ValueError."""
    tokens = _tokens(text)
    _check_tokens(tokens)
    trees = _trees(text, tokens, "an expression", exp.Expr)
    if len(trees) != 1 or trees[0] is None:
        raise TextError("expected an expression")
    return trees[0]


def parse_query(text: str) -> exp.Query:
    """Parse one SELECT statement. Raises ValueError."""
    tokens = _tokens(text)
    if not tokens or tokens[0].token_type not in _BEGINNINGS:
        raise TextError("expected one SELECT, perhaps with WITH before it")
    _check_tokens(tokens, also=_CLAUSES)
    trees = _trees(text, tokens, "a statement")
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise TextError("expected one SELECT, perhaps with WITH before it")
    return trees[0]


def _trees(
    text: str, tokens: list[Token], what: str, into: type[exp.Expr] | None = None
) -> list[exp.Expr | None]:
    parser = _Parser(error_level=ErrorLevel.IMMEDIATE, dialect=_DIALECT)
    try:
        if into is None:
            return parser.parse(tokens, text)
        return parser.parse_into(into, tokens, text)
    except ParseError as error:
        near = error.errors[0].get("highlight") if error.errors else None
        where = f" near {near}" if near else ""
        raise TextError(f"not {what} in Spark SQL{where}") from None
    except RecursionError:
        raise TextError(f"nested deeper than {MAX_DEPTH}") from None


def parse_columns(text: str) -> exp.DataType:
    """Parse a list of columns in Spark DDL to a struct type. Raises ValueError."""
    wrong = 'expected columns in Spark DDL, like "user STRING, took_ms DOUBLE"'
    tokens = _tokens(f"STRUCT<{text}>")
    parser = _Parser(error_level=ErrorLevel.IMMEDIATE, dialect=_DIALECT)
    try:
        trees = parser.parse_into(exp.DataType, tokens, text)
    except (SqlglotError, RecursionError):
        raise TextError(wrong) from None
    if len(trees) != 1 or not isinstance(trees[0], exp.DataType):
        raise TextError(wrong)
    return trees[0]


def _tokens(text: str) -> list[Token]:
    if len(text) > MAX_CHARACTERS:
        raise TextError(f"expected at most {MAX_CHARACTERS} characters, not {len(text)}")
    if "${" in text:
        raise TextError("${ is not allowed in expressions: Spark would look for a variable")
    try:
        tokens: list[Token] = _DIALECT.tokenize(text)
    except SqlglotError as error:
        raise TextError(f"not SQL: {str(error).splitlines()[0]}") from None
    for token in tokens:
        if token.comments or token.token_type == TokenType.HINT:
            raise TextError("comments and hints are not allowed in expressions")
    return tokens


def _check_tokens(tokens: list[Token], also: Collection[str] = ()) -> None:
    """Raise TextError for tokens that Spark reads differently, or not at all."""
    depth = 0
    for token in tokens:
        kind, text = token.token_type, token.text
        quoted = kind in (TokenType.STRING, TokenType.RAW_STRING, TokenType.IDENTIFIER)
        depth += (kind in (TokenType.L_PAREN, TokenType.CASE)) - (
            kind in (TokenType.R_PAREN, TokenType.END)
        )
        if depth > MAX_DEPTH:
            raise TextError(f"nested deeper than {MAX_DEPTH}")
        if quoted:
            continue
        word = text.isascii() and (text.replace("_", "").isalnum() or kind == TokenType.NUMBER)
        clause = " ".join(text.upper().split()) in also
        if not (word or clause) and text not in _SYMBOLS.split():
            raise TextError(f"{text} is not allowed in expressions")
        if text.upper() in _NOT_HERE:
            raise TextError(f"use IS NULL or IS NOT NULL, not {text}")
    before = None
    for token, following in pairwise(tokens):
        if (token.token_type, following.token_type) == (TokenType.NOT, TokenType.NULL) and (
            before is None or before.token_type != TokenType.IS
        ):
            raise TextError("use IS NOT NULL, not NOT NULL")
        _check_pair(token, following)
        before = token


def _check_pair(token: Token, following: Token) -> None:
    literal = following.token_type in (TokenType.STRING, TokenType.RAW_STRING)
    if token.token_type in (TokenType.STRING, TokenType.RAW_STRING) and literal:
        raise TextError("two texts follow each other: use concat, or one text")
    if token.token_type == TokenType.ALIAS and literal:
        raise TextError("expected a name after AS, not a text")
    if token.token_type == TokenType.ALIAS and following.token_type in _Parser.TYPE_TOKENS:
        plain = following.token_type in (TokenType.VAR, TokenType.IDENTIFIER)
        if not plain and following.text.lower() not in TYPES.split():
            raise TextError(f"{following.text} is no type of Spark; as a name it needs backticks")
    is_type = token.token_type in _Parser.TYPE_TOKENS and token.token_type != TokenType.IDENTIFIER
    if literal and is_type and token.text.lower() not in ("like", "rlike", "in", "and", "or"):
        pattern = _TIMES.get(token.text.lower())
        if pattern is None or not pattern.fullmatch(following.text) or not _is_time(following.text):
            raise TextError(f"expected DATE or TIMESTAMP before '{following.text}', and a time")


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
