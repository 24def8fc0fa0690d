"""Output: a table on a terminal, tab-separated lines in a pipe, or JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.table import Table

R = TypeVar("R")


def show_json(value: Any) -> None:
    """Print a value as JSON; dataclasses become objects."""
    click.echo(json.dumps(value, default=dataclasses.asdict, indent=2))


def show_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; in a pipe as tab-separated lines, the headers first."""
    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415  slow to load, and only for people

        Console().print(make_table(headers, rows))
        return
    for line in ([*headers], *([_cell(value) for value in row] for row in rows)):
        click.echo("\t".join(line))


def show_rows(
    rows: Sequence[R],
    headers: Sequence[str],
    cells: Callable[[R], Sequence[object]],
    *,
    as_json: bool,
) -> None:
    if as_json:
        show_json(rows)
    else:
        show_table(headers, map(cells, rows))


def warn(sentence: object) -> None:
    click.echo(f"flumeng: {sentence}", err=True)


def make_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
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
    """Return a number with its noun: ``1 node``, ``2 nodes``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


@contextmanager
def progress(label: str, length: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; call the result with the number of newly done parts."""
    if not sys.stderr.isatty():
        yield lambda _more: None
        return
    with click.progressbar(label=label, length=length, file=sys.stderr) as bar:
        yield bar.update


@contextmanager
def moving_progress(label: str) -> Iterator[Callable[[str, int, int], None] | None]:
    """Show a progress bar whose total may grow; yield None without a terminal. Call the result with
    the noun, the number done, and the total."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars  # noqa: PLC0415  only for people
    from rich.console import Console  # noqa: PLC0415  only for people

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[what]}"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True)) as shown:
        bar = shown.add_task(label, total=None, what="")
        yield lambda what, done, total: shown.update(bar, what=what, completed=done, total=total)


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
