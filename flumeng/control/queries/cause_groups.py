"""Groups the problems of ``flumeng status``: tasks with the same problem share one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

NAMED = 3
TASK = "task "


def grouped(causes: Iterable[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Problems with their advice, in the order of the ``causes`` of ``health.status``."""
    groups: dict[tuple[str, str], list[str]] = {}
    for cause in causes:
        subject = cause["about"] if cause["about"].startswith(TASK) else ""
        trouble = cause["what"].removeprefix(subject)
        if trouble == cause["what"] or not trouble.startswith(" is "):
            subject, trouble = "", cause["what"]
        groups.setdefault((trouble, cause["advice"]), []).append(subject.removeprefix(TASK))
    return [(_told(trouble, tasks), advice) for (trouble, advice), tasks in groups.items()]


def _told(trouble: str, tasks: list[str]) -> str:
    if len(tasks) == 1:
        return f"{TASK}{tasks[0]}{trouble}" if tasks[0] else trouble
    if not tasks[0]:
        return trouble
    others = len(tasks) - NAMED
    named = ", ".join(tasks[:NAMED]) + (f" and {others} more" if others > 0 else "")
    return f"{len(tasks)} tasks are {trouble.removeprefix(' is ')} ({named})"
