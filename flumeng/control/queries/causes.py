"""Causes of a degraded cluster; those of unreadable records are derived here. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from flumeng.control.zookeeper import Unreadable
from zkschema import paths
from zkschema.records import Record
from zkschema.table import Row


@dataclass(frozen=True)
class Cause:
    """A reason for a degraded cluster. ``about``, if given, identifies it across queries."""

    what: str
    advice: str
    about: str = ""

    @property
    def identity(self) -> str:
        return self.about or self.what


FLOW_STAYS = "masters leave the flow's tasks as they are"
MEANINGS: dict[str, str] = {
    paths.schema.pattern: "nothing is planned, and no command changes anything",
    paths.cluster.pattern: "no task moves, and nodes keep their rate limits (chokes)",
    paths.moves.pattern: "no throttled move begins",
    paths.flow.pattern: FLOW_STAYS,
    paths.revision.pattern: f"nodes cannot start this revision, and {FLOW_STAYS}",
    paths.partitions.pattern: FLOW_STAYS,
    paths.partitions_bucket.pattern: FLOW_STAYS,
    paths.plan.pattern: FLOW_STAYS,
    paths.plan_bucket.pattern: FLOW_STAYS,
    paths.ack.pattern: "its journal is kept and does not count as delivered",
    paths.node.pattern: "the node keeps its tasks and gets no new ones",
    paths.assignment.pattern: "the node keeps its tasks and gets no new ones",
    paths.status.pattern: "the node's tasks are unknown; masters assume that it still runs all",
    paths.live_node.pattern: "the node counts as live but cannot be queried",
    paths.live_master.pattern: "the master counts as live and keeps its share of the flows",
    paths.lease.pattern: "the cursor stays, and journals keep its unread events",
    paths.site.pattern: "flows that read this site wait",
    paths.link.pattern: "the link of the flow to another site is not reported",
    paths.breaks.pattern: "events that other sites have lost are not reported",
    paths.journal.pattern: "the journal is kept and does not count as drained",
}
WORST = 20


def of_unreadable(records: Iterable[Unreadable]) -> Iterator[Cause]:
    """Yield the causes of unreadable records by kind, then path; ``WORST`` of a kind are named."""
    kinds: dict[str, list[Unreadable]] = {}
    for record in sorted(records, key=lambda record: (record.path.row.pattern, str(record.path))):
        kinds.setdefault(record.path.row.pattern, []).append(record)
    for pattern, some in kinds.items():
        for record in some[:WORST]:
            yield Cause(
                f"{record.path} cannot be read: {record.why}; {meaning(record.path.row)}",
                advice(record),
                about=f"{record.path} cannot be read",
            )
        if len(some) > WORST:
            yield Cause(
                f"and {len(some) - WORST} more of {pattern} cannot be read",
                advice(some[-1]),
                about=f"more of {pattern} cannot be read",
            )


def meaning(row: Row[Record]) -> str:
    return MEANINGS.get(row.pattern, "nothing else is affected")


def advice(record: Unreadable) -> str:
    if record.newer:
        return "written by a newer flumeng: upgrade this one, and all older masters and nodes"
    return "`flumeng schema verify` shows the fault, and repairs it with --fix where possible"


NAMED = 3
TASK = "task "


def grouped(causes: Iterable[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return problems and advice, in the order of ``causes``; tasks with equal ones are joined."""
    groups: dict[tuple[str, str], list[str]] = {}
    for cause in causes:
        subject = cause["about"] if cause["about"].startswith(TASK) else ""
        trouble = cause["what"].removeprefix(subject)
        if trouble == cause["what"] or not trouble.startswith(" is "):
            subject, trouble = "", cause["what"]
        groups.setdefault((trouble, cause["advice"]), []).append(subject.removeprefix(TASK))
    return [(_problem_of(trouble, tasks), advice) for (trouble, advice), tasks in groups.items()]


def _problem_of(trouble: str, tasks: list[str]) -> str:
    if len(tasks) == 1:
        return f"{TASK}{tasks[0]}{trouble}" if tasks[0] else trouble
    if not tasks[0]:
        return trouble
    others = len(tasks) - NAMED
    named = ", ".join(tasks[:NAMED]) + (f" and {others} more" if others > 0 else "")
    return f"{len(tasks)} tasks are {trouble.removeprefix(' is ')} ({named})"
