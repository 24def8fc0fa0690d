"""Lays a patch over lower layers, like Kubernetes' strategic merge patch, on YAML trees. Pure.

1. Mappings are merged key by key. A scalar replaces the lower value. ``null`` removes its key.
2. ``$patch: replace`` in a mapping replaces the lower one as a whole; ``$patch: delete`` removes
   it, at the top of a file the whole flow.
3. Lists of components (``sources``, ``filters``, ``sinks``) are merged by name: ``- files: {...}``
   patches the lower entry, ``- files: {$patch: delete}`` removes it, a new name is appended. A list
   with a repeated name has to be replaced.
4. ``- $patch: replace`` as the first entry of a list replaces the lower list.
5. Any other list replaces the lower one.
6. Removing an absent value is no error, so that patches are idempotent.

Nodes keep their marks: the file and line they came from. A collection from which a patch removed an
entry has the mark of the removing node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import yaml

from flumeng.config import document
from flumeng.fleet.inventory import InventoryProblem

DIRECTIVE = "$patch"
REPLACE, DELETE = "replace", "delete"
COMPONENT_LISTS = ("sources", "filters", "sinks")

C = TypeVar("C", bound=yaml.CollectionNode)
Problems = list[InventoryProblem]
Origin = tuple[str, int]


def problem(node: yaml.Node, path: str, message: str) -> InventoryProblem:
    return InventoryProblem(node.start_mark.name, document.line(node), path, message)


def origin(node: yaml.Node) -> Origin:
    """Return file and line (from 1) of a node."""
    return node.start_mark.name, document.line(node)


def directive(node: yaml.Node) -> str | None:
    patch = document.items(node).get(DIRECTIVE)
    return None if patch is None else str(patch.value)


def check(root: yaml.Node) -> Iterator[InventoryProblem]:
    """Yield invalid or repeated keys and invalid directives; other functions need valid files."""
    pending = [(root, "")]
    while pending:
        node, path = pending.pop()
        if isinstance(node, yaml.MappingNode):
            yield from _check_keys(node, path)
            if directive(node) not in (None, REPLACE, DELETE):
                message = f'expected "{DIRECTIVE}: {REPLACE}" or "{DIRECTIVE}: {DELETE}"'
                yield problem(node, path, message)
            pending += [(value, _below(path, str(key.value))) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            for index, entry in enumerate(node.value):
                entry_path = f"{path}[{index}]"
                if directive(entry) is None:
                    pending.append((entry, entry_path))
                elif index or directive(entry) != REPLACE or len(entry.value) > 1:
                    message = f'a list takes only "- {DIRECTIVE}: {REPLACE}", as its first entry'
                    yield problem(entry, entry_path, message)


def lay(trees: Iterable[yaml.Node], problems: Problems) -> yaml.Node | None:
    """Lay the trees over each other, lowest first; None when the last one deletes the flow. No node
    occurs twice, and a collection is on one line only if all of it came from one line, so that each
    line of text has one origin."""
    result: yaml.Node | None = None
    for tree in trees:
        is_patch = result is not None or has_directives(tree)
        result = _laid(result, tree, "", problems) if is_patch else _copy(tree)
    if result is not None:
        _spread(result)
    return result


def has_directives(root: yaml.Node) -> bool:
    return directive(root) is not None or any(map(has_directives, parts(root)))


def parts(node: yaml.Node) -> list[yaml.Node]:
    """Return the entries of a list, or the keys and values of a mapping; empty for a scalar."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _copy(node: yaml.Node) -> yaml.Node:
    if isinstance(node, yaml.MappingNode):
        return _with(node, [(_copy(key), _copy(value)) for key, value in node.value])
    if isinstance(node, yaml.SequenceNode):
        return _with(node, [_copy(entry) for entry in node.value])
    return _scalar(node)


def _check_keys(node: yaml.MappingNode, path: str) -> Iterator[InventoryProblem]:
    first: dict[str, int] = {}
    for key, _ in node.value:
        name = str(key.value)
        if not isinstance(key, yaml.ScalarNode):
            yield problem(key, path, f"expected a name, found {document.describe(key)}")
        elif name in first:
            message = f"given twice; the first is in line {first[name]}"
            yield problem(key, _below(path, name), message)
        else:
            first[name] = document.line(key)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _laid(
    below: yaml.Node | None, patch: yaml.Node, path: str, problems: Problems
) -> yaml.Node | None:
    if isinstance(patch, yaml.MappingNode):
        if directive(patch) == DELETE:
            return None
        if directive(patch) == REPLACE or not isinstance(below, yaml.MappingNode):
            below = None
        return _mapping(below, patch, path, problems)
    if isinstance(patch, yaml.SequenceNode):
        replaces = bool(patch.value) and directive(patch.value[0]) == REPLACE
        entries = patch.value[1:] if replaces else patch.value
        named = path.rpartition(".")[2] in COMPONENT_LISTS
        if not named or None in map(_name, entries):
            return _with(patch, [_entry(entry, path, problems) for entry in entries])
        if replaces or not isinstance(below, yaml.SequenceNode):
            below = None
        return _components(below, patch, entries, path, problems)
    if document.is_null(patch):
        return None
    assert isinstance(patch, yaml.ScalarNode)
    if isinstance(below, yaml.ScalarNode) and (below.value, below.tag) == (patch.value, patch.tag):
        return below  # it keeps its origin
    return _scalar(patch)


