"""The picture after an action was carried out, as the store would show it."""

from __future__ import annotations

from dataclasses import replace

from flumeng.plan.actions import Action, Assign, Maintain, Replan, Revert
from flumeng.state.snapshot import Snapshot


def applied(snapshot: Snapshot, action: Action) -> Snapshot:
    """The snapshot with the action's writes in it. A flow that goes back keeps its place, since
    only a reader can tell what the older revision says."""
    if isinstance(action, Maintain):
        return replace(snapshot, cluster=action.cluster, cluster_version=action.version_after)
    if isinstance(action, Assign):
        node = snapshot.nodes[action.node]
        told = replace(node, assignment=action.assignment, assignment_version=action.version_after)
        return replace(snapshot, nodes={**snapshot.nodes, action.node: told})
    if isinstance(action, Replan | Revert):
        flow = snapshot.flows[action.flow]
        if isinstance(action, Replan):
            flow = replace(flow, plan=action.plan, plan_version=action.version_after)
        else:
            flow = replace(flow, record=action.record, version=action.version_after)
        return replace(snapshot, flows={**snapshot.flows, action.flow: flow})
    kept = {name: flow for name, flow in snapshot.flows.items() if name != action.flow}
    return replace(snapshot, flows=kept, mine=snapshot.mine - {action.flow})
