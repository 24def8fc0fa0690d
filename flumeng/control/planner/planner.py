"""Re-plans only the changes since the last tick; the state kept between ticks is only a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flumeng.config.flow_names import is_part, whole_of
from flumeng.control.planner import node_states
from flumeng.control.planner.actions import Action, Fence, Release, Replan, Revert
from flumeng.control.planner.assignments import assign
from flumeng.control.planner.balance import balance
from flumeng.control.planner.deleted_flows import drop_of
from flumeng.control.planner.effects import with_journals
from flumeng.control.planner.node_states import maintain
from flumeng.control.planner.placement import place_tasks
from flumeng.control.planner.placement_index import PlacementIndex
from flumeng.control.planner.plan_builder import PlanBuilder, Recovery
from flumeng.control.planner.replica_index import ReplicaIndex
from flumeng.control.planner.replicas import ReplicaPlan
from flumeng.control.planner.rollout import revert, roll
from flumeng.control.planner.snapshot_changes import (
    ChangeSet,
    changed_names,
    changed_partitions,
    scope_of,
)
from flumeng.control.planner.standbys import Standbys
from flumeng.control.planner.steps import steps
from flumeng.control.planner.task_outcomes import history, outcomes
from flumeng.control.snapshot.leases import ExpiredLease
from flumeng.control.snapshot.snapshot import FlowView, Snapshot
from flumeng.control.snapshot.task_map import Bucket, Tasks
from flumeng.control.zookeeper import ABSENT, ANY, Check, Put, Version
from zkschema import paths
from zkschema.records import EndedTask, Plan

MARK_BYTES = 64
"""Room in a plan's main znode for its fields ``buckets`` and ``sharing``."""


@dataclass
class _Round:
    """One round of planning. ``first``: actions before all plans. Flows with ``reverts`` are not
    planned. ``outdated``: nodes whose assignments may change."""

    snapshot: Snapshot
    builders: Mapping[str, PlanBuilder]
    change_sets: Mapping[str, ChangeSet]
    first: Sequence[Action]
    reverts: Mapping[str, Revert]
    outdated: set[str]


