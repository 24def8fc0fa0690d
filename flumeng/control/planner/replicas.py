"""Places the replicas of journals, and replaces lost primaries. A replica stays while its node is
live or missing for less than the grace period. A journal with too few replicas in sync takes no
events and gets another replica at once. New replicas go to separate zones if possible, each to the
node with the fewest. A replica to be removed stays until enough others are in sync. The primary
maintains the in-sync set; when the primary is lost, a member of that set leads in a new term."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

from flumeng.config.replicas import Replicas
from flumeng.control.planner.actions import Replicate
from flumeng.control.planner.indexed_heap import IndexedHeap
from flumeng.control.planner.replica_index import ReplicaIndex
from flumeng.control.snapshot.rendezvous import chosen
from flumeng.control.snapshot.snapshot import NodeView, Snapshot
from flumeng.journal.replication.membership import Membership, node_of
from flumeng.platform.errors import CorruptError
from zkschema.records import REPLICA, Journal


class ReplicaPlan:
    def __init__(self, snapshot: Snapshot, index: ReplicaIndex) -> None:
        self._snapshot = snapshot
        self._index = index
        self._nodes = snapshot.nodes
        self._pools: dict[str, IndexedHeap[int]] | None = None
        self._held: Counter[str] = Counter()
        self._lacking: set[str] = set()

    def changes(self) -> list[Replicate]:
        """Return all changes. In maintenance mode only lost primaries are replaced."""
        snapshot = self._snapshot
        if not snapshot.cluster_known:
            return []
        moves = snapshot.cluster.maintenance is None
        actions = []
        for name in sorted(self._index.open):
            journal = snapshot.journals[name]
            flow = snapshot.flows.get(journal.flow)
            if flow is None or flow.name not in snapshot.mine or journal.gone:
                continue
            after, why = self._promoted(name, journal)
            if flow.replicas is not None and moves:
                after, more = self._placed(name, after, flow.replicas)
                why += more
            if after != journal:
                version = snapshot.journal_versions[name]
                actions.append(Replicate(name, after, version, why))
            if flow.replicas is not None and not moves:
                self._lacking.add(name)
        self._index.open = self._lacking
        return actions

    def _promoted(self, name: str, journal: Journal) -> tuple[Journal, tuple[str, ...]]:
        """Promote a live in-sync replica when the primary's node is down."""
        if not is_down(self._nodes.get(journal.primary)):
            return journal, ()
        replicas = {
            node_of(replica): replica
            for replica in journal.in_sync
            if self._is_live(node_of(replica))
        }
        stay = [node for node in replicas if self._nodes[node].record.desired == "active"]
        node = chosen(name, stay or replicas)
        try:
            membership = Membership.of(journal)
        except CorruptError:
            return journal, ()
        if node is None:
            return journal, ()
        why = f"journal {name}: {node} leads, since {journal.primary} is lost"
        return membership.promoted(replicas[node]).put_into(journal), (why,)

    def _placed(
        self, name: str, journal: Journal, target: Replicas
    ) -> tuple[Journal, tuple[str, ...]]:
        """Add and remove replicas, unless the journal is closed or its primary is not live."""
        if journal.closed or not self._is_live(journal.primary):
            return journal, ()
        holders = dict.fromkeys((journal.primary, *journal.replicas))
        lost = [node for node in holders if is_down(self._nodes.get(node))]
        takes = self._takes(journal, target)
        missed = [] if takes else [node for node in holders if not self._is_live(node)]
        leaving = [
            node
            for node in holders
            if node not in (journal.primary, *lost)
            and (node in missed or self._is_to_leave(node, journal))
        ]
        stay = [node for node in holders if node not in lost and node not in leaving]
        added: list[str] = []
        while len(stay) < target.copies:
            node = self._find(stay, {*holders, *added}, target)
            if node is None:
                self._lacking.add(name)
                break
            added.append(node)
            stay.append(node)
        in_sync = {node_of(replica) for replica in journal.in_sync}
        kept = {*stay, *lost[: max(0, target.copies - len(stay))]}
        if len(in_sync.intersection(stay)) < target.copies:
            kept.update(leaving)
        replicas = tuple(node for node in (*holders, *added) if node in kept)
        replaced = [node for node in leaving if node in missed] if added else []
        marked = tuple(n for n in dict.fromkeys((*journal.leaving, *replaced)) if n in kept)
        if (replicas, marked) == (journal.replicas, journal.leaving):
            return journal, ()
        why = [f"journal {name}: {node} gets a replica" for node in added]
        why += [f"journal {name}: {n} no longer holds a replica" for n in holders if n not in kept]
        return (
            replace(journal, replicas=replicas, leaving=marked),
            tuple(why) or (f"journal {name}: its replicas are updated",),
        )

    def _takes(self, journal: Journal, target: Replicas) -> bool:
        """Return whether enough in-sync replicas are on live nodes to take events."""
        live = [replica for replica in journal.in_sync if self._is_live(node_of(replica))]
        return len(live) >= target.min_in_sync

    def _is_live(self, node: str) -> bool:
        view = self._nodes.get(node)
        return view is not None and view.live

    def _is_to_leave(self, node: str, journal: Journal) -> bool:
        view = self._nodes[node]
        return not view.set_aside and (node in journal.leaving or not view.eligible(REPLICA, {}))

    def _find(self, beside: list[str], taken: set[str], target: Replicas) -> str | None:
        """Choose a new replica's node; ``beside``: those of the others, the primary's first."""
        if self._pools is None:
            self._pools = self._made_pools()
        pools = self._pools
        zones = [self._nodes[node].record.zone for node in beside if node in self._nodes]
        used = zones if target.spread == "zone" else []
        free = [
            (zone in used[:1], zone in used, pool.ranks[node], node)
            for zone, pool in pools.items()
            if (node := pool.first(lambda node: node not in taken)) is not None
        ]
        best = min(free)[3] if free else None
        if best is not None:
            self._held[best] += 1
            pools[self._nodes[best].record.zone].set(best, self._rank(best))
        return best

    def _made_pools(self) -> dict[str, IndexedHeap[int]]:
        self._held = self._index.held.copy()
        pools: dict[str, IndexedHeap[int]] = {}
        for name, view in self._nodes.items():
            if view.live and view.eligible(REPLICA, {}):
                pool = pools.setdefault(view.record.zone, IndexedHeap())
                pool.set(name, self._rank(name))
        return pools

    def _rank(self, node: str) -> int:
        """Rank by number of replicas, then in a different order for each number, to spread them."""
        count = self._held[node]
        order = blake2b(f"{count} {node}".encode(), digest_size=4).digest()
        return (count << 32) + int.from_bytes(order)


def is_down(node: NodeView | None) -> bool:
    return node is None or (node.down and not node.live)


def assigned_journals(
    view: NodeView, held: Mapping[str, int], snapshot: Snapshot
) -> Mapping[str, int]:
    """Return the journals to assign: ``held`` ones of this master's flows, others unchanged."""
    journals, mine = snapshot.journals, snapshot.mine
    own = {name: version for name, version in held.items() if journals[name].flow in mine}
    kept = {
        name: version
        for name, version in view.assignment.journals.items()
        if name in journals
        and not (name in snapshot.journal_versions and journals[name].flow in mine)
    }
    return {**kept, **own}
