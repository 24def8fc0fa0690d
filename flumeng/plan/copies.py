"""Which nodes hold the copies of replicated journals, and who leads one whose primary is lost.

A copy stays where it is as long as its node is live, or is missed for less than the grace period.
New ones are in other zones than the primary and each other as long as one has a node for them,
each on the node that holds the fewest. A copy that is to leave (its node is drained, or an operator
moves it) holds on until as many others as the flow wants are in sync.

Who is in sync is not decided here: the primary says so. Only where that is lost, one of those in
sync leads in its stead, in a new term; where none is live, nobody does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b

from flumeng.errors import CorruptError
from flumeng.plan.actions import Replicate
from flumeng.plan.indexed_heap import IndexedHeap
from flumeng.replication.membership import Membership, node_of
from flumeng.spec.replicas import Replicas
from flumeng.state.rendezvous import chosen
from flumeng.state.snapshot import NodeView, Snapshot
from zkschema.records import COPY, Journal


class Copies:
    """One round of choosing."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._nodes = snapshot.nodes
        self._pools: dict[str, IndexedHeap[int]] | None = None
        self._held: Counter[str] = Counter()

    def changes(self) -> Iterator[Replicate]:
        """What is to change of the journals of this master's flows; nothing moves in maintenance
        mode."""
        if self._snapshot.cluster.maintenance is not None:
            return
        for name, version in self._snapshot.journal_versions.items():
            journal = self._snapshot.journals[name]
            flow = self._snapshot.flows.get(journal.flow)
            if flow is None or flow.name not in self._snapshot.mine or journal.gone:
                continue
            after, why = self._promoted(name, journal)
            if flow.replicas is not None:
                after, more = self._placed(name, after, flow.replicas)
                why += more
            if after != journal:
                yield Replicate(name, after, version, why)

    def _promoted(self, name: str, journal: Journal) -> tuple[Journal, tuple[str, ...]]:
        """With a primary whose node is not lost, if one of those in sync has such a node."""
        if not is_lost(self._nodes.get(journal.primary)):
            return journal, ()
        copies = {node_of(copy): copy for copy in journal.in_sync if self._is_live(node_of(copy))}
        stay = [node for node in copies if self._nodes[node].record.desired == "active"]
        node = chosen(name, stay or copies)
        try:
            known = Membership.of(journal)
        except CorruptError:
            return journal, ()
        if node is None:
            return journal, ()
        why = f"journal {name}: {node} leads, since {journal.primary} is lost"
        return known.promoted(copies[node]).put_into(journal), (why,)

    def _placed(
        self, name: str, journal: Journal, wanted: Replicas
    ) -> tuple[Journal, tuple[str, ...]]:
        """With as many copies as are wanted; a journal that takes no events keeps those it has."""
        if journal.closed or not self._is_live(journal.primary):
            return journal, ()
        known = dict.fromkeys((journal.primary, *journal.copies))
        lost = [node for node in known if is_lost(self._nodes.get(node))]
        leaving = [
            node
            for node in known
            if node not in (journal.primary, *lost) and self._is_to_leave(node, journal)
        ]
        stay = [node for node in known if node not in lost and node not in leaving]
        added: list[str] = []
        while len(stay) < wanted.copies:
            node = self._find(stay, {*known, *added}, wanted)
            if node is None:
                break
            added.append(node)
            stay.append(node)
        in_sync = {node_of(copy) for copy in journal.in_sync}
        kept = {*stay, *lost[: max(0, wanted.copies - len(stay))]}
        if len(in_sync.intersection(stay)) < wanted.copies:
            kept.update(leaving)
        copies = tuple(node for node in (*known, *added) if node in kept)
        marked = tuple(node for node in journal.leaving if node in kept)
        if (copies, marked) == (journal.copies, journal.leaving):
            return journal, ()
        why = [f"journal {name}: {node} is to hold a copy" for node in added]
        why += [
            f"journal {name}: {node} holds no copy any more" for node in known if node not in kept
        ]
        return (
            replace(journal, copies=copies, leaving=marked),
            tuple(why) or (f"journal {name}: its copies are brought up to date",),
        )

    def _is_live(self, node: str) -> bool:
        view = self._nodes.get(node)
        return view is not None and view.live

    def _is_to_leave(self, node: str, journal: Journal) -> bool:
        view = self._nodes[node]
        return not view.set_aside and (node in journal.leaving or not view.eligible(COPY, {}))

    def _find(self, beside: list[str], taken: set[str], wanted: Replicas) -> str | None:
        """The node that holds the fewest copies, of the zones that count first; ``beside`` begins
        with the primary."""
        if self._pools is None:
            self._pools = self._made_pools()
        pools = self._pools
        zones = [self._nodes[node].record.zone for node in beside if node in self._nodes]
        used = zones if wanted.spread == "zone" else []
        free = [
            (zone in used[:1], zone in used, pool.ranks[node], node)
            for zone, pool in pools.items()
            if (node := pool.first(lambda node: node not in taken)) is not None
        ]
        found = min(free)[3] if free else None
        if found is not None:
            self._held[found] += 1
            pools[self._nodes[found].record.zone].set(found, self._rank(found))
        return found

    def _made_pools(self) -> dict[str, IndexedHeap[int]]:
        """Zone -> the nodes that may get a copy."""
        for name in self._snapshot.journal_versions:
            self._held.update(self._snapshot.journals[name].copies)
        pools: dict[str, IndexedHeap[int]] = {}
        for name, view in self._nodes.items():
            if view.live and view.eligible(COPY, {}):
                pool = pools.setdefault(view.record.zone, IndexedHeap())
                pool.set(name, self._rank(name))
        return pools

    def _rank(self, node: str) -> int:
        """By the number of copies, then in another order for each number, so that the journals of
        one node do not all have their copies on the same other one."""
        count = self._held[node]
        order = blake2b(f"{count} {node}".encode(), digest_size=4).digest()
        return (count << 32) + int.from_bytes(order)


def is_lost(node: NodeView | None) -> bool:
    """Whether the node is missed for the whole grace period, or was removed."""
    return node is None or (node.lost and not node.live)


def told(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """Node -> the replicated journals of this master's flows that it holds or is to hold, or has
    made, each with the version of its record."""
    found: dict[str, dict[str, int]] = {}
    for name, version in snapshot.journal_versions.items():
        journal = snapshot.journals[name]
        if journal.flow in snapshot.mine:
            for node in {journal.node, journal.primary, *journal.copies}:
                found.setdefault(node, {})[name] = version.number
    return found


def told_now(view: NodeView, own: Mapping[str, int], snapshot: Snapshot) -> Mapping[str, int]:
    """What the node is to be told: ``own``, and as it is what is of other masters' flows, or of a
    record that cannot be read."""
    kept = {
        name: version
        for name, version in view.assignment.journals.items()
        if name in snapshot.journals
        and not (
            name in snapshot.journal_versions and snapshot.journals[name].flow in snapshot.mine
        )
    }
    return {**kept, **own} if kept else own
