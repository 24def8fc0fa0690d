"""Carrying out what was planned, flow by flow and node by node.

A write that is refused ends the change of its flow, or of its node, in this tick, and nothing else.
What depends on it is not tried: a node is not given a task that another could not be told to give
up, nor told of a plan that was not written (which its version check would refuse anyway).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flumeng.errors import ConflictError, ForbiddenError, UserError
from flumeng.master.removals import Removals
from flumeng.plan import (
    Action,
    Assign,
    Drop,
    Forget,
    Maintain,
    MarkAway,
    Release,
    Replan,
    Replicate,
    Revert,
    together,
)
from flumeng.plan.placement_index import STANDBY
from flumeng.state.snapshot import Snapshot
from flumeng.store import Refused, Store
from zkschema.records import AssignedTask

Key = tuple[str, str]
Written = Replan | Assign | Revert | Maintain | MarkAway | Replicate


@dataclass
class Outcome:
    """``done`` was carried out. ``flows``, ``nodes`` and ``journals`` are those of which something
    was refused; ``cluster`` says why the cluster's mode could not be changed. ``unfinished``: some
    removal continues in the next tick."""

    done: list[Action] = field(default_factory=list)
    flows: dict[str, ConflictError | UserError | ForbiddenError] = field(default_factory=dict)
    nodes: dict[str, ConflictError | UserError | ForbiddenError] = field(default_factory=dict)
    journals: dict[str, ConflictError | UserError | ForbiddenError] = field(default_factory=dict)
    cluster: Refused = None
    unfinished: bool = False

    def refuse(
        self,
        action: Replan | Assign | Revert | MarkAway | Forget | Drop | Replicate,
        why: ConflictError | UserError | ForbiddenError,
    ) -> None:
        if isinstance(action, Assign | MarkAway | Forget):
            self.nodes[action.node] = why
        elif isinstance(action, Replicate):
            self.journals[action.journal] = why
        else:
            self.flows[action.flow] = why

    @property
    def conflicts(self) -> list[ConflictError]:
        """What somebody else has changed meanwhile."""
        every = (*self.flows.values(), *self.nodes.values(), *self.journals.values(), self.cluster)
        return [error for error in every if isinstance(error, ConflictError)]


def carry_out(
    store: Store,
    actions: Sequence[Action],
    snapshot: Snapshot,
    removals: Removals | None = None,
    on_progress: Callable[[], None] = lambda: None,
) -> Outcome:
    """All that is not refused, in the order that keeps every moment between legal.

    ``removals`` continues what earlier ticks began to remove. ``on_progress`` is called after each
    group of writes.

    Raises UnavailableError; then nobody knows what was done.
    """
    outcome = Outcome()
    removals = removals or Removals(store)
    removals.next_tick()
    kept: set[Key] = set()
    for group in together(actions):
        ready: list[Written] = []
        for action in group:
            if isinstance(action, Drop | Forget | Release):
                _remove(action, removals, outcome)
            elif not _waits(action, outcome, kept):
                ready.append(action)
            elif isinstance(action, Assign):
                kept.update(_taken(action, snapshot))
        refusals = store.commit_each([action.writes() for action in ready])
        on_progress()
        for action, refused in zip(ready, refusals, strict=True):
            if refused is None:
                outcome.done.append(action)
                continue
            if isinstance(action, Maintain):
                outcome.cluster = refused
                if action.cluster.maintenance is None:  # all else was planned as if it had ended
                    return outcome
                continue
            if isinstance(action, Assign):
                kept.update(_taken(action, snapshot))
            outcome.refuse(action, refused)
    return outcome


def _waits(action: Action, outcome: Outcome, kept: set[Key]) -> bool:
    """Whether the action depends on one that was refused."""
    if isinstance(action, Replan | Revert | Drop):
        return action.flow in outcome.flows
    if isinstance(action, Maintain | MarkAway | Release | Replicate):
        return False
    if isinstance(action, Forget):
        return action.node in outcome.nodes
    return (
        action.node in outcome.nodes
        or any(flow in outcome.flows for flow, _ in action.plans)
        or (action.gives and not kept.isdisjoint(_held(action.assignment.tasks)))
    )


def _taken(action: Assign, snapshot: Snapshot) -> Iterator[Key]:
    """The tasks that the node would not run any more."""
    after = set(_held(action.assignment.tasks))
    before = _held(snapshot.nodes[action.node].assignment.tasks)
    return (key for key in before if key not in after)


def _held(tasks: Sequence[AssignedTask]) -> Iterator[Key]:
    return ((task.flow, task.task) for task in tasks if task.state != STANDBY)


def _remove(action: Drop | Forget | Release, removals: Removals, outcome: Outcome) -> None:
    """A lease that was renewed meanwhile is no trouble: the next look at leases decides again."""
    if isinstance(action, Drop | Forget) and _waits(action, outcome, set()):
        return
    try:
        if removals.carry_out(action):
            outcome.done.append(action)
    except (ConflictError, ForbiddenError, UserError) as error:
        if not isinstance(action, Release):
            outcome.refuse(action, error)
    outcome.unfinished = removals.unfinished


def topics(outcome: Outcome) -> Mapping[str, ConflictError | UserError | ForbiddenError]:
    """``node N``, ``journal J`` or ``cluster`` -> why what was planned for it could not be
    written."""
    refused = {f"node {node}": error for node, error in outcome.nodes.items()}
    refused |= {f"journal {name}": error for name, error in outcome.journals.items()}
    return {**refused, "cluster": outcome.cluster} if outcome.cluster else refused
