"""``flumeng components``: the reference of sources, filters and sinks, in the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from cli.lazy import first_sentence
from cli.options import json_option
from cli.output import show_json, show_table
from flumeng.config import registry
from flumeng.config.component import SourceOptions
from flumeng.config.flow import FlowSpec
from flumeng.config.option_docs import OptionRow, documentation, nested_options, option_rows
from flumeng.platform.errors import UserError
from flumeng.platform.options.problems import nearest

HEADERS = ("OPTION", "VALUE", "DEFAULT", "MEANING")


@dataclass(frozen=True)
class Section:
    kind: str
    name: str
    package: str
    guarantees: tuple[str, ...]
    doc: str
    options: tuple[OptionRow, ...]


@click.command()
@click.argument("name", required=False, metavar="[NAME]")
@json_option
def components(name: str | None, as_json: bool) -> None:
    """List all sources, filters and sinks, or show every option of those with one name.

    NAME is a name of that list, `flow` for the options of a flow itself, or one of its options that
    has options of its own, such as batch or multiline.
    """
    if name is None:
        sections = list(_components())
        if as_json:
            show_json(sections)
        else:
            show_table(
                ("KIND", "NAME", "PACKAGE", "GUARANTEES", "PURPOSE"),
                (
                    (s.kind, s.name, s.package, s.guarantees, first_sentence(s.doc))
                    for s in sections
                ),
            )
        return
    sections = list(_named(name))
    if not sections:
        names = [s.name for s in (*_components(), *_flow_sections())]
        raise UserError(
            f'there is no source, filter, sink or option of a flow named "{name}"; '
            f"{nearest(name, names)}"
        )
    if as_json:
        show_json(sections)
        return
    for section in sections:
        _show(section)


def _named(name: str) -> Iterator[Section]:
    for entry in registry.all_entries():
        if entry.name == name:
            if fault := entry.fault():
                raise UserError(fault)
            yield from _sections(entry.kind, name, entry.distribution, entry.options_class())
    for section in _flow_sections():
        if section.name == name or section.name.startswith(f"{name}."):
            yield section


def _components() -> Iterator[Section]:
    for entry in registry.all_entries():
        if fault := entry.fault():
            yield Section(entry.kind, entry.name, entry.distribution, (), f"BROKEN: {fault}.", ())
        else:
            yield _section(entry.kind, entry.name, entry.distribution, entry.options_class())


def _flow_sections() -> Iterator[Section]:
    yield _section("flow", "flow", registry.OWN, FlowSpec)
    for option, cls in nested_options(FlowSpec):
        yield from _sections("option", option, registry.OWN, cls)


def _sections(
    kind: str, name: str, package: str, cls: type[Any], above: tuple[type[Any], ...] = ()
) -> Iterator[Section]:
    """Yield the sections of a class and, by path, of nested option classes that do not recur."""
    yield _section(kind, name, package, cls)
    for option, nested in nested_options(cls):
        if nested not in (cls, *above):
            yield from _sections("option", f"{name}.{option}", package, nested, above=(cls, *above))


def _section(kind: str, name: str, package: str, cls: type[Any]) -> Section:
    guarantees = tuple(sorted(cls.guarantees)) if issubclass(cls, SourceOptions) else ()
    options = tuple(option_rows(cls))
    return Section(kind, name, package, guarantees, documentation(cls), options)


def _show(section: Section) -> None:
    package = "" if section.package == registry.OWN else f", of the package {section.package}"
    click.secho(f"{section.kind} {section.name}{package}", bold=True)
    click.echo(f"{section.doc}\n")
    if section.guarantees:
        click.echo(f"Guarantees: {', '.join(section.guarantees)}.\n")
    if section.options:
        rows = (dataclasses.astuple(row) for row in section.options)
        show_table(HEADERS, ([cell.replace("`", "") for cell in row] for row in rows))
        click.echo()
