"""Removes deleted flows once no node may still have tasks or journals of them."""

from __future__ import annotations

from flumeng.config import Place
from flumeng.config.flow_names import parts_among
from flumeng.control.planner.actions import Drop
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import Version
from zkschema.records import INGEST


def drop_of(flow: FlowView, snapshot: Snapshot) -> Drop | None:
    """Return the removal of a deleted flow; None while it has tasks, parts, or live nodes with its
    tasks. Without ``discard`` it also waits for events, commits, and nodes that are down."""
    if flow.record.state != "deleted" or flow.tasks or parts_among(snapshot.flows, flow.name):
        return None
    patient = not flow.record.discard
    undelivered = snapshot.has_undelivered(flow.name)
    if patient and (undelivered or flow.name in snapshot.committing):
        return None
    for node in snapshot.nodes.values():
        if (node.live or patient) and (
            reports_tasks_of(node, flow) or (patient and _may_hold(node, flow))
        ):
            return None
    return Drop(flow.name, (f"flow {flow.name} was deleted and is drained",))


def _may_hold(node: NodeView, flow: FlowView) -> bool:
    """Return whether the node may have run the flow's sources and has not confirmed their end."""
    if node.status_unreadable or node.set_aside:
        return True
    version = node.assignment_version
    if not isinstance(version, Version):
        return False
    status = node.status
    confirmed = status and status.journals_told and status.assignment_version == version.number
    labels = (flow.place or Place()).ingest.labels
    matches = all(node.record.labels.get(key) == value for key, value in labels.items())
    return not confirmed and INGEST in node.record.roles and matches


def reports_tasks_of(node: NodeView, flow: FlowView) -> bool:
    """Return whether the node reports a task of the flow; an unreadable node may run one."""
    if node.status_unreadable or node.set_aside:
        return True
    tasks = node.status.tasks if node.status else {}
    return any(key.startswith(f"{flow.name}/") for key in tasks)
