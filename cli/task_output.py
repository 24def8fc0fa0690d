"""Output about tasks: endings, event counts and previews."""

from __future__ import annotations

from collections.abc import Sequence

import click

from cli.output import show_json, show_rows, show_table, warn
from flumeng.control.commands.preview import Preview
from flumeng.control.queries import timestamps
from flumeng.control.queries.counters import TaskCounts, TaskCountsRow
from flumeng.control.queries.task_status import EndedRow, TaskRow

TASK_HEADERS = (
    "TASK", "KIND", "NODE", "STANDBYS", "EPOCH", "REVISION", "STATE", "PARTITIONS", "WHY",
)  # fmt: skip
SHOWN = ("processed", "dropped", "parse_errors", "dead_letters")


def task_cells(task: TaskRow) -> Sequence[object]:
    where = (task.kind, task.node, task.shown_standbys)
    return (*where, task.epoch, task.shown_revision, task.state)


def show_counts(counts: TaskCounts) -> None:
    for node in counts.silent:
        warn(f"node {node} reports no event counts")
    if not counts.rows:
        return
    click.echo("\nevents in the last 1, 5 and 15 minutes:")
    show_table(
        ("TASK", *(name.upper().replace("_", " ") for name in SHOWN), "COUNTED SINCE (UTC)"),
        (
            (row.task, *(_windows(row, name) for name in SHOWN), timestamps.utc(row.since))
            for row in counts.rows
        ),
    )


def _windows(row: TaskCountsRow, name: str) -> str | None:
    counted = row.counts.get(name)
    return None if counted is None else " / ".join(map(str, counted.values()))


def show_ended(rows: Sequence[EndedRow], *, as_json: bool = False) -> None:
    show_rows(
        rows,
        ("TIME", "TASK", "NODE", "EPOCH", "ENDED", "WHY"),
        lambda row: (timestamps.utc(row.time), row.key, row.node, row.epoch, row.how, row.why),
        as_json=as_json,
    )


def show_preview(planned: Preview, *, as_json: bool) -> None:
    if as_json:
        show_json(planned)
        return
    for sentence in planned.left:
        click.echo(sentence)
    if not planned.moves:
        click.echo("nothing would move")
        return
    show_table(
        ("TASK", "FROM", "TO", "WHAT"), ((m.task, m.before, m.after, m.what) for m in planned.moves)
    )
    for reason in planned.why:
        click.echo(f"- {reason}")
    if not planned.complete:
        click.echo("this preview is incomplete: more would follow")
