"""Applies an action to a snapshot in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flumeng.control.planner.actions import (
    Action,
    Assign,
    Forget,
    Maintain,
    MarkDown,
    Release,
    Replan,
    Replicate,
    Revert,
)
from flumeng.control.snapshot.snapshot import IntentView, Snapshot
from flumeng.control.snapshot.task_map import next_version


def applied(snapshot: Snapshot, action: Action) -> Snapshot:
    if isinstance(action, Maintain):
        return replace(snapshot, cluster=action.cluster, cluster_version=action.version_after)
    if isinstance(action, MarkDown):
        node = snapshot.nodes[action.node]
        marked = replace(node, record=action.record, version=action.version_after, mark_due=False)
        return replace(snapshot, nodes={**snapshot.nodes, action.node: marked})
    if isinstance(action, Forget):
        left = {name: node for name, node in snapshot.nodes.items() if name != action.node}
        return replace(snapshot, nodes=left)
    if isinstance(action, Release):
        released = (action.flow, action.cursor)
        others = (x for x in snapshot.expired_leases if (x.flow, x.cursor) != released)
        return replace(snapshot, expired_leases=tuple(others))
    if isinstance(action, Replicate):
        return with_journals(snapshot, [action])
    if isinstance(action, Assign):
        node, version = snapshot.nodes[action.node], action.version_after
        node = replace(node, assignment=action.assignment, assignment_version=version)
        return replace(snapshot, nodes={**snapshot.nodes, action.node: node})
    if isinstance(action, Replan | Revert):
        flow = snapshot.flows[action.flow]
        if isinstance(action, Replan):
            snapshot = _fenced(snapshot, action)
            flow = replace(flow, plan=action.plan, plan_version=action.version_after)
        else:
            flow = replace(flow, record=action.record, version=action.version_after)
        return replace(snapshot, flows={**snapshot.flows, action.flow: flow})
    kept = {name: flow for name, flow in snapshot.flows.items() if name != action.flow}
    return replace(snapshot, flows=kept, mine=snapshot.mine - {action.flow})


def with_journals(snapshot: Snapshot, actions: Sequence[Replicate]) -> Snapshot:
    if not actions:
        return snapshot
    return replace(
        snapshot,
        journals={**snapshot.journals, **{action.journal: action.record for action in actions}},
        journal_versions={
            **snapshot.journal_versions,
            **{action.journal: action.version_after for action in actions},
        },
    )


def _fenced(snapshot: Snapshot, action: Replan) -> Snapshot:
    if not action.fences:
        return snapshot
    fenced = {
        fence.task: IntentView(fence.record, next_version(fence.seen.version))
        for fence in action.fences
    }
    of_flow = {**snapshot.intents.get(action.flow, {}), **fenced}
    return replace(snapshot, intents={**snapshot.intents, action.flow: of_flow})
