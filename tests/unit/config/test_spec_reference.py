"""The options themselves: documented, and shown on the page as they are read."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flumeng.config import parse_flow, registry
from flumeng.config.flow import FlowSpec
from flumeng.config.option_docs import nested_options
from flumeng.config.registry import Entry
from flumeng.platform.options.option import described, is_required

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
ENTRIES = [entry for kind in ("source", "filter", "sink") for entry in registry.entries(kind)]


def reference() -> str:
    """All generated pages of flows and components, which ``scripts/gen --check`` keeps fresh."""
    pages = [REFERENCE / "flow.md", REFERENCE / "filters.md", *REFERENCE.glob("connectors/*.md")]
    return "\n".join(page.read_text() for page in pages)


def options(cls: Any) -> list[dataclasses.Field[Any]]:
    return list(dataclasses.fields(cls))


def source_of(module: str) -> str:
    """The text of a module that may import more than this test can."""
    spec = find_spec(module)
    assert spec is not None, f"there is no module {module}"
    assert spec.origin is not None
    return Path(spec.origin).read_text()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_component_is_documented_and_registered(entry: Entry) -> None:
    cls: Any = entry.options_class()
    assert cls.__doc__
    assert f"### Options of {entry.kind} `{entry.name}`" in reference()
    assert all(described(field).doc.endswith(".") for field in options(cls))
    for place in (cls.implementation, getattr(cls, "finder", ""), getattr(cls, "poll", "")):
        module, _, name = place.partition(":")
        assert not place or f"class {name}" in source_of(module), place


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_example_is_accepted(entry: Entry) -> None:
    """Users copy the examples: each component built from those of its required options, and from
    one of the options that it needs besides, is valid."""
    needed = {"kafka": ["topics"], "sql_poll": ["table"]} if entry.kind == "source" else {}
    fields = [
        field
        for field in options(entry.options_class())
        if is_required(field) or field.name in needed.get(entry.name, [])
    ]
    examples = ", ".join(
        f"{field.name}: {described(field).example or 'syslog'}" for field in fields
    )
    parts = {"source": "tail: {paths: [/a]}", "filter": "where: a", "sink": "noop"}
    parts[entry.kind] = f"{entry.name}: {{{examples}}}"
    if entry.name in ("set", "rename"):  # names of the author's own, and no options
        parts[entry.kind] = f"{entry.name}: {described(fields[0]).example}"
    parse_flow("flow: a\n" + "".join(f"{kind}s: [{part}]\n" for kind, part in parts.items()))


def test_each_flow_option_is_in_the_reference() -> None:
    page = reference()
    seen: set[type[Any]] = set()
    new: list[type[Any]] = [FlowSpec, *(entry.options_class() for entry in registry.all_entries())]
    while new:
        cls = new.pop()
        for field in options(cls):
            named = getattr(cls, "bare", None) == field.name  # its names are the author's own
            assert named or f"| `{field.name}` |" in page
        seen.add(cls)
        new += [part for _, part in nested_options(cls) if part not in seen]


def test_quantities_on_the_page_are_written_as_they_are_read() -> None:
    page = reference()
    assert "| size, 64 B to 16 MiB | `1 MiB` |" in page
    assert "| duration, 10 ms to 1 h | `100 ms` |" in page
    assert "| number of events, 1 to 1_000_000_000 | `2_000_000` |" in page


def test_names_are_resolved_in_the_registry() -> None:
    assert registry.find("source", "files") is None
    assert registry.get("source", "tail").options_class().guarantees == {"replayable"}
