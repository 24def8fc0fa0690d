"""Maintains the access lists of replicated journals and acks: replica holders read the record, the
primary writes it and reads the acks. A list is set before the record that needs it, and checked
again after changes and periodically, since ZooKeeper sets the two in separate steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from flumeng.control.planner.actions import Action, Replicate
from flumeng.control.snapshot.snapshot import Snapshot
from flumeng.control.zookeeper import AccessStore, Store, Version, access_lists
from flumeng.platform.errors import ForbiddenError
from zkschema import paths
from zkschema.access import Secured
from zkschema.records import Journal

AGAIN_SECONDS = 600.0
ACKS_AGAIN_SECONDS = 5.0
"""Delay of a journal's check without acks: the first ack gets the access list of its path."""
CHECKS = 100
"""Journals checked in one tick, which takes about 0.1 s; promotions are never delayed."""


@dataclass
class JournalAccess:
    """Access lists of one master's journals. ``clock``: monotonic. ``waiting``: more are due."""

    store: Store
    clock: Callable[[], float]
    waiting: bool = False
    checks: int = CHECKS
    _right: dict[str, tuple[Version, float]] = field(default_factory=dict)
    """By journal: the record version with right lists, and the time of the next check."""

    def follow(
        self, secured: Secured | None, snapshot: Snapshot, actions: Iterable[Action]
    ) -> Mapping[str, str]:
        """Correct the lists of due and planned records and their acks; return the failures by
        ``journal J``. Does nothing in an open cluster. Raises UnavailableError."""
        self.waiting = False
        if secured is None or not isinstance(self.store, AccessStore):
            return {}
        planned = {a.journal: a.record for a in actions if isinstance(a, Replicate)}
        due = self._due(snapshot, planned)
        records = {name: snapshot.journals[name] for name in due}
        znodes = self._znodes(records)
        wrong, again = {}, dict.fromkeys(due, AGAIN_SECONDS)
        for path, current in zip(znodes, self.store.access_lists(list(znodes)), strict=True):
            name = znodes[path]
            target = access_lists.expected(path, secured, records[name])
            if current is None:
                again[name] = ACKS_AGAIN_SECONDS
            elif current != target:
                wrong[path] = target
        for name, journal in planned.items():
            path = str(paths.journal(name))
            znodes[path] = name
            wrong[path] = access_lists.expected(path, secured, journal)
        try:
            self.store.set_access_lists(wrong)
        except ForbiddenError:
            why = (
                "cannot update its access lists, so its replicas may not read which node leads: an "
                "administrator has to run `flumeng schema verify --fix`"
            )
            return {f"journal {znodes[path]}": why for path in wrong}
        now = self.clock()
        for name in due:
            self._right[name] = (snapshot.journal_versions[name], now + again[name])
        return {}

    def _due(self, snapshot: Snapshot, planned: Collection[str]) -> list[str]:
        """Return at most ``checks`` journals to check now, those with changed records first."""
        now, versions = self.clock(), snapshot.journal_versions
        self._right = {
            name: checked
            for name, checked in self._right.items()
            if name in versions and name not in planned
        }
        changed, again = [], []
        for name, version in versions.items():
            if snapshot.journals[name].flow in snapshot.mine and name not in planned:
                checked, at = self._right.get(name, (None, now))
                if checked != version:
                    changed.append(name)
                elif at <= now:
                    again.append(name)
        due = [*changed, *again]
        self.waiting = len(due) > self.checks
        return due[: self.checks]

    def _znodes(self, records: Mapping[str, Journal]) -> dict[str, str]:
        promoted = {name: j.flow for name, j in records.items() if j.primary != j.node}
        flows = sorted({*promoted.values()})
        listed = self.store.children_many([paths.acks(flow) for flow in flows])
        cursors = dict(zip(flows, listed, strict=True))
        acks = {
            str(paths.ack(flow, cursor, name)): name
            for name, flow in promoted.items()
            for cursor in cursors[flow]
        }
        return {str(paths.journal(name)): name for name in records} | acks
