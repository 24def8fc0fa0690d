"""Invariants of a relay, checked at each transaction of both sites and at each trim.

1. An event is delivered at most once, and never both delivered and in a gap record.
2. The subscriber's acks pass only events that are delivered or in a gap record.
3. A gap record names only events that the source dropped without a live lease on them, or gave up
   from a full journal.
4. Below a live lease nothing is trimmed, and no journal is removed.
5. A lease's acks never move back, and are never above the subscriber's.
6. A full journal gives up nothing that local readers have not read.
7. A lease ends neither before ``keep_seconds`` without a renewal nor long after.
8. In the end each event since the subscription began is delivered, in a gap record, or reported as
   lost with its journal.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from flumeng.connectors.sites.finder import AWAITED
from flumeng.control.snapshot.partitions import ack_path, remote_partition
from tests.testkit.simulation.ensemble import Change, Changes
from tests.testkit.simulation.relay.journal import ModelJournal
from tests.testkit.simulation.relay.source import FLOW
from tests.testkit.simulation.relay.subscriber import READER, Batch
from zkschema import paths
from zkschema.records import Ack, Lease, Partitions

if TYPE_CHECKING:
    from tests.testkit.simulation.relay.world import World

CURSOR = f"nyc:{READER}"
LEASE = str(paths.lease(FLOW, CURSOR))
LEASE_ACKS = f"{paths.cursor(FLOW, CURSOR)}/"
ACKS = f"{paths.cursor(READER, 'main')}/"
COMMITS = f"{paths.commits(READER)}/"
PARTITIONS = str(paths.partitions(READER))
FULL_LATELY_SECONDS = 300.0
"""A gateway's write may arrive late."""


