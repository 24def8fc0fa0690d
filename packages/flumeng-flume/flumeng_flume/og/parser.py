"""The grammar of Flume OG's specifications, by recursive descent.

::

    node      = name ":" source "|" sink ";"         the last one may go without ;
    source    = call
    sink      = "[" sink { "," sink } "]"            fan-out
              | "<" sink "?" sink { "?" sink } ">"   failover
              | "{" call "=>" sink "}"               decorator
              | ("roll" | "collector") args "{" sink "}"
              | call [ sink ]                        a sink, or a decorator before one
    call      = name [ "(" [ value { "," value } ] ")" ]
    value     = text | number | "true" | "false" | call | name "=" value

Lines of the shell (``config``, ``map`` and others, also after ``exec`` and ``submit``) may stand
between nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

from flumeng_flume.findings import NotReadableError
from flumeng_flume.og.tokens import Lines, SyntaxProblem, Token, tokens
from flumeng_flume.og.tree import (
    At,
    Call,
    Decorated,
    Failover,
    FanOut,
    Node,
    OnHost,
    Passed,
    Rolled,
    Sink,
    Statement,
    Value,
)

MAX_DEPTH = 60
MAX_PROBLEMS = 20
_COMMAND = re.compile(
    r"(?:(?:exec|submit)\s+)?(?:config|multiconfig|unconfig|map|spawn|unmap|unmapAll|refresh\w*|"
    r"connect|source|wait\w*|getconfigs|getnodestatus|getmappings|getreports|decommission|purge\w*|"
    r"setChokeLimit|addChoke\w*|save|load|noop|quit|help|updateAll)(?![\w.-])(?!\s*:)"
    r"|(?:exec|submit)(?![\w.-])(?!\s*:)"
)
_SHELL_WORD = re.compile(
    r"[ \t]+(?:\#[^\r\n]*)?|\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s\"';]+)", re.DOTALL
)
_BLANK = re.compile(r"(?:\s+|;|//[^\n]*|#[^\n]*|/\*.*?\*/)*", re.DOTALL)
_BODY = re.compile(r"(?:[^;\"/#]|\"(?:[^\"\\]|\\.)*\"|//[^\n]*|#[^\n]*|/\*.*?\*/|/)*;?", re.DOTALL)


def read(file: str, text: str) -> list[Statement]:
    """Return all statements of a file. Raises ``NotReadableError`` with all problems."""
    statements: list[Statement] = []
    problems: list[SyntaxProblem] = []
    lines, offset = Lines(text), 0
    while (offset := _skip(text, offset)) < len(text) and len(problems) < MAX_PROBLEMS:
        at = lines.at(offset)
        command = _COMMAND.match(text, offset)
        try:
            if command is not None:
                words, offset = _shell_words(text, offset, lines)
                statements += _command(words, at)
            else:
                body = _BODY.match(text, offset)
                end = body.end() if body is not None and body[0].endswith(";") else len(text)
                part, offset = text[offset:end], end
                statements += _Parser(part, at).nodes()
        except SyntaxProblem as problem:
            problems.append(problem)
            offset = max(offset, _after(text, offset))
    if problems:
        raise NotReadableError(
            (file, problem.at.line, problem.at.column, problem.why) for problem in problems
        )
    return statements


def _skip(text: str, offset: int) -> int:
    match = _BLANK.match(text, offset)
    return match.end() if match is not None else offset


def _after(text: str, offset: int) -> int:
    end = text.find("\n", offset)
    return len(text) if end < 0 else end + 1


def _shell_words(text: str, offset: int, lines: Lines) -> tuple[list[tuple[str, At]], int]:
    """Return the words of a command up to the line's end or a semicolon, and their end."""
    words: list[tuple[str, At]] = []
    while offset < len(text) and text[offset] not in ";\n\r":
        match = _SHELL_WORD.match(text, offset)
        if match is None:
            raise SyntaxProblem(lines.at(offset), f"unclosed text: expected {text[offset]}")
        shift = 1 if text[offset] in "\"'" else 0
        if match[1] is not None:
            words.append((match[1].replace('\\"', '"'), lines.at(offset + shift)))
        elif match[2] is not None or match[3] is not None:
            word = match[2] if match[2] is not None else match[3]
            words.append((word, lines.at(offset + shift)))
        offset = match.end()
    return words, offset


def _command(words: list[tuple[str, At]], at: At) -> Iterator[Statement]:
    if words[0][0] in ("exec", "submit"):
        words = words[1:]
    name = words[0][0] if words else ""
    given = words[1:]
    if name == "config":
        if len(given) not in (3, 4):
            raise SyntaxProblem(at, "expected config NODE [FLOW] 'SOURCE' 'SINK'")
        flow = given[1][0] if len(given) == 4 else "default-flow"
        (source, source_at), (sink, sink_at) = given[-2:]
        yield Node(
            given[0][0],
            _Parser(source, source_at).source(),
            _Parser(sink, sink_at).sink(),
            at,
            flow,
        )
    elif name == "multiconfig":
        if len(given) != 1:
            raise SyntaxProblem(at, "expected multiconfig 'NODE : SOURCE | SINK; ...'")
        yield from _Parser(*given[0]).nodes()
    elif name in ("map", "spawn"):
        if len(given) < 2:
            raise SyntaxProblem(at, f"expected {name} HOST NODE")
        for node, _ in given[1:]:
            yield OnHost(given[0][0], node, at)
    else:
        yield Passed(tuple(word for word, _ in words), at)


