"""Any content of a flow file gives a flow or problems that point into the file."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.config import FlowSpec, SpecError, parse_flow

WORDS = [
    "flow", "sources", "sinks", "filters", "place", "ingest", "collect", "labels", "tasks", "batch",
    "seconds", "events", "durability", "delivery", "syslog", "tail", "listen", "paths", "protocol",
    "max_line_bytes", "poll_seconds", "parse", "format", "pattern", "schema", "where", "select",
    "expression", "expressions", "files", "path", "compression", "console", "noop", "disk", "json",
    "exactly-once", "web", "/a", "/lake/%Y", "0.0.0.0:1", "1 MiB", "(?P<a>x)", "(", "%", "[::]:1",
]  # fmt: skip
VALID = """\
flow: web
sources:
  - syslog: {listen: "0.0.0.0:5514", protocol: tcp, max_line_bytes: 1 MiB}
  - tail: {paths: [/a/*.log, /b], poll_seconds: 250 ms}
place: {ingest: {labels: {role: web}}, collect: {tasks: 4}}
delivery: exactly-once
filters:
  - parse: {format: regex, pattern: '(?P<status>[0-9]+)'}
  - where: "status > 4"
sinks:
  - files: {path: "/lake/dt=%Y-%m-%d", format: json}
"""

scalars = st.sampled_from(WORDS) | st.none() | st.booleans() | st.integers() | st.floats()
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=6)
    ),
    max_leaves=25,
)


def check(text: str) -> None:
    try:
        assert isinstance(parse_flow(text), FlowSpec)
    except SpecError as error:
        lines = text.count("\n") + 1
        for problem in error.problems:
            assert 1 <= problem.line <= lines + 1
            assert problem.message
        assert list(error.problems) == sorted(error.problems)


def replaced(tree: Any, path: list[int], other: Any) -> Any:
    """``tree`` with one of its parts, found by ``path``, replaced."""
    if not path or not isinstance(tree, dict | list) or not tree:
        return other
    if isinstance(tree, list):
        at = path[0] % len(tree)
        return [replaced(part, path[1:], other) if i == at else part for i, part in enumerate(tree)]
    key = list(tree)[path[0] % len(tree)]
    return {k: replaced(v, path[1:], other) if k == key else v for k, v in tree.items()}


@pytest.mark.slow
@given(trees)
@settings(max_examples=3 * settings().max_examples)
def test_any_tree_of_known_words_is_a_flow_or_its_problems(tree: Any) -> None:
    check(yaml.safe_dump(tree))


@pytest.mark.slow
@given(st.lists(st.integers(0, 7), min_size=1, max_size=5), trees)
@settings(max_examples=3 * settings().max_examples)
def test_a_flow_with_one_part_replaced_is_a_flow_or_its_problems(
    path: list[int], other: Any
) -> None:
    check(yaml.safe_dump(replaced(yaml.safe_load(VALID), path, other)))


@given(st.integers(0, len(VALID)), st.integers(0, 12), st.text(max_size=6))
@settings(max_examples=4 * settings().max_examples)
def test_a_flow_with_typing_errors_is_a_flow_or_its_problems(
    at: int, length: int, typed: str
) -> None:
    check(VALID[:at] + typed + VALID[at + length :])
