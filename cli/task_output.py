"""Output about tasks: endings, event counts and previews."""

from __future__ import annotations

from collections.abc import Sequence

import click

from cli.output import show_json, show_table
from flumeng.control.commands.preview import Preview
from flumeng.control.queries import moments
from flumeng.control.queries.task_counts import TaskCounts, TaskCountsRow
from flumeng.control.queries.task_status import EndedRow

SHOWN = ("processed", "dropped", "parse_errors", "dead_letters")


def show_counts(found: TaskCounts) -> None:
    for node in found.silent:
        click.echo(f"flumeng: node {node} does not say what became of events", err=True)
    if not found.rows:
        return
    click.echo("\nevents in the last 1, 5 and 15 minutes:")
    show_table(
        ("TASK", *(name.upper().replace("_", " ") for name in SHOWN), "COUNTED SINCE (UTC)"),
        (
            (row.task, *(_windows(row, name) for name in SHOWN), moments.utc(row.since))
            for row in found.rows
        ),
    )


def _windows(row: TaskCountsRow, name: str) -> str | None:
    counted = row.counts.get(name)
    return None if counted is None else " / ".join(map(str, counted.values()))


def show_ended(rows: Sequence[EndedRow], *, as_json: bool = False) -> None:
    """The newest last."""
    if as_json:
        show_json(list(rows))
        return
    show_table(
        ("TIME", "TASK", "NODE", "EPOCH", "ENDED", "WHY"),
        ((moments.utc(e.time), e.key, e.node, e.epoch, e.how, e.why) for e in rows),
    )


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
