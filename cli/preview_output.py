"""How a preview looks: the moves as a table, then the planner's reasons."""

from __future__ import annotations

import click

from cli.output import show_json, show_table
from flumeng.control.commands.preview import Preview


def show_preview(found: Preview, *, as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    for sentence in found.left:
        click.echo(sentence)
    if not found.moves:
        click.echo("nothing would move")
        return
    show_table(
        ("TASK", "FROM", "TO", "WHAT"), ((m.task, m.before, m.after, m.what) for m in found.moves)
    )
    for reason in found.why:
        click.echo(f"- {reason}")
    if not found.complete:
        click.echo("this is not all: more would follow")