class Planner:
    """Pure but for a cache. ``held``: the tasks by flow that wait for batches to finish; the next
    snapshot should have the intents of exactly these flows."""

    def __init__(self) -> None:
        self._index = PlacementIndex()
        self._replicas = ReplicaIndex()
        self._balanced: object = None
        self._seen = Snapshot({}, {}, {}, frozenset(), frozenset())
        """The last snapshot, with flows as planned, so that unwritten plans show as differences."""
        self._outdated: set[str] = set()
        self.held: Mapping[str, frozenset[str]] = {}

    def plan(self, snapshot: Snapshot) -> list[Action]:
        round_ = self._reconcile(snapshot)
        self._place_tasks(round_)
        for builder in round_.builders.values():
            roll(builder)
        self._balance(round_)
        standbys = Standbys(self._index)
        for name, builder in round_.builders.items():
            standbys.choose(builder, round_.change_sets[name])
        return self._project(round_)

    def _reconcile(self, snapshot: Snapshot) -> _Round:
        outdated = set(self._outdated)
        nodes = changed_names(self._seen.nodes, snapshot.nodes)
        for name in nodes:
            self._index.put_node(name, snapshot.nodes.get(name))
        outdated.update(nodes)
        away = len(self._index.active & self._index.away)
        mode = maintain(snapshot, len(self._index.active), away) if snapshot.leads else None
        if mode is not None:
            snapshot = replace(snapshot, cluster=mode.cluster)
        change_sets = self._changes_since(snapshot, nodes, outdated)
        reverts = {f.name: action for f in _mine(snapshot) if (action := revert(f, snapshot))}
        recovery = Recovery(self._recoveries(snapshot))
        assigned_epochs = _assigned_epochs(snapshot)
        builders = {
            flow.name: PlanBuilder(
                flow,
                snapshot,
                self._index,
                max(flow.plan.epoch, flow.epoch_floor, assigned_epochs.get(flow.name, 0)),
                flow.plan.revision,
                recovery,
            )
            for flow in _mine(snapshot)
            if flow.name not in reverts
        }
        first: list[Action] = [mode] if mode else []
        if snapshot.leads:
            first += node_states.marks(snapshot)
        return _Round(snapshot, builders, change_sets, first, reverts, outdated)

    def _place_tasks(self, round_: _Round) -> None:
        for name, builder in round_.builders.items():
            if round_.change_sets[name] or builder.flow_index.unsettled:
                place_tasks(builder, round_.change_sets[name])

    def _balance(self, round_: _Round) -> None:
        """Even out the load if anything changed: without a change no move is worthwhile."""
        snapshot, builders = round_.snapshot, round_.builders.values()
        cluster, flows = snapshot.cluster, frozenset(snapshot.flows)
        moves = snapshot.throttled_moves and snapshot.balance_moves
        limits = (cluster.maintenance, cluster.throttles, moves, flows, snapshot.mine)
        changed = any(round_.change_sets.values()) or any(builder.changes for builder in builders)
        if changed or limits != self._balanced:
            balance(round_.builders, snapshot, self._index)
            begun = any(builder.changes for builder in builders)
            self._balanced = None if begun else limits

    def _project(self, round_: _Round) -> list[Action]:
        snapshot, builders, outdated = round_.snapshot, round_.builders, round_.outdated
        in_order = sorted(builders.values(), key=lambda builder: builder.begun_moves)
        replans = [action for builder in in_order for action in _replans(builder)]
        outdated.update(self._replicas.follow(snapshot))
        replicates = ReplicaPlan(snapshot, self._replicas).changes()
        after = with_journals(_after(snapshot, replans), replicates)
        for name in {action.flow for action in replans}:
            outdated.update(builders[name].touched)
            if _besides_plan(snapshot.flows[name]) != _besides_plan(after.flows[name]):
                outdated.update(_nodes_of(after.flows[name]))
        outdated.update(self._replicas.follow(after))
        assigns = assign(after, self._index, sorted(outdated), self._replicas)
        drops = [drop for flow in _mine(snapshot) if (drop := drop_of(flow, snapshot))]
        forgets = node_states.forgets(snapshot, self._index, assigns) if snapshot.leads else []
        releases = [_release(lease) for lease in snapshot.expired_leases]
        self._seen, self._outdated = after, {action.node for action in assigns}
        self.held = {name: frozenset(b.held) for name, b in builders.items() if b.held}
        return [
            *round_.first,
            *round_.reverts.values(),
            *replans,
            *replicates,
            *assigns,
            *drops,
            *forgets,
            *releases,
        ]

    def _recoveries(self, snapshot: Snapshot) -> int | None:
        """Return how many lost tasks may be reassigned now; None: any number."""
        limit = snapshot.cluster.throttles.get("recovery")
        if limit is None or not any(node.down for node in snapshot.nodes.values()):
            return None
        if not snapshot.throttled_moves:
            return 0
        starting = sum(key not in snapshot.slow for key, _ in snapshot.starting())
        return max(0, limit - starting)

    def _changes_since(
        self, snapshot: Snapshot, nodes: tuple[str, ...], outdated: set[str]
    ) -> dict[str, ChangeSet]:
        """Update the index and ``outdated``; return the changes of each flow."""
        seen = self._seen
        partitions = changed_partitions(seen, snapshot) if seen.flows else {}
        for name in seen.flows.keys() - snapshot.flows.keys():
            gone = seen.flows[name]
            outdated.update(_nodes_of(gone))
            self._index.remove_flow(gone)
        of_all = (snapshot.mine, snapshot.cluster.chokes, snapshot.cluster.spark)
        if (seen.mine, seen.cluster.chokes, seen.cluster.spark) != of_all:
            outdated.update(snapshot.nodes)
        resumed = bool(seen.cluster.maintenance) != bool(snapshot.cluster.maintenance)
        other_commits = seen.committing ^ snapshot.committing
        change_sets = {}
        for name, flow in snapshot.flows.items():
            changes = self._changes_of(flow, outdated)
            change_sets[name] = replace(
                changes,
                everything=changes.everything
                or resumed
                or name in other_commits
                or name in self.held
                or (is_part(name) and whole_of(name) in partitions)
                or seen.intents.get(name) != snapshot.intents.get(name),
                nodes=tuple(sorted({*nodes, *changes.nodes})) if changes.nodes else nodes,
                partitions=tuple(sorted(partitions.get(name, set()).union(changes.partitions))),
            )
        return change_sets

    def _changes_of(self, flow: FlowView, outdated: set[str]) -> ChangeSet:
        before = self._seen.flows.get(flow.name)
        if before is None:
            self._index.enter(flow, flow.tasks.items())
            outdated.update(_nodes_of(flow))
            return ChangeSet(everything=True)
        if before is flow:
            return ChangeSet(everything=not self._is_followed(before, flow))
        differences = list(flow.tasks.differences(before.tasks))
        if (before.place, before.weights) != (flow.place, flow.weights):
            self._index.remove_flow(before)
            self._index.enter(flow, flow.tasks.items())
        else:
            for name, old, new in differences:
                self._index.put(flow, name, old, new)
        outdated.update(_touched(before, flow))
        return scope_of(differences, everything=not self._is_followed(before, flow))

    def _is_followed(self, before: FlowView, flow: FlowView) -> bool:
        """Return whether the differences between plans cover all changes of the flow."""
        return (
            flow.name in self._seen.mine
            and flow.record == before.record
            and flow.place == before.place
            and flow.weights == before.weights
            and (flow.pins, flow.discovers) == (before.pins, before.discovers)
            and flow.proposed_tasks == before.proposed_tasks
            and not flow.plan.sharing
        )


def _assigned_epochs(snapshot: Snapshot) -> dict[str, int]:
    """Return the highest assigned epoch of each of this master's flows without a plan."""
    highest = {f.name: 0 for f in _mine(snapshot) if not isinstance(f.plan_version, Version)}
    for node in snapshot.nodes.values() if highest else ():
        for task in node.assignment.tasks:
            if task.epoch > highest.get(task.flow, task.epoch):
                highest[task.flow] = task.epoch
    return highest


