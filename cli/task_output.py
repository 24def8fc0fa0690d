"""Output about tasks: endings, event counts and previews."""

from __future__ import annotations

from collections.abc import Sequence

import click

from cli.output import show_json, show_rows, show_table, warn
from flumeng.control.commands.preview import Preview
from flumeng.control.queries import moments
from flumeng.control.queries.counters import TaskCounts, TaskCountsRow
from flumeng.control.queries.task_status import EndedRow, TaskRow

TASK_HEADERS = (
    "TASK", "KIND", "NODE", "STANDBYS", "EPOCH", "REVISION", "STATE", "PARTITIONS", "WHY",
)  # fmt: skip
SHOWN = ("processed", "dropped", "parse_errors", "dead_letters")


def task_cells(task: TaskRow) -> Sequence[object]:
    where = (task.kind, task.node, task.shown_standbys)
    return (*where, task.epoch, task.shown_revision, task.state)


def show_counts(found: TaskCounts) -> None:
    for node in found.silent:
        warn(f"node {node} does not say what became of events")
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
    show_rows(
        rows,
        ("TIME", "TASK", "NODE", "EPOCH", "ENDED", "WHY"),
        lambda row: (moments.utc(row.time), row.key, row.node, row.epoch, row.how, row.why),
        as_json=as_json,
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
