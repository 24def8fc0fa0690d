"""Access lists of journals with copies, and of their acks.

Who is to hold a copy may read the record; who leads may write it, and read what is acked.

ZooKeeper changes a record and a list in two steps. A list is set before the record that wants it is
written, and looked at again whenever the record has changed, and now and then: whoever fails
between the two leaves nothing that stays wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from flumeng.errors import ForbiddenError
from flumeng.plan import Action, Replicate
from flumeng.state.snapshot import Snapshot
from flumeng.store import AccessStore, Store, Version, access_lists
from zkschema import paths
from zkschema.access import Secured
from zkschema.records import Journal

AGAIN_SECONDS = 60.0
PROMOTED_AGAIN_SECONDS = 5.0
"""Of a journal that another node leads than the one that made it: acks may be new, and have the
lists of their paths."""


@dataclass
class JournalAccess:
    """Of the journals of one master's share. ``clock`` gives seconds that only grow."""

    store: Store
    clock: Callable[[], float]
    _right: dict[str, tuple[Version, float]] = field(default_factory=dict)
    """The lists were right for this version of the record, at this time."""

    def follow(
        self, secured: Secured | None, snapshot: Snapshot, actions: Iterable[Action]
    ) -> Mapping[str, str]:
        """Set the lists that are others than the records want, or are to want after the actions;
        gives ``journal J`` -> why one could not be set. Nothing is done in an open cluster. Raises
        UnavailableError."""
        if secured is None or not isinstance(self.store, AccessStore):
            return {}
        records = self._records(snapshot, actions)
        names = self._znodes(records)
        wrong = {}
        for path, known in zip(names, self.store.access_lists(list(names)), strict=True):
            wanted = access_lists.wanted(path, secured, records[names[path]])
            if known not in (None, wanted):
                wrong[path] = wanted
        try:
            self.store.set_access_lists(wrong)
        except ForbiddenError:
            why = (
                "access lists cannot be brought up to date, so that its copies may not read who "
                "leads: an administrator has to run `flumeng schema verify --repair`"
            )
            return {f"journal {names[path]}": why for path in wrong}
        now = self.clock()
        for name, journal in records.items():
            if journal is snapshot.journals.get(name):
                self._right[name] = (snapshot.journal_versions[name], now)
        return {}

    def _records(self, snapshot: Snapshot, actions: Iterable[Action]) -> dict[str, Journal]:
        """Those to look at."""
        now, versions = self.clock(), snapshot.journal_versions
        self._right = {name: one for name, one in self._right.items() if name in versions}
        records = {}
        for name, version in versions.items():
            journal = snapshot.journals[name]
            known, since = self._right.get(name, (None, now))
            again = PROMOTED_AGAIN_SECONDS if _is_promoted(journal) else AGAIN_SECONDS
            if journal.flow in snapshot.mine and (known != version or now - since >= again):
                records[name] = journal
        return records | {one.journal: one.record for one in actions if isinstance(one, Replicate)}

    def _znodes(self, records: Mapping[str, Journal]) -> dict[str, str]:
        """Path -> the journal that it is of."""
        promoted = {name: one.flow for name, one in records.items() if _is_promoted(one)}
        flows = sorted({*promoted.values()})
        listed = self.store.children_many([paths.acks(flow) for flow in flows])
        cursors = dict(zip(flows, listed, strict=True))
        acks = {
            str(paths.ack(flow, cursor, name)): name
            for name, flow in promoted.items()
            for cursor in cursors[flow]
        }
        return {str(paths.journal(name)): name for name in records} | acks


def _is_promoted(journal: Journal) -> bool:
    return journal.primary != journal.node
