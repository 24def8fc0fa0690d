"""How tasks have ended, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from cli.output import show_json, show_table
from flumeng.control.queries import moments
from flumeng.control.queries.task_status import EndedRow


def show_ended(rows: Sequence[EndedRow], *, as_json: bool = False) -> None:
    """The newest last."""
    if as_json:
        show_json(list(rows))
        return
    show_table(
        ("TIME", "TASK", "NODE", "EPOCH", "ENDED", "WHY"),
        ((moments.utc(e.time), e.key, e.node, e.epoch, e.how, e.why) for e in rows),
    )
