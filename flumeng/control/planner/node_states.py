"""Down nodes: records since when, forgets them, and switches automatic maintenance mode: when very
many nodes are missing, more likely the network or ZooKeeper is at fault. It ends at a lower share
of missing nodes than it begins, to prevent flapping. No master ends an operator's maintenance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from flumeng.control.planner.actions import Assign, Forget, Maintain, MarkDown
from flumeng.control.planner.deleted_flows import reports_tasks_of
from flumeng.control.planner.placement_index import PlacementIndex
from flumeng.control.snapshot.snapshot import NodeView, Snapshot
from flumeng.control.zookeeper import Version
from flumeng.journal.replication.membership import node_of
from zkschema.records import Maintenance

AUTHOR = "flumeng"


def marks(snapshot: Snapshot) -> list[MarkDown]:
    """Return actions that record ``mark_due`` nodes as down from now on, or as back."""
    actions = []
    for name, node in snapshot.nodes.items():
        if not node.mark_due or node.set_aside:
            continue
        since = 0.0 if node.live else snapshot.now
        why = f"node {name} is back" if node.live else f"node {name} is down"
        record = replace(node.record, down_since=since)
        actions.append(MarkDown(name, record, node.version, (why,)))
    return actions


def forgets(snapshot: Snapshot, index: PlacementIndex, assigns: Iterable[Assign]) -> list[Forget]:
    """Return the removal of expired nodes without tasks, journals or sources of a deleted flow.
    ``assigns`` count as carried out."""
    expired = {name: node for name, node in snapshot.nodes.items() if node.expired}
    if not expired:
        return []
    for action in assigns:
        if action.node in expired:
            expired[action.node] = replace(
                expired[action.node],
                assignment=action.assignment,
                assignment_version=action.version_after,
            )
    holders = {
        holder
        for journal in snapshot.journals.values()
        for holder in (journal.node, journal.primary, *map(node_of, journal.in_sync))
    }
    waiting = [
        flow
        for flow in snapshot.flows.values()
        if flow.record.state == "deleted" and not flow.record.discard
    ]
    return [
        Forget(name, node.version, (f"node {name} is forgotten: it was down for too long",))
        for name, node in expired.items()
        if name not in holders and not index.of_node(name) and not node.assignment.tasks
        if _has_registered_all(node) and not any(reports_tasks_of(node, flow) for flow in waiting)
    ]


def _has_registered_all(node: NodeView) -> bool:
    """Return whether the node certainly has no unregistered journal on its disk."""
    if node.set_aside or node.status_unreadable:
        return False
    was_assigned = isinstance(node.assignment_version, Version)
    return node.status.journals_told if node.status else not was_assigned


def maintain(snapshot: Snapshot, active: int, missing: int) -> Maintain | None:
    """Return the due begin or end of maintenance mode. ``missing`` of ``active`` nodes are away."""
    cluster, limits = snapshot.cluster, snapshot.cluster.maintenance_limits
    counts = f"{missing} of {active} active nodes are missing"
    if cluster.maintenance is None:
        if missing < max(1, limits.nodes) or missing <= limits.enter * active:
            return None
        begun = Maintenance(who=AUTHOR, why=counts, since=snapshot.now, automatic=True)
        after, why = replace(cluster, maintenance=begun), f"maintenance mode begins: {counts}"
    else:
        if not cluster.maintenance.automatic or missing > limits.leave * active:
            return None
        after, why = replace(cluster, maintenance=None), f"maintenance mode ends: {counts}"
    return Maintain(after, snapshot.cluster_version, (why,))
