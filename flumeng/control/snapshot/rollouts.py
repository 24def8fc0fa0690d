"""Which tasks have run the revision that is being rolled out for long enough, and which rollouts
get no further."""

from __future__ import annotations

from collections.abc import Mapping

from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.snapshot.timers import Moments
from zkschema.records import PlannedTask


class Rollouts:
    """Asked once in each look."""

    def __init__(self, moments: Moments) -> None:
        self._moments = moments

    def settled(
        self, flows: Mapping[str, FlowView], nodes: Mapping[str, NodeView]
    ) -> frozenset[str]:
        """The tasks (``flow/task``) that have run it as long as the rollout asks."""
        found: set[str] = set()
        for flow in flows.values():
            if not flow.rolling or flow.rollout is None:
                continue
            running = {
                f"{flow.name}/{name}/{task.epoch}": nodes[task.node or ""].status_version
                for name, task in flow.tasks.items()
                if _runs(flow, name, task, nodes)
            }
            what = f"revision {flow.record.revision} of {flow.name}"
            lasting = self._moments.lasting(what, running, flow.rollout.settle_seconds)
            found.update(key.rpartition("/")[0] for key in lasting)
        return frozenset(found)

    def stalled(self, snapshot: Snapshot) -> frozenset[str]:
        """The flows of which no task takes the revision, begins to run it or proves it."""
        found = set()
        for flow in snapshot.flows.values():
            if not flow.rolling or flow.rollout is None or not _is_waited_for(flow, snapshot):
                continue
            taken = [(name, task) for name, task in flow.tasks.items() if flow.has_taken(task)]
            running = sum(_runs(flow, name, task, snapshot.nodes) for name, task in taken)
            proven = sum(f"{flow.name}/{name}" in snapshot.settled for name, _ in taken)
            progress = f"{flow.record.revision}: {len(taken)} {running} {proven}"
            limit = flow.rollout.settle_seconds + flow.rollout.deadline_seconds
            if self._moments.lasting(f"progress of {flow.name}", [progress], limit):
                found.add(flow.name)
        return frozenset(found)


def _is_waited_for(flow: FlowView, snapshot: Snapshot) -> bool:
    """Whether the rollout should get further by itself."""
    assert flow.rollout is not None
    if flow.rollout.deadline_seconds == 0 or snapshot.cluster.maintenance:
        return False
    if flow.record.state != "running" or flow.record.rollout_paused == flow.record.revision:
        return False
    owners = (snapshot.nodes.get(task.node or "") for task in flow.tasks.values())
    return any(node is not None and node.live for node in owners)


def _runs(flow: FlowView, name: str, task: PlannedTask, nodes: Mapping[str, NodeView]) -> bool:
    """Whether the task's owner says that it runs the flow's current revision."""
    node = nodes.get(task.node or "")
    said = node.status.tasks.get(f"{flow.name}/{name}") if node and node.status else None
    return said is not None and (said.state, said.revision, said.epoch) == (
        "running",
        flow.record.revision,
        task.epoch,
    )
