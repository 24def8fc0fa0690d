"""Parses YAML to a tree of nodes with lines, within size limits. Tags construct nothing, and
scalars stay text (``no`` is not ``False``) until the decoder knows the option's type."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

import yaml

from flumeng.platform.options.problems import Problem, SpecError

MAX_BYTES = 128 * 1024
MAX_DEPTH = 20
MAX_NODES = 10_000
"""Most nodes of a file, counted with every alias expanded."""

_TAGS = "tag:yaml.org,2002:"


def compose(
    text: str, *, file: str = "", max_bytes: int = MAX_BYTES, max_nodes: int = MAX_NODES
) -> yaml.Node:
    """Parse ``text`` to a tree of nodes, whose marks name ``file``. Raises ``SpecError``."""
    if len(text.encode(errors="replace")) > max_bytes:
        raise SpecError([Problem(1, "", f"the file is larger than {max_bytes // 1024} KiB")])
    root = _compose_fast(text, file)
    try:
        root = root or _Loader(_source(text, file)).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context or "cannot be read"
        raise SpecError([Problem(mark.line + 1 if mark else 1, "", f"not YAML: {what}")]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError([Problem(line, "", f"not YAML: {error.reason}")]) from error
    if root is None:
        raise SpecError([Problem(1, "", "the file is empty")])
    _check_bounds(root, max_nodes)
    return root


def items(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """Return the entries of a mapping; empty for any other node."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return {str(key.value): value for key, value in pairs}


def line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _TAGS + "null"


def describe(node: yaml.Node) -> str:
    """Return the value of a node as text for the end of a message."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if is_null(node):
        return "nothing"
    value = str(node.value)
    short = value if len(value) <= 60 else value[:57] + "..."
    return f'"{short}"' if short.isprintable() else repr(short)


class _File(io.StringIO):
    def __init__(self, text: str, name: str) -> None:
        super().__init__(text, newline="")
        self.name = name


def _source(text: str, file: str) -> str | _File:
    """Return the input of PyYAML, which takes the name of a file only from a stream."""
    return _File(text, file) if file else text


def _compose_fast(text: str, file: str) -> yaml.Node | None:
    """Parse with libyaml, which is fast. None without it, or at faults for PyYAML to describe."""
    if _FastLoader is None:
        return None
    try:
        root: yaml.Node | None = _FastLoader(_source(text, file)).get_single_node()
    except (yaml.YAMLError, UnicodeError):
        return None
    return root


class _BoundedComposer(yaml.composer.Composer):
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        try:
            if self._depth > MAX_DEPTH:
                mark = self.peek_event().start_mark  # type: ignore[attr-defined]
                raise yaml.MarkedYAMLError(None, None, f"nested deeper than {MAX_DEPTH}", mark)
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _Loader(_BoundedComposer, yaml.SafeLoader):
    pass


def _fast_loader() -> Callable[[str | _File], Any] | None:
    if not yaml.__with_libyaml__:
        return None

    class Fast(_BoundedComposer, yaml.CSafeLoader):
        def __init__(self, source: str | _File) -> None:
            yaml.CSafeLoader.__init__(self, source)
            _BoundedComposer.__init__(self)

    return Fast


_FastLoader = _fast_loader()


def _check_bounds(root: yaml.Node, max_nodes: int) -> None:
    """Raise ``SpecError`` for foreign tags, endless aliases and files that expand too far."""
    count = 0
    pending = [(root, 1)]
    while pending:
        node, depth = pending.pop()
        count += 1
        if depth > MAX_DEPTH or count > max_nodes:
            why = f"aliases expand too far, or there are more than {max_nodes} values"
            raise SpecError([Problem(line(node), "", why)])
        if not node.tag.startswith(_TAGS) or "python" in node.tag:
            raise SpecError([Problem(line(node), "", f"tags are not allowed: {node.tag}")])
        if isinstance(node, yaml.MappingNode):
            pending.extend((part, depth + 1) for pair in node.value for part in pair)
        elif isinstance(node, yaml.SequenceNode):
            pending.extend((item, depth + 1) for item in node.value)


def scalar(value: str | int) -> yaml.ScalarNode:
    kind = type(value).__name__
    return yaml.ScalarNode(f"{_TAGS}{kind}", "true" if value is True else str(value))


def mapping_node(pairs: Iterable[tuple[yaml.Node, yaml.Node]]) -> yaml.MappingNode:
    return yaml.MappingNode(f"{_TAGS}map", list(pairs))


def list_node(items: Iterable[yaml.Node]) -> yaml.SequenceNode:
    return yaml.SequenceNode(f"{_TAGS}seq", list(items))


def put(node: yaml.Node, key: str, value: yaml.Node) -> None:
    """Set an entry of a mapping in its place, or at the end."""
    for index, (name, _) in enumerate(node.value):
        if name.value == key:
            node.value[index] = (name, value)
            return
    node.value.append((scalar(key), value))