_Parsed = TypeVar("_Parsed")


class _Parser:
    def __init__(self, text: str, first: At) -> None:
        self._tokens = list(tokens(text, first))
        self._at = 0
        self._depth = 0

    def nodes(self) -> list[Node]:
        nodes = []
        while not self._ended:
            name = self._name("the name of a node")
            self._expect(":", f"after the node {name.text}")
            source = self._call()
            self._expect("|", "between source and sink")
            sink = self._sink()
            if not self._ended:
                self._expect(";", f"after the sink of {name.text}")
            nodes.append(Node(name.text, source, sink, name.at))
        return nodes

    def source(self) -> Call:
        return self._whole(self._call())

    def sink(self) -> Sink:
        return self._whole(self._sink())

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    @property
    def _ended(self) -> bool:
        return self._next.kind == "end"

    def _whole(self, parsed: _Parsed) -> _Parsed:
        if not self._ended:
            raise SyntaxProblem(self._next.at, f"expected nothing more; found {self._next}")
        return parsed

    def _takes(self, sign: str) -> bool:
        if self._next.kind != "sign" or self._next.text != sign:
            return False
        self._at += 1
        return True

    def _expect(self, sign: str, where: str) -> None:
        if not self._takes(sign):
            raise SyntaxProblem(self._next.at, f'expected "{sign}" {where}; found {self._next}')

    def _name(self, what: str) -> Token:
        token = self._next
        if token.kind != "name":
            raise SyntaxProblem(token.at, f"expected {what}; found {token}")
        self._at += 1
        return token

    def _sink(self) -> Sink:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SyntaxProblem(self._next.at, f"nested deeper than {MAX_DEPTH}")
        sink = self._one_sink()
        self._depth -= 1
        return sink

    def _one_sink(self) -> Sink:
        if self._takes("["):
            return FanOut(self._several(",", "]"))
        if self._takes("<"):
            return Failover(self._several("?", ">"))
        if self._takes("{"):
            return self._braced()
        call = self._call()
        if call.name in ("roll", "collector") and self._takes("{"):
            return Rolled(call, self._braced())
        if self._next.kind == "name" or (self._next.kind, self._next.text) in _OPENING:
            return Decorated(call, self._sink())
        return call

    def _braced(self) -> Sink:
        """Parse the content of braces: a decorator and its sink, or only a sink."""
        sink = self._sink()
        if self._takes("=>"):
            if not isinstance(sink, Call):
                raise SyntaxProblem(self._next.at, "expected one decorator before =>")
            sink = Decorated(sink, self._sink())
        self._expect("}", "after the sink")
        return sink

    def _several(self, sign: str, end: str) -> tuple[Sink, ...]:
        sinks = [self._sink()]
        while self._takes(sign):
            sinks.append(self._sink())
        self._expect(end, f"or {sign!r} after a sink")
        return tuple(sinks)

    def _call(self) -> Call:
        name = self._name("the name of a source or sink")
        args: list[Value] = []
        kwargs: dict[str, Value] = {}
        if self._takes("(") and not self._takes(")"):
            self._argument(args, kwargs)
            while self._takes(","):
                self._argument(args, kwargs)
            self._expect(")", f"after the arguments of {name.text}")
        return Call(name.text, tuple(args), kwargs, name.at)

    def _argument(self, args: list[Value], kwargs: dict[str, Value]) -> None:
        token = self._next
        value = self._value()
        if self._takes("="):
            if not isinstance(value, Call) or value.args:
                raise SyntaxProblem(token.at, 'expected a name before "="')
            kwargs[value.name] = self._value()
        elif kwargs:
            raise SyntaxProblem(token.at, "expected NAME = VALUE after another NAME = VALUE")
        else:
            args.append(value)

    def _value(self) -> Value:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SyntaxProblem(self._next.at, f"nested deeper than {MAX_DEPTH}")
        token = self._next
        value: Value
        if token.kind == "text":
            self._at += 1
            value = token.text
        elif token.kind == "number":
            self._at += 1
            value = _number(token)
        elif token.kind == "name" and token.text in ("true", "false"):
            self._at += 1
            value = token.text == "true"
        elif token.kind == "name":
            value = self._call()
        else:
            raise SyntaxProblem(token.at, f"expected a value; found {token}")
        self._depth -= 1
        return value


_OPENING = {("sign", "["), ("sign", "<"), ("sign", "{")}


def _number(token: Token) -> int | float:
    text = token.text.rstrip("lL") if "x" in token.text.lower() else token.text.rstrip("fFdDlL")
    digits = text.lstrip("-")
    if len(digits) > 100:
        raise SyntaxProblem(token.at, "expected a number of at most 100 digits")
    if digits.lower().startswith("0x"):
        return int(text, 16)
    if re.fullmatch("0[0-7]+", digits):
        return int(text, 8)
    return int(text) if digits.isdecimal() else float(text)
