"""Which node runs which task of a flow: sticky, so that as little as possible moves.

A task changes hands in one of two ways. Its owner is gone: another takes it with a higher epoch
after the grace period, and fencing makes that safe. Its owner may not keep it, or has too much: the
task is marked ``draining``, the owner finishes its batch, acks and lets go, and only then it is
given away; past a deadline it is taken. In maintenance mode nothing moves that is not on its way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from flumeng.model import Amounts, NodeView
from flumeng.plan.book import ASSIGNED, DRAINING, WAITING, in_order
from flumeng.plan.draft import Draft, Scope
from flumeng.plan.sharing import Sharing
from flumeng.spec import CollectPlace, Place
from zkschema.records import COLLECT, INGEST, PlannedTask


def place(draft: Draft, scope: Scope) -> None:
    """Bring the flow's plan in line with its place, its journals and the nodes."""
    if draft.flow.place is None:
        return
    _pin(draft, draft.flow.place, scope)
    if _collects(draft):
        _spread(draft, draft.flow.place.collect, scope)
    else:
        for name in in_order(n for n, t in draft.flow.tasks.items() if t.kind == COLLECT):
            draft.end(name)


def may_collect(node: NodeView, place: CollectPlace) -> bool:
    """Whether a collect task may be given to the node now."""
    return node.live and node.eligible(COLLECT, place.labels)


def _pin(draft: Draft, place: Place, scope: Scope) -> None:
    """One ingest task on every node that matches, live or not; also while suspended."""
    nodes = draft.snapshot.nodes
    receives = draft.flow.record.state in ("running", "suspended")
    for node in sorted(nodes) if scope.everything else scope.nodes:
        view = nodes.get(node)
        name = f"{INGEST}.{node}"
        planned = draft.task(name) is not None
        if receives and view is not None and view.eligible(INGEST, place.ingest.labels):
            if not planned:
                draft.set(name, draft.given(INGEST, name, node, "sources run there"))
        elif planned:
            draft.end(name)
    if scope.everything:
        for name, task in draft.flow.tasks.items():
            if task.kind == INGEST and task.node not in nodes:
                draft.end(name)


def _collects(draft: Draft) -> bool:
    """A flow that ends is collected to the end of its journals, and of its sink commits."""
    record, snapshot = draft.flow.record, draft.snapshot
    if record.state in ("running", "suspended"):
        return record.state == "running"
    unfinished = draft.flow.name in snapshot.committing or any(
        name not in snapshot.drained for name in snapshot.journals_of(draft.flow.name)
    )
    return unfinished and not record.discard


class _Homeless(NamedTuple):
    """A task to be given away; ``task`` is what it was, None when it was not planned before."""

    name: str
    partitions: tuple[str, ...]
    reason: str
    task: PlannedTask | None


def _spread(draft: Draft, place: CollectPlace, scope: Scope) -> None:
    """The flow's journals over a fixed number of tasks, and those over the nodes.

    First every task that can stays where it is; then the others go to the least full nodes.
    """
    sharing = Sharing(draft, place.tasks, scope)
    changed, fresh = sharing.changed(), sharing.fresh
    homeless = [_Homeless(name, reads, "nobody runs it", None) for name, reads in fresh.items()]
    for name in _suspects(draft, place, scope, changed):
        before = draft.task(name)
        if before is None:
            continue
        task = changed.get(name, before)
        reason = _must_leave(draft, name, task)
        if reason is not None:
            draft.set(name, None)
            homeless.append(_Homeless(name, task.partitions, reason, task))
        elif (kept := _keep(draft, name, task, place)) != before:
            draft.set(name, kept)
        elif kept.state == ASSIGNED and draft.snapshot.nodes[kept.node or ""].live:
            draft.page.unsettled.discard(name)
    if homeless:
        _hand_over(draft, place, homeless)


def _suspects(
    draft: Draft, place: CollectPlace, scope: Scope, changed: Iterable[str]
) -> Iterable[str]:
    """The tasks that may have to change, in order."""
    if scope.everything:
        return (f"{COLLECT}.{number}" for number in range(place.tasks))
    own = draft.flow.name
    on_changed = (
        name
        for node in scope.nodes
        for (flow, name), task in draft.book.of_node(node).items()
        if flow == own and task.kind == COLLECT
    )
    collect = (name for name in scope.tasks if name.startswith(f"{COLLECT}."))
    return in_order({*draft.page.unsettled, *on_changed, *collect, *changed})


