"""An index over the plans of all flows, updated with each change; only a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from flumeng.config import CollectPlace
from flumeng.control.planner.capacity_index import CapacityIndex
from flumeng.control.planner.indexed_heap import IndexedHeap
from flumeng.control.snapshot.snapshot import Amounts, FlowView, NodeView
from zkschema.records import COLLECT, PlannedTask

ASSIGNED = "assigned"
DRAINING = "draining"
WAITING = "waiting"
STANDBY = "standby"
ONE_MORE = 1000


class FlowIndex:
    """A flow's collect tasks. ``unsettled``: not assigned, or on a node that may not run them.
    ``sizes``: tasks by number of partitions, then by task number. ``nodes``: tasks per node.
    ``replicated``: with standbys; ``unprotected``: lacking standbys, or one in another zone.
    ``zones``, ``placement``: those for which standbys were last chosen."""

    def __init__(self) -> None:
        self.unsettled: set[str] = set()
        self.task_of: dict[str, str] = {}
        self.sizes: IndexedHeap[int] = IndexedHeap()
        self.nodes: Counter[str] = Counter()
        self.replicated: set[str] = set()
        self.unprotected: set[str] = set()
        self.zones: frozenset[str] = frozenset()
        self.placement: CollectPlace | None = None


class PlacementIndex:
    """Tasks of all flows and kinds by node, and the nodes' load. ``active``: nodes that should work
    and are not down for long; ``away``: nodes not live, or removed with tasks planned on them."""

    def __init__(self) -> None:
        self.capacity = CapacityIndex()
        self.active: set[str] = set()
        self.away: set[str] = set()
        self._flow_indexes: dict[str, FlowIndex] = {}
        self._of_node: dict[str, dict[tuple[str, str], PlannedTask]] = {}
        self._standing_by: dict[str, dict[tuple[str, str], PlannedTask]] = {}

    def flow_index(self, flow: str) -> FlowIndex:
        index = self._flow_indexes.get(flow)
        if index is None:
            index = self._flow_indexes[flow] = FlowIndex()
        return index

    def of_node(self, node: str) -> Mapping[tuple[str, str], PlannedTask]:
        """Return the tasks of every kind planned on the node, by (flow, task)."""
        return self._of_node.get(node, {})

    def standing_by(self, node: str) -> Mapping[tuple[str, str], PlannedTask]:
        """Return the tasks for which the node is a standby, by (flow, task)."""
        return self._standing_by.get(node, {})

    def put_node(self, name: str, view: NodeView | None) -> None:
        self.capacity.put_node(name, view)
        self.active.discard(name)
        self.away.discard(name)
        if view is not None and view.record.desired == "active" and not view.gone:
            self.active.add(name)
        if name in self._of_node if view is None else not view.live:
            self.away.add(name)

    def unowned(self) -> Iterator[tuple[tuple[str, str], PlannedTask]]:
        for node in self.away:
            for key, task in self.of_node(node).items():
                if task.kind == COLLECT:
                    yield key, task

    def enter(self, flow: FlowView, tasks: Iterable[tuple[str, PlannedTask]]) -> None:
        """Add tasks that the index does not contain."""
        entered = list(tasks)
        for _, task in entered:
            node = counted_on(task)
            if node is not None and task.kind == COLLECT:
                self.count_on(flow, node, flow.weight(task.partitions))
        self.enter_counted(flow, entered)

    def count_on(self, flow: FlowView, node: str, weight: Amounts, count: int = 1) -> None:
        nodes = self.flow_index(flow.name).nodes
        nodes[node] += count
        if not nodes[node]:
            del nodes[node]
        self.capacity.add(node, weight, count)

    def enter_counted(self, flow: FlowView, tasks: Iterable[tuple[str, PlannedTask]]) -> None:
        """Add tasks as ``enter`` does; the caller has counted them with ``count_on``."""
        flow_index, of_node = self.flow_index(flow.name), self._of_node
        task_of, sizes = flow_index.task_of, flow_index.sizes.ranks
        for name, task in tasks:
            if task.node is not None:
                held = of_node.get(task.node)
                if held is None:
                    held = of_node[task.node] = {}
                held[flow.name, name] = task
            if task.standbys:
                self._enter_standbys(flow_index, (flow.name, name), task)
            if task.kind != COLLECT:
                continue
            for partition in task.partitions:
                task_of[partition] = name
            rank = size_rank(name, len(task.partitions))
            if sizes.get(name) != rank:
                flow_index.sizes.set(name, rank)
            if task.state != ASSIGNED:
                flow_index.unsettled.add(name)

    def leave(self, flow: FlowView, name: str, task: PlannedTask) -> None:
        if task.node is not None:
            held = self._of_node[task.node]
            del held[flow.name, name]
            if not held:
                self._forget_if_gone(task.node)
        flow_index = self.flow_index(flow.name)
        if task.standbys:
            self._leave_standbys(flow_index, (flow.name, name), task)
        if task.kind != COLLECT:
            return
        node = counted_on(task)
        if node is not None:
            self.count_on(flow, node, flow.weight(task.partitions), -1)
        for partition in task.partitions:
            if flow_index.task_of.get(partition) == name:
                del flow_index.task_of[partition]
        flow_index.sizes.discard(name)
        flow_index.unsettled.discard(name)

    def _forget_if_gone(self, node: str) -> None:
        del self._of_node[node]
        if not self.capacity.knows(node):
            self.away.discard(node)

    def _enter_standbys(
        self, flow_index: FlowIndex, key: tuple[str, str], task: PlannedTask
    ) -> None:
        flow_index.replicated.add(key[1])
        for node in task.standbys:
            self._standing_by.setdefault(node, {})[key] = task

    def _leave_standbys(
        self, flow_index: FlowIndex, key: tuple[str, str], task: PlannedTask
    ) -> None:
        flow_index.replicated.discard(key[1])
        for node in task.standbys:
            held = self._standing_by[node]
            del held[key]
            if not held:
                del self._standing_by[node]

    def stand_by(self, flow: str, name: str, before: PlannedTask, after: PlannedTask) -> None:
        """Change only the standbys of a task."""
        flow_index, key = self.flow_index(flow), (flow, name)
        self._leave_standbys(flow_index, key, before)
        if after.standbys:
            self._enter_standbys(flow_index, key, after)
        if after.node is not None:
            self._of_node[after.node][key] = after

    def put(
        self, flow: FlowView, name: str, before: PlannedTask | None, after: PlannedTask | None
    ) -> None:
        if before is not None:
            self.leave(flow, name, before)
        if after is not None:
            self.enter(flow, [(name, after)])

    def remove_flow(self, flow: FlowView) -> None:
        for name, task in flow.tasks.items():
            self.leave(flow, name, task)
        self._flow_indexes.pop(flow.name, None)


def counted_on(task: PlannedTask) -> str | None:
    """Return the node whose load includes the task: its target, if it drains towards one."""
    return task.target or task.node


def size_rank(name: str, partitions: int) -> int:
    """Return the key that sorts by size, then by length of name; a partition adds ``ONE_MORE``."""
    return partitions * ONE_MORE + len(name)


def partitions_of(rank: int) -> int:
    return rank // ONE_MORE


def in_order(names: Iterable[str]) -> list[str]:
    return sorted(sorted(names), key=len)
