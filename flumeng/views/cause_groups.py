"""Causes of trouble for people to read: tasks with the same trouble are told once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

NAMED = 3
"""So many tasks are named of those with the same trouble."""
TASK = "task "


def grouped(causes: Iterable[Mapping[str, str]]) -> list[tuple[str, str]]:
    """What there is and what to do, in the order of ``causes``, as ``health.status`` gives them."""
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
