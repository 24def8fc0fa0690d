"""Reference pages of flows and components, from the option classes and the folders' READMEs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_origin, get_type_hints

from flumeng.config import registry
from flumeng.config.component import OutsideJournal, SourceOptions
from flumeng.config.flow import FlowSpec
from flumeng.config.functions import FUNCTIONS
from flumeng.config.option_docs import documentation, nested_options, option_rows
from flumeng.config.registry import Entry
from flumeng.platform.options.option import described
from rooms import sections, title_and_text

FOLDER = "flumeng.connectors."


def connectors() -> dict[str, tuple[str, str]]:
    """The title and the text of the page of each connector that has components, by its folder."""
    pages = {}
    for folder, entries in sorted(_by_folder().items()):
        title, text = title_and_text(f"connectors/{folder}")
        values = "How values are written: [values](../flow.md#values).\n"
        parts = [text, "", "## Options\n", values]
        seen: set[type[Any]] = set()
        for entry in entries:
            parts += [_heading(entry), *_component(entry), *_parts_of(entry, seen)]
        pages[folder] = title, _joined(parts)
    return pages


def flow() -> tuple[str, str]:
    """The page of flow files: their text, the functions of expressions, the options of a flow."""
    title, text = title_and_text("config")
    functions = ", ".join(f"`{name}`" for name in sorted(FUNCTIONS))
    options = [*_options(FlowSpec), *_parts(FlowSpec, "", {FlowSpec})]
    parts = [text, "", "## Functions\n", f"{functions}\n", "## Options\n", *options]
    return title, _joined(parts)


def filters() -> tuple[str, str]:
    """The page of filters: the section of each has its purpose, its text, and its options."""
    entries = {
        entry.name: entry
        for entry in registry.entries("filter")
        if entry.distribution == registry.OWN
    }
    title, text = title_and_text("filters")
    seen: set[type[Any]] = {FlowSpec}
    (_, head), *rest = sections(text)
    parts = [head, ""]
    for heading, body in rest:
        entry = entries.pop(heading.strip("`"), None)
        parts += [f"## {heading}\n"]
        if entry is None:
            parts += [f"{body}\n"]
            continue
        purpose, *options = _component(entry)
        parts += [purpose, f"{body}\n", _heading(entry), *options, *_parts_of(entry, seen)]
    assert not entries, f"flumeng/filters/README.md has no section of {', '.join(entries)}"
    return title, _joined(part for part in parts if part != "\n")


def index() -> str:
    """All components, each with its page."""
    lines = ["| | name | what it is |", "|---|---|---|"]
    for entry in registry.all_entries():
        if entry.distribution != registry.OWN:
            continue
        folder = _folder(entry)
        page = f"connectors/{folder}.md" if folder else "filters.md"
        anchor = f"options-of-{entry.kind}-{entry.name}"
        purpose = documentation(entry.options_class()).replace("\n", " ").partition(". ")[0]
        purpose = purpose.replace("|", "\\|")
        lines.append(f"| {entry.kind} | [`{entry.name}`]({page}#{anchor}) | {purpose} |")
    head = "All sources, filters and sinks, with their options. Those of a flow: [flow](flow.md).\n"
    return _joined([head, *lines])


def option_page(cls: type[Any], parts: Sequence[tuple[str, type[Any]]] = ()) -> str:
    """The page of one option class that has a file of its own, without its title; ``parts`` are the
    classes of options in it, each with its place."""
    lines = [documentation(cls), "", *_options(cls)]
    for place, part in parts:
        lines += [f"## `{place}`\n", f"{documentation(part)}\n", *_options(part)]
    return _joined(lines)


def _by_folder() -> Mapping[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in registry.all_entries():
        folder = _folder(entry)
        if folder and entry.distribution == registry.OWN:
            found.setdefault(folder, []).append(entry)
    return found


def _folder(entry: Entry) -> str:
    """The connector's; empty for a filter."""
    module = entry.options
    return module.removeprefix(FOLDER).partition(".")[0] if module.startswith(FOLDER) else ""


def _heading(entry: Entry) -> str:
    return f"### Options of {entry.kind} `{entry.name}`\n"


def _parts_of(entry: Entry, seen: set[type[Any]]) -> Iterator[str]:
    return _parts(entry.options_class(), f" of {entry.name}", seen)


def _parts(cls: type[Any], behind: str, seen: set[type[Any]], above: str = "") -> Iterator[str]:
    """The options of this class that have options of their own, and theirs, but for those that were
    ``seen`` on the page."""
    for name, part in nested_options(cls):
        if part in seen:
            continue
        seen.add(part)
        if not issubclass(part, OutsideJournal):
            yield f"#### `{above}{name}`{behind}\n"
            yield f"{documentation(part)}\n"
            yield from _options(part)
        yield from _parts(part, behind, seen, f"{above}{name}.")


def _component(entry: Entry) -> Iterator[str]:
    """The documentation of a component; then its guarantees, its short form and its options."""
    cls = entry.options_class()
    yield f"{documentation(cls)}\n"
    if issubclass(cls, SourceOptions) and cls.guarantees:
        yield f"Guarantees: {', '.join(sorted(cls.guarantees))}.\n"
    if cls.bare is not None:
        option = next(described(f) for f in dataclasses.fields(cls) if f.name == cls.bare)
        if get_origin(get_type_hints(cls)[cls.bare]) is Mapping:
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


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip("\n") + "\n"
