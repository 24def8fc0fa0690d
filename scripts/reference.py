"""Reference pages of flows and components, from the option classes and the connectors' READMEs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from flumeng.config import registry
from flumeng.config.component import OutsideJournal, SourceOptions
from flumeng.config.flow import FlowSpec
from flumeng.config.option_docs import documentation, nested_options, option_rows
from flumeng.config.registry import Entry
from flumeng.platform.options.option import described

CONNECTORS = Path(__file__).parent.parent / "flumeng" / "connectors"
FOLDER = "flumeng.connectors."
DEVELOPERS = "\n## In this folder\n"
"""The heading of the part of a README that is for who changes the code, and on no page."""
VALUES = """\
Sizes are written as `64 KiB` or `1 MiB` (or `KB`, `MB`), durations as `250 ms`, `10 s` or `5 min`;
a bare number means bytes or seconds.
"""


def connectors() -> dict[str, tuple[str, str]]:
    """The title and the text of the page of each connector that has components, by its folder."""
    pages = {}
    for folder, entries in sorted(_by_folder().items()):
        readme = (CONNECTORS / folder / "README.md").read_text().partition(DEVELOPERS)[0]
        title, _, text = readme.removeprefix("# ").partition("\n")
        parts = [_on_page(text.strip("\n")), "", "## Options\n", VALUES]
        seen: set[type[Any]] = set()
        for entry in entries:
            parts += _with_parts(entry, seen)
        pages[folder] = title, _joined(parts)
    return pages


def flow() -> str:
    """The options of a flow itself."""
    return _joined([VALUES, *_options(FlowSpec), *_parts(FlowSpec, "", {FlowSpec})])


def filters() -> str:
    """The options of all filters."""
    seen: set[type[Any]] = {FlowSpec}
    entries = (entry for entry in registry.entries("filter") if entry.distribution == registry.OWN)
    return _joined([VALUES, *(line for entry in entries for line in _with_parts(entry, seen))])


def index() -> str:
    """All components, each with its page."""
    lines = ["| | name | what it is |", "|---|---|---|"]
    for entry in registry.all_entries():
        if entry.distribution != registry.OWN:
            continue
        folder = _folder(entry)
        page = f"connectors/{folder}.md" if folder else "filters.md"
        anchor = f"options-of-{entry.kind}-{entry.name}"
        purpose = documentation(entry.options_class()).partition("\n\n")[0].replace("\n", " ")
        purpose = purpose.replace("|", "\\|")
        lines.append(f"| {entry.kind} | [`{entry.name}`]({page}#{anchor}) | {purpose} |")
    head = "The options of a flow itself are on [a page of their own](flow.md).\n"
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


def _on_page(readme: str) -> str:
    """The text with its links as they are from the page of a connector in docs/reference."""
    text = re.sub(r"\]\(\.\./(\w+)/README\.md", r"](\1.md", readme)
    return text.replace("](../../../docs/", "](../../")


def _with_parts(entry: Entry, seen: set[type[Any]]) -> Iterator[str]:
    yield from _component(entry)
    yield from _parts(entry.options_class(), f" of {entry.name}", seen)


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
    cls = entry.options_class()
    yield f"### Options of {entry.kind} `{entry.name}`\n"
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
