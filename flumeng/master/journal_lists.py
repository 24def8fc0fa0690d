"""Access lists of journals with copies: who is to hold one may read the record, who leads write it.

ZooKeeper changes a record and its list in two steps. A list is set before the record that wants it
is written, and looked at again whenever the record has changed, and once a minute: whoever fails
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


@dataclass
class JournalLists:
    """Of the journals of one master's share. ``clock`` gives seconds that only grow."""

    store: Store
    clock: Callable[[], float]
    _right: dict[str, tuple[Version, float]] = field(default_factory=dict)
    """The list was right for this version of the record, at this time."""

    def follow(
        self, secured: Secured | None, snapshot: Snapshot, actions: Iterable[Action]
    ) -> Mapping[str, str]:
        """Set the lists that are others than the records want, or are to want after the actions;
        gives ``journal J`` -> why it could not be set. Nothing is done in an open cluster. Raises
        UnavailableError."""
        if secured is None or not isinstance(self.store, AccessStore):
            return {}
        records = self._records(snapshot, actions)
        znodes = {name: str(paths.journal(name)) for name in records}
        there = self.store.access_lists(list(znodes.values()))
        wrong = {}
        for (name, path), found in zip(znodes.items(), there, strict=True):
            wanted = access_lists.wanted(path, secured, records[name])
            if found is not None and found != wanted:
                wrong[path] = wanted
        try:
            self.store.set_access_lists(wrong)
        except ForbiddenError:
            why = (
                "its access list cannot be brought up to date, so that its copies may not read who "
                "leads: an administrator has to run `flumeng schema verify --repair`"
            )
            return {f"journal {path.rpartition('/')[2]}": why for path in wrong}
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
            is_right = known == version and now - since < AGAIN_SECONDS
            if journal.flow in snapshot.mine and not is_right:
                records[name] = journal
        return records | {one.journal: one.record for one in actions if isinstance(one, Replicate)}
