"""Specifications of Flume OG are read by their grammar, and errors have their position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng_flume.findings import NotReadableError
from flumeng_flume.og.parser import MAX_DEPTH, read
from flumeng_flume.og.tree import (
    Call,
    Decorated,
    Failover,
    FanOut,
    Node,
    OnHost,
    Passed,
    Rolled,
    Sink,
)

WORDS = st.sampled_from(
    [*"abc:|;(),[]{}<>?=\"'\\/#*\n\t .-019", "=>", "tail", "roll(1)", "exec ", "config ", '"x"']
)
NAMES = st.sampled_from(["console", "null", "agentSink", "value", "batch", "x-1.y"])
CALLS = st.builds(Call, NAMES, st.lists(st.integers(0, 99) | st.text(max_size=3)).map(tuple))
SINKS: st.SearchStrategy[Sink] = st.recursive(
    CALLS,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(tuple).map(FanOut)
        | st.lists(inner, min_size=2, max_size=3).map(tuple).map(Failover)
        | st.builds(Decorated, CALLS, inner)
        | st.builds(Rolled, st.just(Call("roll", (100,))), inner)
    ),
    max_leaves=8,
)


def only(text: str) -> Node:
    (node,) = read("f", text)
    assert isinstance(node, Node)
    return node


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ("console", Call("console")),
        ('text("/tmp/a", raw)', Call("text", ("/tmp/a", Call("raw")))),
        (
            'x(1, 0x10, 010, 1.5, -2, true, k = "v")',
            Call("x", (1, 16, 8, 1.5, -2, True), {"k": "v"}),
        ),
        ("[ a, b ]", FanOut((Call("a"), Call("b")))),
        ("< a ? b ? c >", Failover((Call("a"), Call("b"), Call("c")))),
        ("{ a => b }", Decorated(Call("a"), Call("b"))),
        ("a b(1) c", Decorated(Call("a"), Decorated(Call("b", (1,)), Call("c")))),
        ("a [ b ]", Decorated(Call("a"), FanOut((Call("b"),)))),
        ("roll(5) { a }", Rolled(Call("roll", (5,)), Call("a"))),
        (
            "collector(5) { a => b }",
            Rolled(Call("collector", (5,)), Decorated(Call("a"), Call("b"))),
        ),
        ('a("\\"\\\\\\u0041\\101\\n")', Call("a", ('"\\AA\n',))),
    ],
)
def test_sinks_are_read_by_the_grammar(sink: str, expected: Sink) -> None:
    assert only(f"n : null | {sink} ;").sink == expected


@given(SINKS)
def test_written_sink_is_read_back(sink: Sink) -> None:
    assert only(f"n : null | {written(sink)} ;").sink == sink


def test_shell_commands_between_nodes_are_read() -> None:
    text = (
        "connect localhost\n"
        'exec config n1 \'tail("/a")\' "text(\\"/b\\")" # as it was\n'
        "submit config n2 flow1 null null\n"
        "map h1 n1; map h2 n2 n3\n"
        "map-reduce : null | null ;\n"
        "multiconfig 'a : null | null; b : null | console;'\n"
    )
    statements = read("f", text)
    kinds = [type(one) for one in statements]
    assert kinds == [Passed, Node, Node, OnHost, OnHost, OnHost, Node, Node, Node]
    nodes = [one for one in statements if isinstance(one, Node)]
    assert [(one.name, one.flow, one.at.line) for one in nodes] == [
        ("n1", "default-flow", 2),
        ("n2", "flow1", 3),
        ("map-reduce", "default-flow", 5),
        ("a", "default-flow", 6),
        ("b", "default-flow", 6),
    ]
    assert nodes[0].sink == Call("text", ("/b",))


@pytest.mark.parametrize(
    ("text", "line", "column", "why"),
    [
        ("n : tail | console x : y", 1, 22, 'expected ";"'),
        ("a : b | c ;\nn tail | console ;", 2, 3, 'expected ":"'),
        ("n : t | [ a, ] ;", 1, 14, "expected the name of a source or sink"),
        ("n : t | { [a] => b } ;", 1, 18, "expected one decorator"),
        ("n : t | a(k=1, 2) ;", 1, 16, "NAME = VALUE"),
        ('n : t | a("x', 1, 11, "unclosed text"),
        ("n : t | a /* b", 1, 11, "unclosed comment"),
        ("n : t | @ ;", 1, 9, "unexpected character"),
        ("exec config n 'tail(' null", 1, 21, "expected a value"),
        ("config n null", 1, 1, "expected config NODE"),
        ("config n 'null null", 1, 10, "unclosed text"),
        ("n : t | " + "[" * 100 + " ;", 1, 9 + MAX_DEPTH, "nested deeper"),
    ],
)
def test_error_has_its_line_and_column(text: str, line: int, column: int, why: str) -> None:
    with pytest.raises(NotReadableError) as caught:
        read("f", text)
    found = caught.value.problems[0]
    assert found[:3] == ("f", line, column)
    assert why in found[3]


def test_every_invalid_node_is_reported() -> None:
    with pytest.raises(NotReadableError) as caught:
        read("f", "a b;\nc : d | e;\nf g;\n")
    assert [line for _, line, _, _ in caught.value.problems] == [1, 3]


@given(st.lists(WORDS).map("".join) | st.text())
def test_any_text_is_read_or_refused_with_a_place_in_it(text: str) -> None:
    try:
        read("f", text)
    except NotReadableError as error:
        lines = text.split("\n")
        for _, line, column, why in error.problems:
            assert 1 <= line <= len(lines)
            assert 1 <= column <= len(lines[line - 1]) + 1
            assert why


def written(sink: Sink) -> str:
    match sink:
        case FanOut(sinks):
            return f"[ {', '.join(map(written, sinks))} ]"
        case Failover(sinks):
            return f"< {' ? '.join(map(written, sinks))} >"
        case Decorated(decorator, inner):
            return f"{{ {written(decorator)} => {written(inner)} }}"
        case Rolled(by, inner):
            return f"{written(by)} {{ {written(inner)} }}"
        case Call(name, args):
            return f"{name}({', '.join(map(_value, args))})" if args else name


def _value(value: object) -> str:
    if isinstance(value, str):
        return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 2**16 else c for c in value) + '"'
    return str(value)
