"""Moves that only make the load more even. They are never urgent: none is begun while a task is
unowned or in maintenance mode, and only a few at a time are under way.

A task is marked ``draining`` towards its new node; what follows is an ordinary handoff.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from flumeng.plan.book import ASSIGNED, DRAINING, WAITING, Book
from flumeng.plan.draft import Draft
from flumeng.plan.ranking import Ranking
from flumeng.spec import CollectPlace
from flumeng.state.snapshot import Amounts, FlowView, Snapshot, thousandths
from zkschema.records import COLLECT, PlannedTask

Drafts = Mapping[str, Draft]


def balance(drafts: Drafts, snapshot: Snapshot, book: Book) -> None:
    """Begin as many moves of these flows' tasks as are worth it and allowed now."""
    round_ = _begin(snapshot, drafts, book)
    if round_ is None:
        return
    running = [d for d in drafts.values() if d.flow.place and d.flow.record.state == "running"]
    for draft in running:
        assert draft.flow.place is not None
        if draft.flow.place.collect.spread == "zone":
            round_.even_out_zones(draft)
    pools: dict[tuple[tuple[str, str], ...], list[Draft]] = {}
    for draft in running:
        assert draft.flow.place is not None
        pools.setdefault(tuple(sorted(draft.flow.place.collect.labels.items())), []).append(draft)
    for labels, members in pools.items():
        round_.even_out(dict(labels), {draft.flow.name: draft for draft in members})


def _begin(snapshot: Snapshot, drafts: Drafts, book: Book) -> _Round | None:
    """The round with what is under way already; None when no move may be begun now."""
    if snapshot.cluster.maintenance or not snapshot.balance_moves:
        return None
    round_ = _Round(snapshot, book, snapshot.balance_moves)
    for name, view in snapshot.flows.items():
        draft = drafts.get(name)
        for task_name in book.page(name).unsettled:
            task = draft.task(task_name) if draft else view.tasks.get(task_name)
            assert task is not None, f"{name}/{task_name} is in the book only"
            if task.state == WAITING:
                return None
            if task.state == DRAINING:
                round_.count(name, task)
    return None if book.unowned else round_


@dataclass
class _Round:
    """``most`` moves may still be begun; ``by_node`` and ``by_flow`` count those under way."""

    snapshot: Snapshot
    book: Book
    most: int
    by_node: Counter[str] = field(default_factory=Counter)
    by_flow: Counter[str] = field(default_factory=Counter)

    def count(self, flow: str, task: PlannedTask) -> None:
        assert task.node is not None
        self.most -= 1
        self.by_flow[flow] += 1
        self.by_node[task.node] += 1
        if task.target:
            self.by_node[task.target] += 1

    def even_out(self, labels: Mapping[str, str], members: Drafts) -> None:
        """Within one pool: from the fullest nodes to the least full one, while that helps.

        A move is worth it when the fuller node stays at least as full as the other becomes.
        """
        pool = self.book.seats.pool(labels)
        lightest = min(_lightest(draft.flow) for draft in members.values())
        while self.most > 0:
            target = pool.first(self._free)
            found = target and self._worth_moving(pool, members, target, lightest)
            if not target or not found:
                return
            self._move(*found, target)

    def even_out_zones(self, draft: Draft) -> None:
        """Move tasks of the flow from the zone that has most of them to the one with fewest."""
        assert draft.flow.place is not None
        place, seats = draft.flow.place.collect, self.book.seats
        while self.most > 0:
            zones = dict.fromkeys(seats.zones(place.labels), 0)
            for node, number in draft.page.nodes.items():
                if (zone := seats.zone(node)) in zones:
                    zones[zone] += number
            if not zones:
                return
            fewest = min(zones, key=lambda zone: (zones[zone], zone))
            fullest = max(zones, key=lambda zone: (zones[zone], zone))
            target = seats.pool(place.labels, fewest).first(self._free)
            if zones[fullest] - zones[fewest] < 2 or target is None:
                return
            sources = sorted(
                (node for node in draft.page.nodes if seats.zone(node) == fullest),
                key=lambda node: (-seats.fullness(node), node),
            )
            own = {draft.flow.name: draft}
            found = next(
                (
                    movable
                    for source in sources
                    for movable in self._movable(source, own)
                    if self._has_room(draft, movable[2], target)
                ),
                None,
            )
            if found is None:
                return
            self._move(*found, target)

    def _worth_moving(
        self, pool: Ranking[float], members: Drafts, target: str, lightest: Amounts
    ) -> tuple[Draft, str, PlannedTask] | None:
        """The heaviest task worth moving of the fullest node that has one."""
        seats = self.book.seats
        bound = seats.fullness(target, lightest)
        if max(fullness for fullness in pool.ranks.values()) <= bound:
            return None
        fuller = [(full, node) for node, full in pool.ranks.items() if full > bound]
        for full, source in sorted(fuller, key=lambda entry: (-entry[0], entry[1])):
            worth = [
                (seats.fullness(target, draft.flow.weight(task.partitions)), draft, name, task)
                for draft, name, task in self._movable(source, members)
                if self._has_room(draft, task, target) and self._keeps_spread(draft, source, target)
            ]
            best = max(
                ((then, draft.flow.name, name) for then, draft, name, _ in worth if then < full),
                default=None,
            )
            if best is not None:
                draft = members[best[1]]
                task = draft.task(best[2])
                assert task is not None
                return draft, best[2], task
        return None

    def _movable(self, node: str, members: Drafts) -> Iterator[tuple[Draft, str, PlannedTask]]:
        """The tasks of these flows that run there and could begin to move now."""
        limit = self.snapshot.cluster.throttles.get("balance_per_flow")
        if not self._free(node):
            return
        for (flow, name), task in sorted(self.book.of_node(node).items(), key=itemgetter(0)):
            draft = members.get(flow)
            free = draft is not None and (limit is None or self.by_flow[flow] < limit)
            if draft and free and task.kind == COLLECT and task.state == ASSIGNED:
                yield draft, name, task

    def _free(self, node: str) -> bool:
        limit = self.snapshot.cluster.throttles.get("balance_per_node")
        return limit is None or self.by_node[node] < limit

    def _has_room(self, draft: Draft, task: PlannedTask, target: str) -> bool:
        place = _place(draft)
        crowded = place.per_node and draft.page.nodes[target] >= place.per_node
        weight = draft.flow.weight(task.partitions)
        return not crowded and self.book.seats.fits(target, weight)

    def _keeps_spread(self, draft: Draft, source: str, target: str) -> bool:
        """Whether the flow is spread over the zones no worse after the move."""
        if _place(draft).spread != "zone":
            return True
        seats, counts = self.book.seats, draft.page.nodes
        old, new = seats.zone(source), seats.zone(target)
        inside: Counter[str | None] = Counter()
        for node, number in counts.items():
            inside[seats.zone(node)] += number
        return old == new or inside[old] > inside[new]

    def _move(self, draft: Draft, name: str, task: PlannedTask, target: str) -> None:
        why = f"{task.node} has more to do than {target}"
        draining = draft.leaving(task, target, why)
        draft.become(name, draining)
        draft.why.append(f"{draft.flow.name}/{name} is to go from {task.node} to {target}: {why}")
        self.count(draft.flow.name, draining)


def _place(draft: Draft) -> CollectPlace:
    assert draft.flow.place is not None
    return draft.flow.place.collect


def _lightest(flow: FlowView) -> Amounts:
    """The least that a task of the flow can weigh."""
    own = [thousandths(weight) for weight in flow.weights.values() if weight]
    return min([flow.weight(()), *own], key=lambda weight: sum(amount for _, amount in weight))
