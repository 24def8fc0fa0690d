"""Any overlay over any file: the rules of a strategic merge patch hold, and an overlay that cannot
be applied gives a problem and nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.config import document
from flumeng.fleet.inventory import InventoryError, overlays, variables
from flumeng.fleet.inventory.files import read_inventory
from flumeng.fleet.inventory.rendering import render, written

KEYS = ["flow", "sources", "sinks", "filters", "place", "labels", "a", "b", "__proto__", "<<", "1"]
NAMES = ["files", "console", "where", "tail"]
DIRECTIVES = [{"$patch": "delete"}, {"$patch": "replace"}, {"$patch": "replace", "a": 1}]
SITES = """\
inventory: any
variables: {a: "1", b: "${secret:x}"}
groups: {eu: {}}
sites:
  fra: {zookeeper: "zk.fra:1/f", groups: [eu]}
  lon: {zookeeper: "zk.lon:1/f"}
"""

texts = st.text(max_size=8) | st.sampled_from(
    [
        "${a}",
        "$${a}",
        "${b}/x",
        "${nothing}",
        "${",
        "null",
        "true",
        "1",
        "",
        " ",
        "a\nb",
        "# x",
        "é",
    ]
)
scalars = st.none() | st.booleans() | st.integers(-5, 5) | texts


def components(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    entry = st.sampled_from(NAMES) | st.dictionaries(
        st.sampled_from(NAMES), values, min_size=1, max_size=1
    )
    return st.lists(
        entry, max_size=4, unique_by=lambda e: e if isinstance(e, str) else next(iter(e))
    )


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    values = st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | components(inner)
            | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
        ),
        max_leaves=12,
    )
    lists = {name: components(values) for name in overlays.COMPONENT_LISTS}
    return st.fixed_dictionaries(
        {}, optional={**dict.fromkeys(["place", "a", "b"], values), **lists}
    )


plain = trees(scalars)
patches = trees(scalars | st.sampled_from(DIRECTIVES))


def tree(value: Any) -> yaml.Node:
    return document.compose(yaml.safe_dump(value), file="f.yaml")


def laid(*values: Any) -> Any:
    """The merged value; None when an overlay has a problem."""
    nodes = [tree(value) for value in values]
    problems = [problem for node in nodes for problem in overlays.check(node)]
    result = None if problems else overlays.lay(nodes, problems)
    return None if problems or result is None else yaml.safe_load(written(result))


@pytest.mark.slow
@given(plain)
def test_an_empty_patch_changes_nothing(base: Any) -> None:
    assert laid(base, {}) == laid(base) == yaml.safe_load(yaml.safe_dump(base))


@pytest.mark.slow
@given(plain, patches)
@settings(max_examples=3 * settings().max_examples)
def test_patch_is_idempotent(base: Any, patch: Any) -> None:
    twice = laid(base, patch, patch)
    if twice is not None:
        assert twice == laid(base, patch)


@given(plain, patches)
def test_patch_keeps_keys_that_it_does_not_name_and_leaves_no_directive(
    base: Any, patch: Any
) -> None:
    result = laid(base, patch)
    if result is not None:
        assert "$patch" not in yaml.safe_dump(result)
        untouched = yaml.safe_load(yaml.safe_dump(base)).items()
        assert {key: result.get(key) for key, _ in untouched if key not in patch} == {
            key: value for key, value in untouched if key not in patch
        }


@pytest.mark.slow
@given(plain)
@settings(max_examples=3 * settings().max_examples)
def test_tree_is_written_as_a_text_that_reads_back_the_same(base: Any) -> None:
    text = written(tree(base))
    assert yaml.safe_load(text) == yaml.safe_load(yaml.safe_dump(base))
    assert written(document.compose(text)) == text


@given(plain)
def test_filled_in_variables_change_their_text_and_nothing_else(base: Any) -> None:
    values = {"a": "{x: [", "nothing": "null"}
    problems: overlays.Problems = []
    node = tree(base)
    before, after = leaves(node), leaves(variables.filled(node, values, problems))
    assert after == [variables.fill(text, values)[0] for text in before]
    assert leaves(document.compose(written(variables.filled(node, values, [])))) == after


def leaves(node: yaml.Node) -> list[str]:
    """The texts of all scalars that are no keys."""
    if isinstance(node, yaml.ScalarNode):
        return [node.value]
    inner = [value for _, value in node.value] if isinstance(node, yaml.MappingNode) else node.value
    return [text for part in inner for text in leaves(part)]


def rendered(files: dict[str, bytes]) -> Any:
    """The rendered resources, or the problems; any other error is a failure."""
    with tempfile.TemporaryDirectory() as directory:
        for name, content in {"sites.yaml": SITES.encode(), **files}.items():
            path = Path(directory) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        try:
            return render(read_inventory(Path(directory)))
        except InventoryError as error:
            for problem in error.problems:
                text = files.get(problem.file, SITES.encode()).decode(errors="replace")
                assert 0 <= problem.line <= len(text.splitlines()) + 1
                assert problem.message
            return error.problems


PLACES = ["base/flows/a.yaml", "groups/eu/flows/a.yaml", "sites/fra/flows/a.yaml"]
CLUSTERS = ["base/cluster.yaml", "groups/eu/cluster.yaml", "sites/fra/cluster.yaml"]
flows = patches.map(lambda value: yaml.safe_dump({"flow": "web", **value}).encode())
names = st.sampled_from(["n1", "web", "web@n1", "grace_seconds", "balance", "$patch"])
clusters = st.dictionaries(
    st.sampled_from(["settings", "chokes", "nodes", "$patch"]),
    scalars | st.dictionaries(names, scalars | st.dictionaries(names, scalars, max_size=2)),
).map(lambda value: yaml.safe_dump(value).encode())


@pytest.mark.slow
@given(
    st.fixed_dictionaries(dict.fromkeys(PLACES, flows), optional=dict.fromkeys(CLUSTERS, clusters))
)
def test_any_inventory_renders_or_has_problems_and_always_the_same(files: dict[str, bytes]) -> None:
    assert rendered(files) == rendered(files)


@given(
    st.sampled_from(["sites.yaml", *PLACES, *CLUSTERS]), st.binary(max_size=60), st.integers(0, 200)
)
def test_a_damaged_file_is_a_problem_and_nothing_worse(name: str, junk: bytes, at: int) -> None:
    flow = b"flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [files: {path: '/${site}'}]\n"
    files = {PLACES[0]: flow, PLACES[1]: b"flow: web\nsinks: [console]\n"}
    before = SITES.encode() if name == "sites.yaml" else files.get(name, b"chokes: {web: 1 MB}\n")
    rendered({**files, name: before[:at] + junk + before[at:]})
