"""What a master sees at one moment: a frozen picture of the cluster, and nothing it remembers.

Pure. The versions in it are those that the writes of a plan expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from flumeng.spec import Place
from flumeng.store import ABSENT, Expected, Version
from zkschema.records import Assignment, Flow, Journal, Node, NodeStatus, Plan


@dataclass(frozen=True)
class FlowView:
    """One flow. ``place`` is None when its current revision does not parse: see ``problem``."""

    name: str
    record: Flow
    version: Version
    place: Place | None
    problem: str = ""
    plan: Plan = field(default_factory=Plan)
    plan_version: Expected = ABSENT


@dataclass(frozen=True)
class NodeView:
    """One registered node. ``gone_seconds``: since when the master misses it, 0 when live."""

    name: str
    record: Node
    live: bool
    gone_seconds: float = 0.0
    assignment: Assignment = field(default_factory=Assignment)
    assignment_version: Expected = ABSENT
    status: NodeStatus | None = None

    def eligible(self, role: str, labels: Mapping[str, str]) -> bool:
        """Whether work of this role may be placed here, live or not."""
        return (
            role in self.record.roles
            and self.record.desired == "active"
            and all(self.record.labels.get(key) == value for key, value in labels.items())
        )

    def has_let_go(self, flow: str, task: str) -> bool:
        """Whether the node was told to drain the task, knows it, and does not have it any more."""
        if self.status is None or not isinstance(self.assignment_version, Version):
            return False
        told = any(
            (assigned.flow, assigned.task, assigned.state) == (flow, task, "draining")
            for assigned in self.assignment.tasks
        )
        seen = self.status.assignment_version == self.assignment_version.number
        return told and seen and f"{flow}/{task}" not in self.status.tasks


@dataclass(frozen=True)
class Snapshot:
    """``drained`` names the journals that are closed with every event acked.

    ``committing`` names the flows that are to end but have sink commits in progress: their acks are
    ahead of what is visible. ``mine`` names the flows that this master looks after; the others'
    tasks are left as they are. ``draining_seconds`` says for how long the master has seen a task
    (``flow/task``) drain; past ``drain_limit_seconds`` it is taken away. ``balance_moves`` may be
    under way at once.
    """

    flows: Mapping[str, FlowView]
    nodes: Mapping[str, NodeView]
    journals: Mapping[str, Journal]
    drained: frozenset[str]
    mine: frozenset[str]
    committing: frozenset[str] = frozenset()
    grace_seconds: float = 0.0
    draining_seconds: Mapping[str, float] = field(default_factory=dict)
    drain_limit_seconds: float = 60.0
    balance_moves: int = 1

    def journals_of(self, flow: str) -> list[str]:
        """The registered journals of a flow."""
        return self._journals_by_flow.get(flow, [])

    @cached_property
    def _journals_by_flow(self) -> dict[str, list[str]]:
        by_flow: dict[str, list[str]] = {}
        for name, journal in self.journals.items():
            by_flow.setdefault(journal.flow, []).append(name)
        return by_flow