def _mapping(
    below: yaml.MappingNode | None, patch: yaml.MappingNode, path: str, problems: Problems
) -> yaml.MappingNode:
    result = _with(patch if below is None else below, [])
    pairs = {} if below is None else {key.value: (key, value) for key, value in below.value}
    for key, value in patch.value:
        name = key.value
        if name == DIRECTIVE:
            continue
        before = pairs.get(name)
        laid = _laid(before and before[1], value, _below(path, name), problems)
        if laid is not None:
            pairs[name] = (before[0] if before else _scalar(key), laid)
        elif pairs.pop(name, None):
            result.start_mark = key.start_mark
    result.value = list(pairs.values())
    return result


def _components(
    below: yaml.SequenceNode | None,
    patch: yaml.SequenceNode,
    entries: list[yaml.Node],
    path: str,
    problems: Problems,
) -> yaml.SequenceNode:
    result = _with(patch if below is None else below, [])
    there: list[yaml.Node] = [] if below is None else list(below.value)
    names = [_name(entry) for entry in there]
    own = Counter(map(_name, entries))
    for index, entry in enumerate(entries):
        name = _name(entry)
        entry_path = f"{path}[{index}]"
        count = names.count(name)
        if count and (count > 1 or own[name] > 1):
            message = (
                f'there are several "{name}" and the patch fits each of them: '
                f'give the whole list after "- {DIRECTIVE}: {REPLACE}"'
            )
            problems.append(problem(entry, entry_path, message))
        elif count:
            at = names.index(name)
            laid = _component(there[at], entry, entry_path, problems)
            if laid is None:
                del there[at], names[at]
                result.start_mark = entry.start_mark
            else:
                there[at] = laid
        elif (laid := _component(None, entry, entry_path, problems)) is not None:
            there.append(laid)
    result.value = there
    return result


def _name(entry: yaml.Node) -> str | None:
    """Return the component's name in ``- name: options`` or ``- name``."""
    if isinstance(entry, yaml.MappingNode):
        return str(entry.value[0][0].value) if len(entry.value) == 1 else None
    is_name = isinstance(entry, yaml.ScalarNode) and not document.is_null(entry)
    return str(entry.value) if is_name else None


def _component(
    below: yaml.Node | None, entry: yaml.Node, path: str, problems: Problems
) -> yaml.Node | None:
    """Lay an entry over one of the same name; a name alone changes nothing."""
    if not isinstance(entry, yaml.MappingNode):
        return below or _copy(entry)
    ((name, options),) = entry.value
    if document.is_null(options):
        return below or _copy(entry)
    if not isinstance(below, yaml.MappingNode):
        below = _with(entry, [(_scalar(name), None)])
    ((key, before),) = below.value
    laid = _laid(before, options, _below(path, name.value), problems)
    return None if laid is None else _with(below, [(key, laid)])


def _entry(node: yaml.Node, path: str, problems: Problems) -> yaml.Node:
    """Return an entry of a replaced list, in which ``null`` is a value."""
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    assert isinstance(node, yaml.CollectionNode)
    return _laid(None, node, path, problems) or _with(node, [])


def _with(node: C, value: list[Any]) -> C:
    return type(node)(node.tag, value, node.start_mark, node.end_mark, node.flow_style)


def _scalar(node: yaml.Node) -> yaml.ScalarNode:
    assert isinstance(node, yaml.ScalarNode)
    return yaml.ScalarNode(node.tag, node.value, node.start_mark, node.end_mark, node.style)


def _spread(node: yaml.Node) -> Origin | None:
    """Put a collection of several origins on several lines; return the origin if it has one."""
    common: Origin | None = origin(node)
    for part in parts(node):
        if _spread(part) != origin(node):
            common = None
    if common is None and isinstance(node, yaml.CollectionNode):
        node.flow_style = False
    return common
