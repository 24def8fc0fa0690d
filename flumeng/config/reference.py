"""The reference page of the flow language, derived from the option classes and the registry."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_origin, get_type_hints

from flumeng.config import registry
from flumeng.config.component import Kind, OutsideJournal, SourceOptions
from flumeng.config.flow import FlowSpec
from flumeng.config.option_docs import documentation, nested_options, option_rows
from flumeng.config.registry import Entry
from flumeng.platform.options.option import described

KINDS: tuple[Kind, ...] = ("source", "filter", "sink")
HEAD = """\
Every option of a flow file and of every component. Sizes are written as `64 KiB` or `1 MiB` (or
`KB`, `MB`), durations as `250 ms`, `10 s` or `5 min`; a bare number means bytes or seconds.
"""


def to_markdown() -> str:
    """The page without its title; equal as long as the options are."""
    return "\n".join(_lines()).rstrip("\n") + "\n"


def to_page(cls: type[Any], parts: Sequence[tuple[str, type[Any]]] = ()) -> str:
    """The page of one option class that has a file of its own, without its title; ``parts`` are the
    classes of options in it, each with its place."""
    lines = [documentation(cls), "", *_options(cls)]
    for place, part in parts:
        lines += [f"## `{place}`\n", f"{documentation(part)}\n", *_options(part)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _lines() -> Iterator[str]:
    yield HEAD
    yield "## The flow\n"
    yield from _options(FlowSpec)
    told: set[type[Any]] = {FlowSpec}
    yield from _parts(FlowSpec, "", told)
    for entry in registry.entries("journal"):
        yield f"### `journal.{entry.name}`\n"
        yield f"{documentation(entry.options_class())}\n"
        yield from _options(entry.options_class())
    for kind in KINDS:
        yield f"## {kind.capitalize()}s\n"
        for entry in registry.entries(kind):
            yield from _component(entry)
            yield from _parts(entry.options_class(), f" of {entry.name}", told)


def _parts(cls: type[Any], behind: str, told: set[type[Any]], above: str = "") -> Iterator[str]:
    """The options of this class that have options of their own, and theirs, but for those that were
    ``told`` of another one."""
    for name, part in nested_options(cls):
        if part in told:
            continue
        told.add(part)
        if not issubclass(part, OutsideJournal):
            yield f"#### `{above}{name}`{behind}\n"
            yield f"{documentation(part)}\n"
            yield from _options(part)
        yield from _parts(part, behind, told, f"{above}{name}.")


def _component(entry: Entry) -> Iterator[str]:
    cls = entry.options_class()
    yield f"### {entry.kind} `{entry.name}`\n"
    yield f"{documentation(cls)}\n"
    if issubclass(cls, SourceOptions) and cls.guarantees:
        yield f"Guarantees: {', '.join(sorted(cls.guarantees))}.\n"
    bare = getattr(cls, "bare", None)
    if bare is not None:
        option = next(described(f) for f in dataclasses.fields(cls) if f.name == bare)
        if get_origin(get_type_hints(cls)[bare]) is Mapping:
            yield f"Written as `- {entry.name}: {option.example}`. {option.doc}\n"
            return
        yield f"Short form: `- {entry.name}: {option.example}`.\n"
    yield from _options(cls)


def _options(cls: type[Any]) -> Iterator[str]:
    rows = list(option_rows(cls))
    if not rows:
        yield "It has no options.\n"
        return
    yield "| option | value | default | meaning |"
    yield "|---|---|---|---|"
    for row in rows:
        cells = (f"`{row.name}`", row.value, row.default, row.meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""
