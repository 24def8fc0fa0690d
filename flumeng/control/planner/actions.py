"""The planner's actions: frozen, each with its reasons. Each but Drop is a compare-and-set on the
versions it expects, so that only one of several masters carries out each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from flumeng.control.snapshot.assignment_pages import assignment_writes
from flumeng.control.snapshot.snapshot import IntentView
from flumeng.control.snapshot.task_map import Tasks, next_version, plan_writes
from flumeng.control.zookeeper import ABSENT, Check, Expected, Put, Version, Write
from zkschema import paths
from zkschema.records import Assignment, Audit, Cluster, Flow, Intent, Journal, Moves, Node, Plan


@dataclass(frozen=True)
class Fence:
    """Raises the lowest epoch under which a task may decide batches, to ``epoch``: its owner may
    not know yet that it lost partitions. ``seen``: the last decided batch, fully acked."""

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


class _Written:
    """An action that writes a znode at the version ``expect``."""

    expect: Any

    @property
    def version_after(self) -> Version:
        return next_version(self.expect)


@dataclass(frozen=True)
class Replan(_Written):
    """Writes a flow's plan. ``before``: tasks at version ``expect``; ``losers``: nodes that lose
    tasks to others, with assignment versions; ``throttled``: begins throttled moves."""

    flow: str
    flow_version: Version
    plan: Plan
    before: Tasks
    expect: Expected
    losers: tuple[tuple[str, Version], ...]
    why: tuple[str, ...]
    fences: tuple[Fence, ...] = ()
    throttled: bool = False

    def writes(self, moves: Expected | None = None) -> Sequence[Write]:
        """Return the writes. ``moves``: for a throttled plan the expected version of ``/moves``."""
        return [
            *([Put(paths.moves(), Moves(flow=self.flow), moves)] if moves is not None else []),
            Check(paths.flow(self.flow), self.flow_version),
            *(Check(paths.assignment(node), version) for node, version in self.losers),
            *(fence.write(self.flow) for fence in self.fences),
            *plan_writes(self.flow, self.plan, self.before, self.expect),
        ]


@dataclass(frozen=True)
class Assign(_Written):
    """Writes a node's assignment, derived from ``plans``. ``gives``: it takes no task away."""

    node: str
    assignment: Assignment
    before: Assignment
    expect: Expected
    plans: tuple[tuple[str, Version], ...]
    gives: bool
    why: tuple[str, ...]

    def writes(self) -> Sequence[Write]:
        checks = [Check(paths.plan(flow), version) for flow, version in self.plans]
        return [*checks, *assignment_writes(self.node, self.assignment, self.before, self.expect)]


@dataclass(frozen=True)
class Revert(_Written):
    """Ends a rollout by restoring the previous revision."""

    flow: str
    record: Flow
    expect: Version
    audit: Audit
    why: tuple[str, ...]

    def writes(self) -> Sequence[Write]:
        entry = self.audit.name(f"{self.flow}@{self.expect.number}")
        return [
            Put(paths.flow(self.flow), self.record, self.expect),
            Put(paths.audit(entry), self.audit, ABSENT),
        ]


@dataclass(frozen=True)
class Maintain(_Written):
    cluster: Cluster
    expect: Version
    why: tuple[str, ...]

    def writes(self) -> Sequence[Write]:
        return [Put(paths.cluster(), self.cluster, self.expect)]


@dataclass(frozen=True)
class MarkDown(_Written):
    node: str
    record: Node
    expect: Version
    why: tuple[str, ...]

    def writes(self) -> Sequence[Write]:
        return [Put(paths.node(self.node), self.record, self.expect)]


@dataclass(frozen=True)
class Forget:
    node: str
    expect: Version
    why: tuple[str, ...]


@dataclass(frozen=True)
class Drop:
    flow: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class Release:
    flow: str
    cursor: str
    expect: Version
    why: tuple[str, ...]


@dataclass(frozen=True)
class Replicate(_Written):
    journal: str
    record: Journal
    expect: Version
    why: tuple[str, ...]

    def writes(self) -> Sequence[Write]:
        return [Put(paths.journal(self.journal), self.record, self.expect)]


Action = Replan | Assign | Revert | Maintain | MarkDown | Forget | Drop | Release | Replicate


def together(actions: Sequence[Action]) -> list[Sequence[Action]]:
    """Group actions, in order, into lists whose actions may run concurrently, even if some fail."""
    groups = groupby(enumerate(actions), key=lambda item: _kind(*item))
    return [[action for _, action in group] for _, group in groups]


def _kind(position: int, action: Action) -> str | int:
    if isinstance(action, Assign):
        return "gives" if action.gives else "takes"
    if isinstance(action, MarkDown):
        return "marks"
    if isinstance(action, Replicate):
        return "journals"
    return position
