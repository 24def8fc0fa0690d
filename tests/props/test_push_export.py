"""The inventory that is exported from any sites renders to them, byte for byte."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.config import check_flow
from flumeng.fleet.inventory.export import export
from flumeng.fleet.inventory.files import read_inventory
from flumeng.fleet.inventory.overlays import DIRECTIVE
from flumeng.fleet.inventory.rendering import render
from flumeng.fleet.resources import Resources

PLAIN = """\
flow: {name}
# täglich
sources: [tail: {{paths: ["/a/{path}"]}}]   # ${{not_here}}
sinks:
  - files: {{path: /lake}}
"""
FORMS: list[Callable[[str], str]] = [
    lambda text: text,
    lambda text: text.rstrip("\n"),
    lambda text: text.replace("\n", "\r\n"),
    lambda text: "\ufeff" + text,
    lambda text: "---\n" + text + "...\n",
    lambda text: "".join(f"  {line}\n" for line in text.splitlines()),
    lambda text: "# flumeng: verbatim\n" + text,
    lambda text: "# flumeng: verbatim\r\n# flumeng: verbatim\n" + text,
    lambda text: text + "\n\n# ende\n",
]
PATHS = [
    "x",
    "${x}",
    "$${x}",
    "$$${x}",
    "${secret:k}",
    "$${secret:k}",
    "\\x24{x}",
    "$",
    "ü€😀",
    "%Y",
]
NAMES = ["web", "devices", "no", "1e3"]
text = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Cn"]) | st.sampled_from("${}:#'\"-"),
    min_size=1,
    max_size=8,
)


def flow(name: str, path: str, form: Callable[[str], str]) -> str:
    return form(PLAIN.format(name=name, path=path))


def flows(name: str) -> st.SearchStrategy[str]:
    return st.builds(flow, st.just(name), st.sampled_from(PATHS), st.sampled_from(FORMS))


@st.composite
def held(draw: st.DrawFn) -> Resources:
    found: dict[str, str] = {}
    for name in draw(st.frozensets(st.sampled_from(NAMES))):
        found[f"flow/{name}"] = draw(flows(name))
        if draw(st.booleans()):
            found[f"choke/{name}"] = str(draw(st.integers(1, 2**50)))
            found[f"choke/{name}@n1"] = "5"
    if draw(st.booleans()):
        found["setting/grace_seconds"] = draw(st.sampled_from(["0", "0.5", "1e-07", "30"]))
        found["setting/balance"] = draw(st.sampled_from(["0", "7"]))
    if draw(st.booleans()):
        found["setting/spark.master"] = draw(st.sampled_from(["yarn", "spark://a:1,b:2"]))
        found["setting/spark.cores"] = "8"
        found["setting/spark.conf"] = '{"spark.authenticate.secret": "${secret:spark}"}'
    for node in draw(st.frozensets(st.sampled_from(["n1", "n2.example", "on", "7"]))):
        for label in draw(st.frozensets(text.filter(lambda name: name != DIRECTIVE))):
            found[f"label/{node}/{label}"] = draw(text | st.sampled_from(PATHS))
        found[f"capacity/{node}/slots"] = draw(st.sampled_from(["1", "2.5", "10000000000000000"]))
    return found


@st.composite
def worlds(draw: st.DrawFn) -> Mapping[str, Resources]:
    """Sites of which many hold the same."""
    kinds = draw(st.lists(held(), min_size=1, max_size=3))
    names = [f"s{number}" for number in range(draw(st.integers(1, 5)))]
    return {name: draw(st.sampled_from(kinds)) for name in names}


def test_flows_of_this_test_are_valid() -> None:
    for name in NAMES:
        for path in PATHS:
            for form in FORMS:
                assert check_flow(flow(name, path, form)).flow == name


@pytest.mark.slow
@settings(deadline=None)
@given(worlds())
def test_exported_inventory_renders_to_the_sites(sites: Mapping[str, Resources]) -> None:
    files = export(sites, "all", {site: f"zk:2181/{site}" for site in sites})
    with tempfile.TemporaryDirectory() as directory:
        for name, content in files.items():
            path = Path(directory, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode())
        assert render(read_inventory(Path(directory))) == sites
