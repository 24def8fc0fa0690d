"""Is the cluster well, and if not: what is wrong, and what should a person do? Pure.

The command line, the status page and ``/status.json`` show the one dict that ``status`` makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from flumeng.store import Store
from flumeng.views import overview
from flumeng.views.overview import AckRow, Ask, FlowRow, NodeRow
from flumeng.views.task_status import TaskRow
from zkschema import paths, records
from zkschema.records import COLLECT, INGEST


@dataclass(frozen=True)
class Cause:
    """One reason why a cluster is degraded, and what to do about it."""

    what: str
    advice: str


def status(store: Store, ask: Ask) -> dict[str, Any]:
    """Raises ``UserError`` when there is no cluster, ``UnavailableError``."""
    flows = overview.flows(store)
    nodes = overview.nodes(store)
    masters = store.children(paths.live_masters())
    where = overview.positions(store, ask)
    acks = overview.acks(store, where)
    cluster = store.read(paths.cluster())
    maintenance = cluster.value.maintenance if cluster else None
    causes = [
        *_of_masters(masters),
        *_of_maintenance(maintenance),
        *_of_nodes(nodes, where.silent),
        *_of_flows(flows),
    ]
    return {
        "health": "degraded" if causes else "ok",
        "causes": [{"what": cause.what, "advice": cause.advice} for cause in causes],
        "maintenance": maintenance is not None,
        "masters": masters,
        "nodes": {"live": sum(node.live for node in nodes), "registered": len(nodes)},
        "flows": [_flow(flow, acks) for flow in flows],
    }


def _flow(flow: FlowRow, acks: Sequence[AckRow]) -> dict[str, Any]:
    own = [ack for ack in acks if ack.flow == flow.flow]
    lags = [ack.lag for ack in own]
    known = [lag for lag in lags if lag is not None]
    return {
        "flow": flow.flow,
        "state": flow.state,
        "revision": flow.revision,
        "tasks": len(flow.tasks),
        "running": sum(task.state == "running" for task in flow.tasks),
        "acked": sum(ack.offset or 0 for ack in own),
        "lag": sum(known),
        "lag_unknown": len(lags) - len(known),
        "rollout": asdict(flow.rollout) if flow.rollout else None,
        "went_back": flow.went_back,
    }


def _of_masters(masters: Sequence[str]) -> Iterator[Cause]:
    if not masters:
        yield Cause("no master is live: nothing is planned or moved", "start `flumeng master`")


def _of_maintenance(maintenance: records.Maintenance | None) -> Iterator[Cause]:
    if maintenance is None:
        return
    since = f"{datetime.fromtimestamp(maintenance.since, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if maintenance.automatic:
        yield Cause(
            f"maintenance mode, begun by itself at {since}: {maintenance.why}",
            "bring the missing nodes back: it ends by itself; or, when they are gone for good, end "
            "it with `flumeng cluster maintenance off`",
        )
    else:
        yield Cause(
            f"maintenance mode, by {maintenance.who} at {since}: {maintenance.why}",
            "tasks stay where they are until `flumeng cluster maintenance off`",
        )


def _of_nodes(nodes: Sequence[NodeRow], silent: Sequence[str]) -> Iterator[Cause]:
    if not nodes:
        yield Cause("no node has registered", "start `flumeng node run` on a host")
    for node in nodes:
        if not node.live and node.desired == "active":
            yield Cause(
                f"node {node.node} is not live",
                "start `flumeng node run` on its host; when that is gone for good: "
                f"`flumeng node decommission {node.node} --discard`",
            )
        if node.node in silent:
            yield Cause(
                f"node {node.node} does not serve its journals at {node.address}",
                "look at its log, and whether the port can be reached from here",
            )


def _of_flows(flows: Sequence[FlowRow]) -> Iterator[Cause]:
    for flow in flows:
        if flow.problem:
            yield Cause(
                f"flow {flow.flow}: revision {flow.revision} cannot be read: {flow.problem}",
                "apply a corrected file with `flumeng flow apply`",
            )
        if flow.went_back:
            yield Cause(
                f"flow {flow.flow} went back to revision {flow.revision} by itself: "
                f"{flow.went_back}",
                "correct the file and apply it (`flumeng flow history` and `diff` show what was "
                "tried)",
            )
        if flow.state not in ("running", "suspended"):
            continue
        if not flow.tasks and flow.state == "running":
            yield Cause(
                f"flow {flow.flow} is not planned yet",
                "wait: a master plans it as soon as it sees it",
            )
        for task in flow.tasks:
            if task.state != "running" and (flow.state == "running" or task.kind == INGEST):
                yield _of_task(task)
            elif task.state == "running" and task.kind == COLLECT and task.why:
                yield Cause(
                    f"task {task.key} runs, but not in all of its journals: {task.why}",
                    "the others go on, and so do these once they can be read; docs/journal.md "
                    "says what to do about damage",
                )


def _of_task(task: TaskRow) -> Cause:
    advice = {
        "away": "start its node, or wait until a master moves the task",
        "starting": "wait; if it lasts, look at the node's log",
        "draining": "wait: it moves to another node",
        "waiting": "start a node that may run it (role, labels, capacity), or change the flow",
        "failed": "correct the cause; it is tried again by itself",
        "stopped": "look at the node's log",
    }
    what = f"task {task.flow}/{task.task} is {task.state}"
    return Cause(
        f"{what}: {task.why}" if task.why else what, advice.get(task.state, advice["stopped"])
    )
