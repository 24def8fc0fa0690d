"""Carries out a plan flow by flow and node by node. A refused write skips its flow or node in this
tick, with dependent actions: a node gets no task that another node was not asked to release."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from flumeng.control.master.removals import Removals
from flumeng.control.planner.actions import (
    Action,
    Assign,
    Drop,
    Forget,
    Maintain,
    MarkDown,
    Release,
    Replan,
    Replicate,
    Revert,
    together,
)
from flumeng.control.planner.placement_index import STANDBY
from flumeng.control.snapshot.snapshot import Snapshot
from flumeng.control.snapshot.task_map import next_version
from flumeng.control.zookeeper import Refused, Store, Version, Write
from flumeng.platform.errors import ConflictError, ForbiddenError, UserError
from zkschema import paths
from zkschema.records import AssignedTask

Key = tuple[str, str]
Written = Replan | Assign | Revert | Maintain | MarkDown | Replicate


@dataclass
class Outcome:
    """A tick's outcome. ``flows``, ``nodes``, ``journals``, ``cluster``: refused changes.
    ``overtaken``: flows whose throttled moves wait a tick. ``unfinished``: a removal continues."""

    done: list[Action] = field(default_factory=list)
    flows: dict[str, ConflictError | UserError | ForbiddenError] = field(default_factory=dict)
    nodes: dict[str, ConflictError | UserError | ForbiddenError] = field(default_factory=dict)
    journals: dict[str, ConflictError | UserError | ForbiddenError] = field(default_factory=dict)
    cluster: Refused = None
    overtaken: dict[str, ConflictError | UserError | ForbiddenError] = field(default_factory=dict)
    unfinished: bool = False

    def refuse(
        self,
        action: Replan | Assign | Revert | MarkDown | Forget | Drop | Replicate,
        why: ConflictError | UserError | ForbiddenError,
    ) -> None:
        if isinstance(action, Assign | MarkDown | Forget):
            self.nodes[action.node] = why
        elif isinstance(action, Replicate):
            self.journals[action.journal] = why
        else:
            self.flows[action.flow] = why

    @property
    def conflicts(self) -> list[ConflictError]:
        flows = (*self.flows.values(), *self.overtaken.values())
        every = (*flows, *self.nodes.values(), *self.journals.values(), self.cluster)
        return [error for error in every if isinstance(error, ConflictError)]


def carry_out(
    store: Store,
    actions: Sequence[Action],
    snapshot: Snapshot,
    removals: Removals | None = None,
    on_progress: Callable[[], None] = lambda: None,
) -> Outcome:
    """Write the actions but those that depend on a refused one; every intermediate state is legal.
    ``removals``: state kept from earlier ticks. Calls ``on_progress`` after each group of actions.
    Raises UnavailableError: unknown outcome."""
    outcome = Outcome()
    removals = removals or Removals(store)
    removals.next_tick()
    kept: set[Key] = set()
    throttled = _Throttled(store, snapshot.moves)
    for group in together(actions):
        ready: list[Written] = []
        for action in group:
            if isinstance(action, Drop | Forget | Release):
                _remove(action, removals, outcome)
            elif isinstance(action, Replan) and action.throttled and outcome.flows:
                outcome.overtaken[action.flow] = next(iter(outcome.flows.values()))
            elif not _waits(action, outcome, kept):
                ready.append(action)
            elif isinstance(action, Assign):
                kept.update(_taken(action, snapshot))
        refusals = store.commit_each([throttled.writes(action) for action in ready])
        on_progress()
        for action, refused in zip(ready, refusals, strict=True):
            if refused is None:
                outcome.done.append(action)
                throttled.carried_out(action)
                continue
            if isinstance(refused, ConflictError) and throttled.is_overtaken(action):
                assert isinstance(action, Replan)
                outcome.overtaken[action.flow] = refused
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


class _Throttled:
    """Makes throttled plans expect the version of ``/moves`` that this tick read or wrote."""

    def __init__(self, store: Store, version: Version | None) -> None:
        self._store = store
        self._version = version

    def writes(self, action: Written) -> Sequence[Write]:
        return action.writes(self._version) if self._counts(action) else action.writes()

    def carried_out(self, action: Written) -> None:
        if self._counts(action) and self._version is not None:
            self._version = next_version(self._version)

    def is_overtaken(self, action: Written) -> bool:
        """Whether the plan was refused because another master has begun moves."""
        if not self._counts(action):
            return False
        (moves,) = self._store.read_each([paths.moves()])
        return moves is None or moves.version != self._version

    def _counts(self, action: Written) -> TypeGuard[Replan]:
        return isinstance(action, Replan) and action.throttled and self._version is not None


def _waits(action: Action, outcome: Outcome, kept: set[Key]) -> bool:
    if isinstance(action, Replan | Revert | Drop):
        return action.flow in outcome.flows or action.flow in outcome.overtaken
    if isinstance(action, Maintain | MarkDown | Release | Replicate):
        return False
    if isinstance(action, Forget):
        return action.node in outcome.nodes
    return (
        action.node in outcome.nodes
        or any(flow in outcome.flows or flow in outcome.overtaken for flow, _ in action.plans)
        or (action.gives and not kept.isdisjoint(_held(action.assignment.tasks)))
    )


def _taken(action: Assign, snapshot: Snapshot) -> Iterator[Key]:
    after = set(_held(action.assignment.tasks))
    before = _held(snapshot.nodes[action.node].assignment.tasks)
    return (key for key in before if key not in after)


def _held(tasks: Sequence[AssignedTask]) -> Iterator[Key]:
    return ((task.flow, task.task) for task in tasks if task.state != STANDBY)


def _remove(action: Drop | Forget | Release, removals: Removals, outcome: Outcome) -> None:
    """Carry out a removal. The next tick decides again on a cursor whose lease was renewed."""
    if isinstance(action, Drop | Forget) and _waits(action, outcome, set()):
        return
    try:
        if removals.carry_out(action):
            outcome.done.append(action)
    except (ConflictError, ForbiddenError, UserError) as error:
        if not isinstance(action, Release):
            outcome.refuse(action, error)
        elif not isinstance(error, ConflictError):
            outcome.cluster = error
    outcome.unfinished = removals.unfinished


def topics(outcome: Outcome) -> Mapping[str, ConflictError | UserError | ForbiddenError]:
    """Return why a write was refused, by ``node N``, ``journal J`` or ``cluster``."""
    refused = {f"node {node}": error for node, error in outcome.nodes.items()}
    refused |= {f"journal {name}": error for name, error in outcome.journals.items()}
    return {**refused, "cluster": outcome.cluster} if outcome.cluster else refused
