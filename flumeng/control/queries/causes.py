"""Causes of a degraded cluster, and those of unreadable records. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from flumeng.control.zookeeper import Unreadable
from zkschema import paths
from zkschema.records import Record
from zkschema.table import Row


@dataclass(frozen=True)
class Cause:
    """A reason for a degraded cluster. ``about`` identifies it across queries."""

    what: str
    advice: str
    about: str = ""

    @property
    def identity(self) -> str:
        return self.about or self.what


FLOW_STAYS = "masters leave the flow's tasks as they are"
MEANINGS: dict[str, str] = {
    paths.schema.pattern: "nothing is planned, and no command changes anything",
    paths.cluster.pattern: "nothing moves, and chokes stay as nodes were told",
    paths.moves.pattern: "no move begins that a throttle bounds",
    paths.flow.pattern: FLOW_STAYS,
    paths.revision.pattern: "nodes cannot start it, and masters change nothing of the flow",
    paths.partitions.pattern: FLOW_STAYS,
    paths.partitions_bucket.pattern: FLOW_STAYS,
    paths.plan.pattern: FLOW_STAYS,
    paths.plan_bucket.pattern: FLOW_STAYS,
    paths.ack.pattern: "its journal is kept, and is not taken for delivered",
    paths.node.pattern: "the node keeps what it has and gets nothing new",
    paths.assignment.pattern: "the node keeps what it has and gets nothing new",
    paths.status.pattern: "nobody knows what the node runs; it is taken to have let go of nothing",
    paths.live_node.pattern: "the node counts as live, and cannot be asked anything",
    paths.live_master.pattern: "it counts as a master that plans its share",
    paths.lease.pattern: "its cursor stays, and journals keep what it has not read",
    paths.journal.pattern: "the journal is kept, and is not taken for drained",
}
WORST = 20


def of_unreadable(found: Iterable[Unreadable]) -> Iterator[Cause]:
    """Ordered by kind, then by path."""
    kinds: dict[str, list[Unreadable]] = {}
    for one in sorted(found, key=lambda one: (one.path.row.pattern, str(one.path))):
        kinds.setdefault(one.path.row.pattern, []).append(one)
    for pattern, some in kinds.items():
        for one in some[:WORST]:
            yield Cause(
                f"{one.path} cannot be read: {one.why}; {meaning(one.path.row)}",
                advice(one),
                about=f"{one.path} cannot be read",
            )
        if len(some) > WORST:
            yield Cause(
                f"and {len(some) - WORST} more of {pattern} cannot be read",
                advice(some[-1]),
                about=f"more of {pattern} cannot be read",
            )


def meaning(row: Row[Record]) -> str:
    return MEANINGS.get(row.pattern, "nothing else is harmed")


def advice(one: Unreadable) -> str:
    if one.newer:
        return (
            "a newer flumeng wrote it: upgrade this one, and the masters and nodes that are older"
        )
    return "`flumeng schema verify` says what is wrong, and with --fix puts right what can be"


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
