"""Reconciles the workers' replicated journals with ZooKeeper, in both directions. A replica without
a record in an imported tree is kept, since it may be the last one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from flumeng.agent.node.data_directory import DataDirectory, KnownNames
from flumeng.agent.node.journal_registry import JournalRegistry, Scan
from flumeng.agent.node.machine import Machine
from flumeng.agent.node.poll_backoff import PollBackoff
from flumeng.agent.node.protocol import Message
from flumeng.control.zookeeper import Store, Versioned
from flumeng.platform.errors import ConflictError
from zkschema import paths
from zkschema.records import Revision
from zkschema.table import NAME

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
NAMED = 5


Trusts = Callable[[str, Revision], bool]


class ReplicatedJournals:
    """Exchanges the state of replicated journals between workers and ZooKeeper. ``remember(present,
    local)`` stores which records were seen in this tree. ``is_same_tree`` returns whether ZooKeeper
    still has that tree; raises UserError for another cluster."""

    def __init__(
        self,
        home: DataDirectory,
        machine: Machine,
        registry: JournalRegistry,
        texts: CurrentTexts,
        *,
        me: str,
        remember: Callable[[Collection[str], Collection[str]], KnownNames],
        is_same_tree: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._me, self._home = me, home
        self._machine, self._registry, self._texts = machine, registry, texts
        self._remember, self._is_same_tree, self._clock = remember, is_same_tree, clock
        self._at = 0.0
        self._unknown: Collection[str] = ()

    @property
    def due(self) -> bool:
        return self._clock() >= self._at

    def scan_soon(self) -> None:
        self._at = 0.0

    @property
    def problems(self) -> dict[str, str]:
        if not self._unknown:
            return self._registry.leaderless
        names = ", ".join(sorted(self._unknown)[:NAMED])
        why = (
            f"replicas of {len(self._unknown)} journals are kept ({names}): ZooKeeper has no "
            "record of these journals, and nothing shows that they were collected. To collect "
            f"one, run `flumeng journal promote JOURNAL --to {self._me} --unclean`. To discard "
            f"one, stop the node and remove its directory from {self._home.path / 'copies'}"
        )
        return {**self._registry.leaderless, "replicas without a record": why}

    def ask_for_changes(self) -> None:
        """Apply the membership changes that workers request. Raises UnavailableError."""
        self.scan_soon()
        proposals, self._machine.proposals = self._machine.proposals, {}
        for journal, proposal in proposals.items():
            try:
                self._registry.change(proposal)
            except ConflictError as conflict:
                log.info("the replicas of journal %s are not changed now: %s", journal, conflict)

    def scan(self, assigned: Mapping[str, int], tell: Callable[[Message], None]) -> Scan | None:
        """Send workers the memberships and unwanted replicas; None without replicated journals.
        ``assigned``: record versions from the assignment. Raises UnavailableError."""
        self._at = self._clock() + LOOK_SECONDS
        local, replicas = self._machine.journals or {}, self._machine.replicas
        own = {name: journal["replica"] for name, journal in local.items() if "replica" in journal}
        names = {*assigned, *own}
        if not (names or replicas):
            return None
        scan = self._registry.find(names, replicas, self._usable, assigned)
        unwanted = {*scan.message["unwanted"], *self._collected(scan, assigned)}
        if unwanted and not self._is_same_tree():
            unwanted = set()
        if set(scan.led) - set(self._registry.led):
            self._registry.reread()
        self._registry.led = scan.led
        locked = {journal["flow"] for journal in local.values() if journal.get("locked")}
        texts = self._texts.of(locked)
        tell({**scan.message, "unwanted": sorted(unwanted), "texts": texts})
        return scan

    def settle(self, scan: Scan) -> None:
        """Hand over journals without a usable local replica, and remove records of journals that
        other nodes have ended. Raises ConflictError, UnavailableError."""
        local, usable = self._machine.journals or {}, self._usable
        self._registry.forget({n: j for n, j in scan.forgotten.items() if n not in local})
        unneeded = self._registry.acks(scan.lost.keys()).unneeded if scan.lost else ()
        for name, record in scan.lost.items():
            own = usable.get(name, "")
            if name not in unneeded and self._registry.hand_over(name, record, own):
                self.scan_soon()

    @property
    def _usable(self) -> dict[str, str]:
        local = self._machine.journals or {}
        ids = dict(self._machine.replicas)
        ids.update((name, item["replica"]) for name, item in local.items() if "replica" in item)
        return {n: replica for n, replica in ids.items() if not local.get(n, {}).get("damaged")}

    def _collected(self, scan: Scan, assigned: Collection[str]) -> tuple[str, ...]:
        """Return the replicas whose records were seen in this tree and are now absent. Assigned
        journals count as local: a replica may be made after its record was last seen."""
        local = {*self._machine.replicas, *assigned}
        present = {*self._machine.replicas, *scan.message["journals"]}.difference(scan.absent)
        collected = self._remember(present, local).deleted(scan.absent)
        self._unknown = set(scan.absent).difference(collected)
        return collected


class CurrentTexts:
    def __init__(
        self, store: Store, trusts: Trusts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._trusts = store, trusts
        self._polls = PollBackoff(clock)
        self._texts: dict[str, tuple[int, str]] = {}

    def of(self, flows: Collection[str]) -> Mapping[str, str]:
        """Return each flow's current text, if readable and trusted; polled less often while
        unchanged. Raises UnavailableError."""
        valid = sorted(flow for flow in flows if NAME.fullmatch(flow))
        self._texts = {flow: text for flow, text in self._texts.items() if flow in valid}
        due = self._polls.due(valid)
        records = self._store.read_each([paths.flow(flow) for flow in due])
        for flow, record in zip(due, records, strict=True):
            number = record.value.revision if isinstance(record, Versioned) else None
            if number is not None and self._texts.get(flow, (None, ""))[0] != number:
                (revision,) = self._store.read_each([paths.revision(flow, str(number))])
                if isinstance(revision, Versioned) and self._trusts(flow, revision.value):
                    self._texts[flow] = number, revision.value.effective
            self._polls.seen(flow, number)
        return {flow: text for flow, (_, text) in self._texts.items()}