def _mine(snapshot: Snapshot) -> Iterator[FlowView]:
    return (flow for name, flow in snapshot.flows.items() if name in snapshot.mine)


def _nodes_of(flow: FlowView) -> Iterator[str]:
    for task in flow.tasks.values():
        if task.node:
            yield task.node
        yield from task.standbys


def _touched(before: FlowView, after: FlowView) -> set[str]:
    if _besides_plan(before) != _besides_plan(after):
        return {*_nodes_of(before), *_nodes_of(after)}
    return {
        node
        for _, *both in after.tasks.differences(before.tasks)
        for task in both
        if task is not None
        for node in (task.node, *task.standbys)
        if node is not None
    }


def _besides_plan(flow: FlowView) -> tuple[int, int, int]:
    """Return the values in assigned tasks that planned tasks lack: revisions and handoff."""
    before = flow.plan.revision if flow.rolling else flow.record.revision
    return flow.record.revision, before, flow.record.handoff


def _replans(builder: PlanBuilder) -> list[Replan]:
    flow, plan = builder.flow, builder.plan
    after = Tasks.of(plan.tasks)
    same = after is flow.tasks or not any(after.differences(flow.tasks))
    if same and isinstance(flow.plan_version, Version) and plan == replace(flow.plan, tasks=after):
        return []
    why = tuple(builder.why) or (f"flow {flow.name}: the plan is updated",)
    actions: list[Replan] = []
    ended = {entry.task: entry for entry in outcomes(builder)}
    before, expect = flow.tasks, flow.plan_version
    parts = _steps(builder, plan, tuple(ended.values()))
    for number, tasks in enumerate(parts, start=1):
        last = number == len(parts)
        losers = _losers(builder, before, tasks)
        news = [ended[name] for name in ended if _changes_hands(name, before, tasks)]
        plan = replace(plan, ended=history(plan, news))
        step = replace(plan, tasks=tasks, sharing=not last)
        fences = tuple(_fences(builder, before, tasks)) if builder.fenced else ()
        throttled = builder.throttled
        actions.append(
            Replan(flow.name, flow.version, step, before, expect, losers, why, fences, throttled)
        )
        before, expect = tasks, actions[-1].version_after
        why = (f"flow {flow.name}: step {number + 1} of {len(parts)} of its plan",)
    return actions


def _changes_hands(name: str, before: Tasks, after: Tasks) -> bool:
    old, new = before.find(name), after.find(name)
    return old is not None and (new is None or new.epoch != old.epoch)


def _fences(builder: PlanBuilder, before: Tasks, after: Tasks) -> Iterator[Fence]:
    for name, old, new in after.differences(before):
        if (
            name in builder.fenced
            and old is not None
            and not set(old.partitions) <= set(new.partitions if new else ())
        ):
            final = builder.task(name)
            seen = builder.intent(name)
            assert seen is not None, f"{name} loses partitions, but its intent is unknown"
            yield Fence(name, final.epoch if final and final.node else builder.epoch, seen)


def _steps(builder: PlanBuilder, plan: Plan, ended: Sequence[EndedTask]) -> list[Tasks]:
    flow, scale = builder.flow, builder.snapshot.scale
    rest = replace(plan, tasks={}, ended=history(plan, ended))
    used = scale.total(Replan(flow.name, flow.version, rest, flow.tasks, ANY, (), ()).writes(ANY))
    used += MARK_BYTES

    def cost(number: int, old: Bucket, new: Bucket) -> int:
        before, after = Tasks((old,)), Tasks((new,))
        checks = [Check(paths.assignment(n), v) for n, v in _losers(builder, before, after)]
        fences = (fence.write(flow.name) for fence in _fences(builder, before, after))
        bucket = Put(paths.plan_bucket(flow.name, str(number)), Plan(tasks=new), ABSENT)
        return sum(map(scale.weigh, (bucket, *checks, *fences)))

    return steps(flow.tasks, Tasks.of(plan.tasks), scale.limit_bytes - used, cost)


def _losers(builder: PlanBuilder, before: Tasks, after: Tasks) -> tuple[tuple[str, Version], ...]:
    """Return the nodes that lose a task to another one, with their assignment versions."""
    names = {
        old.node
        for _, old, new in (after.differences(before) if before else ())
        if old and new and new.node != old.node
    }
    views = map(builder.snapshot.nodes.get, sorted(filter(None, names)))
    return tuple(
        (view.name, view.assignment_version)
        for view in views
        if view and isinstance(view.assignment_version, Version)
    )


def _after(snapshot: Snapshot, replans: list[Replan]) -> Snapshot:
    flows = dict(snapshot.flows)
    for action in replans:
        flows[action.flow] = replace(
            flows[action.flow], plan=action.plan, plan_version=action.version_after
        )
    return replace(snapshot, flows=flows)


def _release(lease: ExpiredLease) -> Release:
    why = f"cursor {lease.cursor} of {lease.flow} is removed: the lease of {lease.reader} expired"
    return Release(lease.flow, lease.cursor, lease.version, (why,))


def plan(snapshot: Snapshot) -> list[Action]:
    return Planner().plan(snapshot)
