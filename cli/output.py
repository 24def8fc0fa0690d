"""How answers look: a table for people on a terminal, tab-separated lines in a pipe, or JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table


def show_json(value: Any) -> None:
    """Dataclasses, and lists of them, become objects with their fields as keys."""
    click.echo(json.dumps(value, default=dataclasses.asdict, indent=2))


def show_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """In a pipe the first line holds the headers, and no cell holds a tab or a line break."""
    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415  slow to load, and only for people

        Console().print(make_table(headers, rows))
        return
    for line in ([*headers], *([_cell(value) for value in row] for row in rows)):
        click.echo("\t".join(line))


def make_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """For people."""
    from rich import box  # noqa: PLC0415  loads rich
    from rich.table import Table  # noqa: PLC0415  loads rich
    from rich.text import Text  # noqa: PLC0415  loads rich

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def count(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


@contextmanager
def progress(label: str, length: int) -> Iterator[Callable[[int], None]]:
    """Tell how many of ``length`` are done, and for how long it goes on: a terminal only. What is
    given is called with how many more are done."""
    if not sys.stderr.isatty():
        yield lambda _more: None
        return
    with click.progressbar(label=label, length=length, file=sys.stderr) as bar:
        yield bar.update


def _cell(value: object) -> str:
    if value is None or value in ("", (), {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return " ".join(str(value).split())
