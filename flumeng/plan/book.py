"""Who has what: an index over the plans of all flows, kept up to date by differences.

It holds nothing that the plans do not say; a new book that is told all of them says the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from flumeng.model import FlowView, NodeView
from flumeng.plan.ranking import Ranking
from flumeng.plan.seats import Seats
from zkschema.records import COLLECT, PlannedTask

ASSIGNED = "assigned"
DRAINING = "draining"
WAITING = "waiting"
MOST_NAME = 1000


class Page:
    """One flow's share of the book, of its collect tasks.

    ``unsettled``: those that are not simply assigned. ``homes``: partition -> task. ``sizes``: the
    tasks by number of partitions, then by number. ``nodes``: how many tasks each node has.
    """

    def __init__(self) -> None:
        self.unsettled: set[str] = set()
        self.homes: dict[str, str] = {}
        self.sizes: Ranking[int] = Ranking()
        self.nodes: Counter[str] = Counter()

    def put(self, name: str, before: PlannedTask | None, after: PlannedTask | None) -> None:
        if before is not None:
            if place := place_of(before):
                self.nodes[place] -= 1
            for partition in before.partitions:
                if self.homes.get(partition) == name:
                    del self.homes[partition]
        self.unsettled.discard(name)
        if after is None:
            self.sizes.discard(name)
            return
        if place := place_of(after):
            self.nodes[place] += 1
        for partition in after.partitions:
            self.homes[partition] = name
        self.sizes.set(name, size_rank(name, len(after.partitions)))
        if after.state != ASSIGNED:
            self.unsettled.add(name)


class Book:
    """All pages, what each node has of every kind, and how full it is.

    ``active`` nodes are to work; those in ``away`` are not live.
    """

    def __init__(self) -> None:
        self.seats = Seats()
        self.active: set[str] = set()
        self.away: set[str] = set()
        self._pages: dict[str, Page] = {}
        self._of_node: dict[str, dict[tuple[str, str], PlannedTask]] = {}

    def page(self, flow: str) -> Page:
        found = self._pages.get(flow)
        if found is None:
            found = self._pages[flow] = Page()
        return found

    def of_node(self, node: str) -> Mapping[tuple[str, str], PlannedTask]:
        """(flow, task) -> what is planned on the node now, of every kind."""
        return self._of_node.get(node, {})

    def put_node(self, name: str, view: NodeView | None) -> None:
        """The node as it is now; None when it is gone."""
        self.seats.put_node(name, view)
        self.active.discard(name)
        self.away.discard(name)
        if view is not None and view.record.desired == "active":
            self.active.add(name)
        if view is None or not view.live:
            self.away.add(name)

    @property
    def unowned(self) -> bool:
        """Whether a collect task is on a node that is not live."""
        return any(
            task.kind == COLLECT for node in self.away for task in self.of_node(node).values()
        )

    def put(
        self, flow: FlowView, name: str, before: PlannedTask | None, after: PlannedTask | None
    ) -> None:
        """A task of the flow is not ``before`` any more but ``after``."""
        if before is not None and before.node is not None:
            del self._of_node[before.node][flow.name, name]
        if after is not None and after.node is not None:
            self._of_node.setdefault(after.node, {})[flow.name, name] = after
        if (after or before).kind != COLLECT:  # type: ignore[union-attr]
            return
        if before is not None and (place := place_of(before)):
            self.seats.add(place, flow.weight(before.partitions), -1)
        if after is not None and (place := place_of(after)):
            self.seats.add(place, flow.weight(after.partitions))
        self.page(flow.name).put(name, before, after)

    def remove_flow(self, flow: FlowView) -> None:
        """All that it has goes, as it was put in."""
        for name, task in flow.tasks.items():
            self.put(flow, name, task, None)
        self._pages.pop(flow.name, None)

    def put_flow(self, flow: FlowView) -> None:
        for name, task in flow.tasks.items():
            self.put(flow, name, None, task)


def place_of(task: PlannedTask) -> str | None:
    """Where the task's load counts: a task that drains counts where it goes."""
    return task.target or task.node


def size_rank(name: str, partitions: int) -> int:
    """Smaller tasks first, of equal ones those with the shorter name: by name that is by number."""
    return partitions * MOST_NAME + len(name)


def partitions_of(rank: int) -> int:
    """How many partitions the task with this ``size_rank`` has."""
    return rank // MOST_NAME


def in_order(names: Iterable[str]) -> list[str]:
    """Task names in the order of their numbers."""
    return sorted(sorted(names), key=len)
