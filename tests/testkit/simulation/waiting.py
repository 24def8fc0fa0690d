"""The tasks of a world at rest that wait since no node may have them, or has room for them."""

from __future__ import annotations

from collections.abc import Iterator

from flumeng.control.planner.placement import may_collect
from flumeng.control.planner.placement_index import PlacementIndex
from flumeng.control.snapshot.snapshot import FlowView, Snapshot
from zkschema.records import COLLECT, DISCOVER, PlannedTask


class Waiting:
    """``tasks`` (``flow/task``) wait, or stay on a node that may not keep them; ``journals`` are
    unread because of that.

    ``missing`` names a task that need not wait.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._index = PlacementIndex()
        for name, node in snapshot.nodes.items():
            self._index.put_node(name, node)
        for flow in snapshot.flows.values():
            self._index.enter(flow, flow.tasks.items())
        self.missing = ""
        self.tasks: set[str] = set()
        self.journals: set[str] = set()
        for flow, name, task in self._without_place():
            self.tasks.add(f"{flow.name}/{name}")
            if self._is_unread(flow, name, task):
                self.journals.update(task.partitions)
            room = self._room(flow, task)
            if room:
                self.missing = f"{flow.name}/{name} waits, and {room} has room for it"

    def has(self, flow: str) -> bool:
        """Whether a task of the flow waits."""
        return any(key.startswith(f"{flow}/") for key in self.tasks)

    def _without_place(self) -> Iterator[tuple[FlowView, str, PlannedTask]]:
        for flow in self._snapshot.flows.values():
            for name, task in flow.tasks.items():
                node = self._snapshot.nodes.get(task.node or "")
                labels = flow.collect_place.labels
                placed = node is not None and node.eligible(COLLECT, labels)
                if task.kind in (COLLECT, DISCOVER) and not placed:
                    yield flow, name, task

    def _is_unread(self, flow: FlowView, name: str, task: PlannedTask) -> bool:
        """While no other node may run a task, its owner continues with it."""
        node = self._snapshot.nodes.get(task.node or "")
        return node is None or node.has_released(flow.name, name)

    def _room(self, flow: FlowView, task: PlannedTask) -> str | None:
        place = flow.collect_place
        if task.kind == DISCOVER:
            nodes = self._snapshot.nodes.items()
            return next((name for name, node in nodes if may_collect(node, place)), None)
        if not task.partitions or flow.record.state == "suspended":
            return None
        weight = flow.weight(task.partitions)
        return next(
            (
                name
                for name, node in sorted(self._snapshot.nodes.items())
                if may_collect(node, place) and self._index.capacity.fits(name, weight)
            ),
            None,
        )
