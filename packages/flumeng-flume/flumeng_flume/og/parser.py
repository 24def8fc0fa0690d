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

Lines of the shell (``config``, ``map`` and others, also behind ``exec`` and ``submit``) may stand
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
    """Everything that a file says. Raises ``NotReadableError`` with what is wrong, node by node."""
    statements: list[Statement] = []
    problems: list[SyntaxProblem] = []
    lines, place = Lines(text), 0
    while (place := _skip(text, place)) < len(text) and len(problems) < MAX_PROBLEMS:
        at = lines.at(place)
        command = _COMMAND.match(text, place)
        try:
            if command is not None:
                words, place = _shell_words(text, place, lines)
                statements += _command(words, at)
            else:
                body = _BODY.match(text, place)
                end = body.end() if body is not None and body[0].endswith(";") else len(text)
                part, place = text[place:end], end
                statements += _Parser(part, at).nodes()
        except SyntaxProblem as problem:
            problems.append(problem)
            place = max(place, _after(text, place))
    if problems:
        raise NotReadableError((file, one.at.line, one.at.column, one.why) for one in problems)
    return statements


def _skip(text: str, place: int) -> int:
    found = _BLANK.match(text, place)
    return found.end() if found is not None else place


def _after(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end + 1


def _shell_words(text: str, place: int, lines: Lines) -> tuple[list[tuple[str, At]], int]:
    """The words of a command, up to the end of its line or a semicolon."""
    words: list[tuple[str, At]] = []
    while place < len(text) and text[place] not in ";\n\r":
        found = _SHELL_WORD.match(text, place)
        if found is None:
            raise SyntaxProblem(lines.at(place), f"a text is not ended: expected {text[place]}")
        shift = 1 if text[place] in "\"'" else 0
        if found[1] is not None:
            words.append((found[1].replace('\\"', '"'), lines.at(place + shift)))
        elif found[2] is not None or found[3] is not None:
            word = found[2] if found[2] is not None else found[3]
            words.append((word, lines.at(place + shift)))
        place = found.end()
    return words, place


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


_Found = TypeVar("_Found")


class _Parser:
    def __init__(self, text: str, first: At) -> None:
        self._tokens = list(tokens(text, first))
        self._at = 0
        self._depth = 0

    def nodes(self) -> list[Node]:
        found = []
        while not self._ended:
            name = self._name("the name of a node")
            self._expect(":", f"behind the node {name.text}")
            source = self._call()
            self._expect("|", "between source and sink")
            sink = self._sink()
            if not self._ended:
                self._expect(";", f"behind the sink of {name.text}")
            found.append(Node(name.text, source, sink, name.at))
        return found

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

    def _whole(self, found: _Found) -> _Found:
        if not self._ended:
            raise SyntaxProblem(self._next.at, f"expected nothing more; found {self._next}")
        return found

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
        found = self._one_sink()
        self._depth -= 1
        return found

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
        """What stands in braces: a decorator and its sink, or only a sink."""
        found = self._sink()
        if self._takes("=>"):
            if not isinstance(found, Call):
                raise SyntaxProblem(self._next.at, "expected one decorator before =>")
            found = Decorated(found, self._sink())
        self._expect("}", "at the end of it")
        return found

    def _several(self, sign: str, end: str) -> tuple[Sink, ...]:
        found = [self._sink()]
        while self._takes(sign):
            found.append(self._sink())
        self._expect(end, f"or {sign!r} behind a sink")
        return tuple(found)

    def _call(self) -> Call:
        name = self._name("the name of a source or sink")
        args: list[Value] = []
        kwargs: dict[str, Value] = {}
        if self._takes("(") and not self._takes(")"):
            self._argument(args, kwargs)
            while self._takes(","):
                self._argument(args, kwargs)
            self._expect(")", f"behind what {name.text} is given")
        return Call(name.text, tuple(args), kwargs, name.at)

    def _argument(self, args: list[Value], kwargs: dict[str, Value]) -> None:
        token = self._next
        value = self._value()
        if self._takes("="):
            if not isinstance(value, Call) or value.args:
                raise SyntaxProblem(token.at, 'expected a name before "="')
            kwargs[value.name] = self._value()
        elif kwargs:
            raise SyntaxProblem(token.at, "expected NAME = VALUE behind others of that kind")
        else:
            args.append(value)

    def _value(self) -> Value:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SyntaxProblem(self._next.at, f"nested deeper than {MAX_DEPTH}")
        token = self._next
        found: Value
        if token.kind == "text":
            self._at += 1
            found = token.text
        elif token.kind == "number":
            self._at += 1
            found = _number(token)
        elif token.kind == "name" and token.text in ("true", "false"):
            self._at += 1
            found = token.text == "true"
        elif token.kind == "name":
            found = self._call()
        else:
            raise SyntaxProblem(token.at, f"expected a value; found {token}")
        self._depth -= 1
        return found


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
