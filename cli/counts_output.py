"""What became of the last events of tasks, for people."""

from __future__ import annotations

import click

from cli.output import show_table
from flumeng.control.queries import moments
from flumeng.control.queries.task_counts import TaskCounts, TaskCountsRow

SHOWN = ("processed", "dropped", "parse_errors", "dead_letters")


def show_counts(found: TaskCounts) -> None:
    """Nothing when no task has counted yet."""
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
