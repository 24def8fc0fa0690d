"""What became of an event, filter by filter, for people or as a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from flumeng.agent.dryrun.explaining import Explained, ExplainedStep, Row


def show_explained(explained: Explained, *, as_json: bool) -> None:
    """One event."""
    if as_json:
        click.echo(json.dumps(_as_json(explained), ensure_ascii=False))
        return
    event = explained.event
    click.echo(f"event {event['seq']}: {_value(event.get('body', ''))}")
    for step in explained.steps:
        click.echo(f"{'  ' * (step.depth + 1)}{step.name}: {outcome(step)}")


def outcome(step: ExplainedStep) -> str:
    """What the step did, in a line."""
    if step.lost:
        return "makes rows of which nobody can tell the event"
    if not step.rows:
        why = ", ".join(f"{name} is {_value(value)}" for name, value in step.why.items())
        did = "not taken" if step.branch else "dropped"
        return f"{did}: {why}" if why else did
    if step.branch:
        return "taken"
    said = [", ".join(_changes(step.before, row)) or "kept" for row in step.rows]
    if len(said) == 1:
        return said[0]
    return f"made {len(said)} rows: " + "; ".join(said)


def _changes(before: Row, after: Row) -> Iterator[str]:
    for name, value in after.items():
        if name not in before:
            yield f"+{name}={_value(value)}"
        elif name == "attrs" and isinstance(value, dict):
            yield from _attributes(before["attrs"], value)
        elif value != before[name]:
            yield f"{name}={_value(value)} (was {_value(before[name])})"
    gone = [name for name in before if name not in after]
    if gone:
        yield f"-{' -'.join(gone)}"


def _attributes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name, value in after.items():
        if before.get(name) != value:
            yield f"+attrs.{name}={_value(value)}"


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _as_json(explained: Explained) -> dict[str, Any]:
    steps = [
        {
            "step": step.name,
            "depth": step.depth,
            "dropped": not step.rows and not step.lost,
            "lost": step.lost,
            "rows": step.rows,
            "why": step.why,
        }
        for step in explained.steps
    ]
    return {"event": explained.event, "steps": steps}
