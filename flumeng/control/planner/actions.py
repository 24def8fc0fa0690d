"""What the planner decides: frozen actions, each with its reasons.

An action says which versions it was decided on; carrying it out is a compare-and-set on those, so
of any number of masters that decide at once one wins each step and the others look again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from flumeng.control.snapshot.assignment_pages import assignment_writes
from flumeng.control.snapshot.snapshot import IntentView
from flumeng.control.snapshot.task_map import Tasks, next_version, plan_writes
from flumeng.control.zookeeper import ABSENT, Check, Expected, Put, Version, Write
from zkschema import paths
from zkschema.records import Assignment, Audit, Cluster, Flow, Intent, Journal, Moves, Node, Plan


@dataclass(frozen=True)
class Fence:
    """From now on nobody with an epoch below ``epoch`` decides a batch of the task.

    Its owner may not have heard yet that partitions have left it, and could decide a batch that
    reads them. ``seen`` is what it has decided last, of which all is acked.
    """

    task: str
    epoch: int
    seen: IntentView

    @property
    def record(self) -> Intent:
        assert self.seen.record is not None
        assert not self.seen.open, f"{self.task} has a batch that is not acked"
        return replace(self.seen.record, epoch=self.epoch)

    def write(self, flow: str) -> Write:
        return Put(paths.intent(flow, self.task), self.record, self.seen.version)


@dataclass(frozen=True)
class Replan:
    """Give a flow's tasks new owners or new partitions; only as long as the flow is unchanged, and
    what the owners that lose tasks were told.

    ``before`` are the tasks as they were at ``expect``. ``told`` are the versions of those owners'
    assignments: another master may be telling them of what was planned last, and whoever does not
    see that would give to others what he has not taken from them. ``fences`` are those of tasks
    that lose partitions. ``throttled``: it begins moves that a throttle of the cluster bounds.
    """

    flow: str
    flow_version: Version
    plan: Plan
    before: Tasks
    expect: Expected
    told: tuple[tuple[str, Version], ...]
    why: tuple[str, ...]
    fences: tuple[Fence, ...] = ()
    throttled: bool = False

    @property
    def version_after(self) -> Version:
        return next_version(self.expect)

    def writes(self, moves: Expected | None = None) -> Sequence[Write]:
        """``moves`` is the version of ``/moves`` that a throttled plan expects."""
        return [
            *([Put(paths.moves(), Moves(flow=self.flow), moves)] if moves is not None else []),
            Check(paths.flow(self.flow), self.flow_version),
            *(Check(paths.assignment(node), version) for node, version in self.told),
            *(fence.write(self.flow) for fence in self.fences),
            *plan_writes(self.flow, self.plan, self.before, self.expect),
        ]


@dataclass(frozen=True)
class Assign:
    """Push a node its configuration; only as long as the plans it derives from are unchanged.

    ``before`` is the assignment as it was at ``expect``. ``gives``: the node loses no task by it.
    """

    node: str
    assignment: Assignment
    before: Assignment
    expect: Expected
    plans: tuple[tuple[str, Version], ...]
    gives: bool
    why: tuple[str, ...]

    @property
    def version_after(self) -> Version:
        return next_version(self.expect)

    def writes(self) -> Sequence[Write]:
        checks = [Check(paths.plan(flow), version) for flow, version in self.plans]
        return [
            *checks,
            *assignment_writes(self.node, self.assignment, self.before, self.expect),
        ]


@dataclass(frozen=True)
class Revert:
    """End a rollout: the flow's current revision is again the one that its tasks ran before."""

    flow: str
    record: Flow
    expect: Version
    audit: Audit
    why: tuple[str, ...]

    @property
    def version_after(self) -> Version:
        return next_version(self.expect)

    def writes(self) -> Sequence[Write]:
        entry = self.audit.name(f"{self.flow}@{self.expect.number}")
        return [
            Put(paths.flow(self.flow), self.record, self.expect),
            Put(paths.audit(entry), self.audit, ABSENT),
        ]


@dataclass(frozen=True)
class Maintain:
    """Begin or end the cluster's maintenance mode."""

    cluster: Cluster
    expect: Version
    why: tuple[str, ...]

    @property
    def version_after(self) -> Version:
        return next_version(self.expect)

    def writes(self) -> Sequence[Write]:
        return [Put(paths.cluster(), self.cluster, self.expect)]


@dataclass(frozen=True)
class MarkAway:
    """Write into a node's record since when it is away, or that it is back."""

    node: str
    record: Node
    expect: Version
    why: tuple[str, ...]

    @property
    def version_after(self) -> Version:
        return next_version(self.expect)

    def writes(self) -> Sequence[Write]:
        return [Put(paths.node(self.node), self.record, self.expect)]


@dataclass(frozen=True)
class Forget:
    """Remove a node that is away for good, with all of its znodes; nothing is left on it."""

    node: str
    expect: Version
    why: tuple[str, ...]


@dataclass(frozen=True)
class Drop:
    """Remove all of a deleted flow's znodes; nothing of it runs and nothing waits any more."""

    flow: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class Release:
    """Remove a cursor whose lease has run out: journals keep nothing for it any more."""

    flow: str
    cursor: str
    expect: Version
    why: tuple[str, ...]


@dataclass(frozen=True)
class Replicate:
    """Write down who is to hold a journal, or who leads it."""

    journal: str
    record: Journal
    expect: Version
    why: tuple[str, ...]

    @property
    def version_after(self) -> Version:
        return next_version(self.expect)

    def writes(self) -> Sequence[Write]:
        return [Put(paths.journal(self.journal), self.record, self.expect)]


Action = Replan | Assign | Revert | Maintain | MarkAway | Forget | Drop | Release | Replicate


def together(actions: Sequence[Action]) -> list[Sequence[Action]]:
    """The actions in order, those in one list that may be carried out without waiting for each
    other: whichever of them fail, the others are legal.

    These are assignments of different nodes, all that take before those that give, and what is
    written of nodes that are away and of journals.
    """
    groups = groupby(enumerate(actions), key=lambda item: _kind(*item))
    return [[action for _, action in group] for _, group in groups]


def _kind(place: int, action: Action) -> str | int:
    if isinstance(action, Assign):
        return "gives" if action.gives else "takes"
    if isinstance(action, MarkAway):
        return "marks"
    if isinstance(action, Replicate):
        return "journals"
    return place