class Checks:
    """``notes``: how often the subscriber was told that its lease had ended."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._staged: dict[str, Batch] = {}
        self._delivered: defaultdict[str, set[int]] = defaultdict(set)
        self._gaps: defaultdict[str, set[int]] = defaultdict(set)
        self._dropped: defaultdict[str, set[int]] = defaultdict(set)
        self._promised: dict[str, int] | None = None
        self._seen: set[str] = set()
        self._removed_unheld: set[str] = set()
        self._before: set[str] = set()
        self._leases = 0
        self._awaited: set[str] = set()
        self.notes = 0
        world.fra.listeners.append(self._on_source)
        world.nyc.listeners.append(self._on_subscriber)

    def stage(self, commit: str, batch: Batch) -> None:
        self._staged[commit] = batch

    @property
    def lease_since(self) -> int | None:
        """The transaction that made the lease, if there is one."""
        znode = self._world.fra.newest(LEASE)
        return znode.created if znode else None

    def on_trim(self, journal: ModelJournal, ack: int, seen: int) -> None:
        """``seen``: the transaction up to which the node had read at least."""
        if ack <= journal.floor:
            return
        if self._is_held(seen):
            held = self._lease_ack(journal.name)
            self._require(
                ack <= held, f"{journal.name} is trimmed to {ack}, the lease is at {held}"
            )
        else:
            self._dropped[journal.name].update(range(journal.floor, ack))

    def on_removed(self, journal: ModelJournal, seen: int) -> None:
        if self._is_held(seen):
            held = self._lease_ack(journal.name)
            end = journal.safe
            self._require(
                held >= end, f"{journal.name} is removed, the lease is at {held} of {end}"
            )
        elif self._leases > 1 and self._promised is not None:
            self._removed_unheld.add(journal.name)
        else:  # the decision was made before the subscription
            self._before.add(journal.name)

    def unfinished(self) -> str:
        """Return what the subscriber neither has nor has reported yet, or the lease does not
        cover."""
        if self._promised is None:
            return "the subscription has not begun"
        lost = self._lost()
        for name in map(_journal, lost):  # not before: a gateway's view may be outdated
            if not self._world.journals[name].removed:
                return f"{name} is reported as lost, and is there"
        for name, journal in self._world.journals.items():
            acked, held = self._acked(name), self._lease_ack(name)
            if not journal.removed and acked < journal.safe:
                return f"{name} is acked up to {acked} of {journal.safe}"
            if not journal.removed and held < acked:
                return f"the lease of {name} is at {held}, its ack at {acked}"
            unseen = name not in self._seen and name in self._removed_unheld and self.notes
            if remote_partition("fra", name) in lost or name in self._before or unseen:
                continue
            there = self._delivered[name] | self._gaps[name]
            missing = [n for n in range(self._promised.get(name, 0), journal.safe)
                       if n not in there]  # fmt: skip
            if missing:
                return f"silent gap: {name} lacks {missing[:5]}"
        return ""

    def _on_source(self, session: int, changes: Changes) -> None:
        paths_changed = {change.path for change in changes}
        for change in changes:
            if change.path == LEASE and change.after is None:
                self._on_lease_ended(session, change)
            self._leases += change.path == LEASE and change.before is None
            if change.path.startswith(LEASE_ACKS) and change.after is not None:
                self._on_lease_ack(change, renewed=LEASE in paths_changed)

    def _on_lease_ended(self, session: int, change: Change) -> None:
        fra = self._world.fra
        assert change.before is not None
        assert isinstance(change.before.value, Lease)
        until = fra.time_of(change.before.changed) + change.before.value.keep_seconds
        late = f"{fra.name_of(session)} ends the lease {until - fra.clock():.1f} s too early"
        self._require(fra.clock() >= until, late)

    def _on_lease_ack(self, change: Change, *, renewed: bool) -> None:
        name = change.path.removeprefix(LEASE_ACKS)
        after = _offset(change)
        before = change.before.value.offset if change.before else 0  # type: ignore[union-attr]
        self._require(after >= before, f"the lease's ack of {name} moves back to {after}")
        if renewed or (change.before is None and self.lease_since is None):
            acked = max(before, self._acked(name))
            self._require(after <= acked, f"the lease's ack {after} of {name} is above {acked}")
            return
        journal = self._world.journals[name]
        least = self._own_ack(name)
        self._require(after <= least, f"{name} gives up {after}, its own flow has read {least}")
        lately = journal.full or self._world.now - journal.last_full <= FULL_LATELY_SECONDS
        self._require(lately, f"{name} gives up {after}, and was not full")
        self._dropped[name].update(range(max(before, 0), after))

    def _on_subscriber(self, _session: int, changes: Changes) -> None:
        for change in changes:
            if change.path.startswith(COMMITS) and change.before is None:
                self._deliver(self._staged.pop(change.path))
        for change in changes:
            if change.path.startswith(ACKS) and change.after is not None:
                self._on_ack(change)
            if change.path == PARTITIONS and change.after is not None:
                assert isinstance(change.after.value, Partitions)
                self._on_partitions(change.after.value)

    def _deliver(self, batch: Batch) -> None:
        for partition, seqs in batch.events.items():
            name = _journal(partition)
            twice = self._delivered[name].intersection(seqs) or self._gaps[name].intersection(seqs)
            self._require(not twice, f"{name} has {sorted(twice)[:5]} twice")
            self._delivered[name].update(seqs)
        for gap in batch.gaps:
            name, seqs = _journal(gap.piece.partition), range(gap.piece.start, gap.piece.end)
            twice = self._delivered[name].intersection(seqs) or self._gaps[name].intersection(seqs)
            self._require(not twice, f"{name} has {sorted(twice)[:5]} and a gap record of them")
            kept = [seq for seq in seqs if seq not in self._dropped[name]]
            self._require(not kept, f"{name} has a gap record of {kept[:5]}, which were held")
            self._gaps[name].update(seqs)

    def _on_ack(self, change: Change) -> None:
        name = _journal(change.path.removeprefix(ACKS))
        before = change.before.value.offset if change.before else 0  # type: ignore[union-attr]
        start = max(before, self._promised.get(name, 0) if self._promised else _offset(change))
        there = self._delivered[name] | self._gaps[name]
        missing = [seq for seq in range(start, _offset(change)) if seq not in there]
        self._require(not missing, f"silent gap: {name} is acked without {missing[:5]}")

    def _on_partitions(self, record: Partitions) -> None:
        self._seen.update(map(_journal, record.partitions))
        if record.scope is None:
            return
        journals = self._world.journals
        if self._promised is None:
            self._promised = {name: at.floor for name, at in journals.items()}
        awaited = {text.removeprefix(AWAITED) for text in record.scope if text.startswith(AWAITED)}
        for name in self._awaited:
            self._promised[name] = journals[name].floor
        self._awaited = awaited

    def _is_held(self, seen: int) -> bool:
        since = self.lease_since
        return since is not None and since <= seen

    def _lease_ack(self, journal: str) -> int:
        return self._newest(self._world.fra, str(paths.ack(FLOW, CURSOR, journal)))

    def _own_ack(self, journal: str) -> int:
        return self._newest(self._world.fra, str(paths.ack(FLOW, "main", journal)))

    def _acked(self, journal: str) -> int:
        return self._newest(
            self._world.nyc, str(ack_path(READER, remote_partition("fra", journal)))
        )

    def _newest(self, ensemble: object, path: str) -> int:
        znode = ensemble.newest(path)  # type: ignore[attr-defined]
        return znode.value.offset if znode else 0

    def _lost(self) -> set[str]:
        znode = self._world.nyc.newest(PARTITIONS)
        return set(znode.value.held) if znode else set()  # type: ignore[union-attr]

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise self._world.story.violation(what)


def _offset(change: Change) -> int:
    assert change.after is not None
    assert isinstance(change.after.value, Ack)
    return change.after.value.offset


def _journal(partition: str) -> str:
    return partition.removesuffix("@site").partition(":")[2]
