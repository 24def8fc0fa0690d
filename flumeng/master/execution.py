"""Carrying out what was planned, flow by flow and node by node.

A write that is refused ends the change of its flow, or of its node, in this tick, and nothing else.
What depends on it is not tried: a node is not given a task that another could not be told to give
up, nor told of a plan that was not written (which its version check would refuse anyway).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flumeng.errors import ConflictError, ForbiddenError, UserError
from flumeng.operations import subscriptions
from flumeng.operations.cursors import remove_cursor
from flumeng.operations.nodes import removal
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
from flumeng.store import ANY, Check, Path, Refused, Remove, Store
from zkschema import bootstrap, paths, table
from zkschema.records import AssignedTask

DROP_AT_ONCE = 100

Key = tuple[str, str]


@dataclass
class Outcome:
    """``done`` was carried out. ``flows``, ``nodes`` and ``journals`` are those of which something
    was refused; ``cluster`` says why the cluster's mode could not be changed."""

    done: list[Action] = field(default_factory=list)
    flows: dict[str, ConflictError | UserError | ForbiddenError] = field(default_factory=dict)
    nodes: dict[str, ConflictError | UserError | ForbiddenError] = field(default_factory=dict)
    journals: dict[str, ConflictError | UserError | ForbiddenError] = field(default_factory=dict)
    cluster: Refused = None

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


def carry_out(store: Store, actions: Sequence[Action], snapshot: Snapshot) -> Outcome:
    """All that is not refused, in the order that keeps every moment between legal.

    Raises UnavailableError; then nobody knows what was done.
    """
    outcome = Outcome()
    kept: set[Key] = set()
    for group in together(actions):
        ready = []
        for action in group:
            if not _waits(action, outcome, kept):
                ready.append(action)
            elif isinstance(action, Assign):
                kept.update(_taken(action, snapshot))
        for action, refused in zip(ready, _commit(store, ready), strict=True):
            if refused is None:
                outcome.done.append(action)
                continue
            if isinstance(action, Release):
                continue  # it was renewed meanwhile; if not, the next look finds it again
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


def _commit(store: Store, group: Sequence[Action]) -> list[Refused]:
    """The group's actions are independent of each other, or one."""
    if len(group) == 1 and isinstance(first := group[0], Drop | Forget | Release):
        try:
            if isinstance(first, Drop):
                _drop(store, first.flow)
            elif isinstance(first, Release):
                remove_cursor(store, first.flow, first.cursor, first.expect)
            else:
                store.commit(removal(store, first.node, first.expect))
        except (ConflictError, ForbiddenError, UserError) as error:
            return [error]
        return [None]
    return store.commit_each(
        [action.writes() for action in group if not isinstance(action, Drop | Forget | Release)]
    )


def _drop(store: Store, flow: str) -> None:
    """Children first and the flow last, so that an interrupted removal is gone on with.

    Without its acks a flow looks as if nothing of it were collected. So it is marked before as one
    of which nothing is waited for. It stays as it is marked until it is gone: a master that was
    frozen meanwhile takes nothing away from the next flow of that name.
    """
    found = store.read(paths.flow(flow))
    if found is None or found.value.state != "deleted":
        raise ConflictError(f"flow {flow} is not one that was deleted any more")
    version = found.version
    if not found.value.discard:
        marked = replace(found.value, discard=True)
        version = store.write(paths.flow(flow), marked, version)
    unchanged = Check(paths.flow(flow), version)
    for top in (*subscriptions.cursors_of(store, flow), *bootstrap.flow_tops(flow)):
        if store.exists(top):
            removals = [Remove(path, ANY) for path in reversed(_tree(store, top))]
            for start in range(0, len(removals), DROP_AT_ONCE):
                store.commit([unchanged, *removals[start : start + DROP_AT_ONCE]])


def _tree(store: Store, top: Path) -> list[Path]:
    """``top`` and all below it, parents first. Raises UserError for what is not in the schema."""
    found = [top]
    for name in store.children(top):
        path = f"{top}/{name}"
        row = table.find(path)
        names = row.matches(path) if row else None
        if row is None or names is None:
            raise UserError(f"{path} is not in the schema and keeps its flow from being removed")
        found += _tree(store, row(*names))
    return found


def topics(outcome: Outcome) -> Mapping[str, str]:
    """``node N``, ``journal J`` or ``cluster`` -> why what was planned for it could not be
    written."""
    refused = {f"node {node}": str(error) for node, error in outcome.nodes.items()}
    refused |= {f"journal {name}": str(error) for name, error in outcome.journals.items()}
    return {**refused, "cluster": str(outcome.cluster)} if outcome.cluster else refused