def _must_leave(draft: Draft, name: str, task: PlannedTask) -> str | None:
    """Why the task is to be given to someone now; None when it is not."""
    if task.node is None:
        return "nobody runs it"
    owner = draft.snapshot.nodes.get(task.node)
    if owner is None:
        return f"{task.node} is gone"
    if not owner.live:
        stays = draft.snapshot.cluster.maintenance or not owner.lost
        return None if stays else f"{task.node} is gone"
    if task.state == DRAINING:
        if owner.has_let_go(draft.flow.name, name):
            return f"{owner.name} let it go"
        if f"{draft.flow.name}/{name}" in draft.snapshot.overdue:
            return f"{owner.name} did not let it go in time"
    return None


def _keep(draft: Draft, name: str, task: PlannedTask, place: CollectPlace) -> PlannedTask:
    """It stays with its owner for now, draining when the owner may not keep it."""
    assert task.node is not None
    owner = draft.snapshot.nodes[task.node]
    if not owner.live:
        return task
    flow = draft.flow.name
    if not owner.eligible(COLLECT, place.labels):
        if task.state == DRAINING:
            return task
        if draft.snapshot.cluster.maintenance:
            return task
        draft.why.append(f"{flow}/{name} is to leave {owner.name}")
        return replace(task, state=DRAINING, target=None, why=f"{owner.name} may not keep it")
    target = draft.snapshot.nodes.get(task.target or "")
    if task.state == DRAINING and not (target and may_collect(target, place)):
        draft.why.append(f"{flow}/{name} stays with {owner.name} after all")
        return replace(task, state=ASSIGNED, target=None, why="")
    return task


def _hand_over(draft: Draft, place: CollectPlace, homeless: list[_Homeless]) -> None:
    """Give each task to the node that it was to go to, else to the least full one, the heaviest
    first, or let it wait."""
    flow = draft.flow
    weighed = [(flow.weight(one.partitions), one) for one in homeless]
    if any(weight != weighed[0][0] for weight, _ in weighed):
        weighed.sort(key=lambda pair: (-_heaviness(pair[0]), len(pair[1].name), pair[1].name))
    else:
        weighed.sort(key=lambda pair: (len(pair[1].name), pair[1].name))
    seating = Seating(draft, place)
    for weight, (name, partitions, reason, before) in weighed:
        node = seating.find(weight, before.target if before else None)
        if node is not None:
            revision = before.revision if before else 0
            given = draft.given(
                COLLECT, name, node, reason, partitions=partitions, revision=revision
            )
            draft.set(name, given)
            seating.taken(node)
            continue
        waits = "no live node may run it" if seating.empty else "no node has room for it"
        task = before or PlannedTask(
            kind=COLLECT, node=None, epoch=0, state=WAITING, partitions=partitions
        )
        if before is None:
            draft.why.append(f"{flow.name}/{name} waits: {waits}")
        draft.set(name, task if task.node else replace(task, why=waits))
        draft.page.unsettled.add(name)


class Seating:
    """Where tasks of one flow may go now, by its labels, its spread, and what the nodes hold."""

    def __init__(self, draft: Draft, place: CollectPlace) -> None:
        self._seats = draft.book.seats
        self._place = place
        self._page = draft.page
        self._pool = self._seats.pool(place.labels)
        self._zones = self._count_zones() if place.spread == "zone" else None
        self._refused: set[Amounts] = set()
        most, nodes = place.per_node, draft.page.nodes
        self._accepts = (lambda node: nodes[node] < most) if most else None

    @property
    def empty(self) -> bool:
        """Whether no live node may run the flow's tasks, full or not."""
        return not len(self._pool)

    def find(self, weight: Amounts, target: str | None) -> str | None:
        """``target`` when it may, else the least full node with room; in the zone that has the
        fewest, when that counts."""
        if target is not None and target in self._pool and self._seats.fits(target, weight):
            return target
        if weight in self._refused:
            return None
        accepts = self._accepts
        if self._zones is None:
            node = self._seats.least_full(self._pool, weight, accepts)
        else:
            node = None
            for zone in sorted(self._zones, key=lambda zone: (self._zones[zone], zone)):  # type: ignore[index]
                pool = self._seats.pool(self._place.labels, zone)
                node = self._seats.least_full(pool, weight, accepts)
                if node is not None:
                    break
        if node is None:
            self._refused.add(weight)
        return node

    def taken(self, node: str) -> None:
        """A task of the flow was given to the node."""
        if self._zones is not None:
            zone = self._seats.zone(node)
            assert zone is not None
            self._zones[zone] += 1

    def _count_zones(self) -> dict[str, int]:
        counts = dict.fromkeys(self._seats.zones(self._place.labels), 0)
        for node, number in self._page.nodes.items():
            zone = self._seats.zone(node)
            if zone in counts:
                counts[zone] += number
        return counts


def _heaviness(weight: Amounts) -> int:
    return sum(amount for _, amount in weight)
