"""``flumeng components``: the reference of sources, filters and sinks, in the terminal."""

from __future__ import annotations

import dataclasses

import click

from cli.lazy import first_sentence
from cli.options import json_option
from cli.output import show_json, show_rows, show_table
from flumeng.config import registry
from flumeng.control.queries import components as queries
from flumeng.control.queries.components import Section

HEADERS = ("OPTION", "VALUE", "DEFAULT", "MEANING")


@click.command()
@click.argument("name", required=False, metavar="[NAME]")
@json_option
def components(name: str | None, as_json: bool) -> None:
    """List all sources, filters and sinks, or show every option of those with one name.

    NAME is a name of that list, `flow` for the options of a flow itself, or one of its options that
    has options of its own, such as batch or multiline.
    """
    if name is None:
        show_rows(
            queries.components(),
            ("KIND", "NAME", "PACKAGE", "GUARANTEES", "PURPOSE"),
            lambda s: (s.kind, s.name, s.package, s.guarantees, first_sentence(s.doc)),
            as_json=as_json,
        )
        return
    sections = queries.sections(name)
    if as_json:
        show_json(sections)
        return
    for section in sections:
        _show(section)


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
