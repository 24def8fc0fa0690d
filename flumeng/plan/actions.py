"""What the planner decides: frozen actions, each with its reasons.

An action says which versions it was decided on; carrying it out is a compare-and-set on those, so
of any number of masters that decide at once one wins each step and the others look again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flumeng.store import Check, Expected, Put, Version, Write
from zkschema import paths
from zkschema.records import Assignment, Plan


@dataclass(frozen=True)
class Replan:
    """Give a flow's tasks new owners or new partitions; only as long as the flow is unchanged."""

    flow: str
    flow_version: Version
    plan: Plan
    expect: Expected
    why: tuple[str, ...]

    @property
    def version_after(self) -> Version:
        return _after(self.expect)

    def writes(self) -> Sequence[Write]:
        return [
            Check(paths.flow(self.flow), self.flow_version),
            Put(paths.plan(self.flow), self.plan, self.expect),
        ]


@dataclass(frozen=True)
class Assign:
    """Push a node its configuration; only as long as the plans it derives from are unchanged."""

    node: str
    assignment: Assignment
    expect: Expected
    plans: tuple[tuple[str, Version], ...]
    why: tuple[str, ...]

    @property
    def version_after(self) -> Version:
        return _after(self.expect)

    def writes(self) -> Sequence[Write]:
        checks = [Check(paths.plan(flow), version) for flow, version in self.plans]
        return [*checks, Put(paths.assignment(self.node), self.assignment, self.expect)]


@dataclass(frozen=True)
class Drop:
    """Remove all of a deleted flow's znodes; nothing of it runs and nothing waits any more."""

    flow: str
    why: tuple[str, ...]


Action = Replan | Assign | Drop


def _after(expect: Expected) -> Version:
    """A znode starts at version 0, and each write raises it by one."""
    return Version(expect.number + 1 if isinstance(expect, Version) else 0)
