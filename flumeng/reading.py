"""From the store to a snapshot. Everything is read anew at every tick; only texts that can never
change (a revision's place) and the moments since which a node is missed or a task drains are kept
in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from flumeng.model import FlowView, NodeView, Snapshot
from flumeng.spec import Place, SpecError, parse_flow
from flumeng.store import ABSENT, Store
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Assignment, Cluster, Journal, Plan


class Reader:
    """``clock`` gives seconds that only ever grow; ``me`` is this master's name."""

    def __init__(self, store: Store, me: str, clock: Callable[[], float]) -> None:
        self._store = store
        self._me = me
        self._clock = clock
        self._places: dict[tuple[str, int, int], tuple[Place | None, str]] = {}
        self._missed_since: dict[str, float] = {}
        self._draining_since: dict[tuple[str, int], float] = {}

    def snapshot(self) -> Snapshot:
        """Raises UnavailableError, and CorruptError or UserError for a record that is none."""
        flows = self._flows()
        journals = self._journals()
        drained = self._drained(journals)
        masters = self._store.children(paths.live_masters())
        found = self._store.read(paths.cluster())
        cluster = found.value if found else Cluster()
        return Snapshot(
            flows=flows,
            nodes=self._nodes(),
            journals=journals,
            drained=drained,
            committing=self._committing(flows),
            mine=frozenset(
                flow for flow in flows if looks_after(flow, masters) in (self._me, None)
            ),
            grace_seconds=cluster.grace_seconds,
            draining_seconds=self._draining(flows),
            drain_limit_seconds=cluster.drain_limit_seconds,
            balance_moves=cluster.throttles.get("balance", 1),
        )

    def _flows(self) -> dict[str, FlowView]:
        names = self._store.children(paths.flows())
        records = self._store.read_many([paths.flow(name) for name in names])
        plans = self._store.read_many([paths.plan(name) for name in names])
        views = {}
        for name, record, plan in zip(names, records, plans, strict=True):
            if record is None:
                continue
            place, problem = self._place(name, record.created, record.value.revision)
            views[name] = FlowView(
                name,
                record.value,
                record.version,
                place,
                problem,
                plan.value if plan else Plan(),
                plan.version if plan else ABSENT,
            )
        return views

    def _place(self, flow: str, created: int, revision: int) -> tuple[Place | None, str]:
        """A flow that was removed and made again begins with another revision 1."""
        key = (flow, created, revision)
        if key not in self._places:
            found = self._store.read(paths.revision(flow, str(revision)))
            if found is None:
                return None, f"revision {revision} is not there"
            try:
                self._places[key] = (parse_flow(found.value.text).place, "")
            except SpecError as error:
                self._places[key] = (None, str(error))
        return self._places[key]

    def _nodes(self) -> dict[str, NodeView]:
        names = self._store.children(paths.nodes())
        live = set(self._store.children(paths.live_nodes()))
        records = self._store.read_many([paths.node(name) for name in names])
        assignments = self._store.read_many([paths.assignment(name) for name in names])
        statuses = self._store.read_many([paths.status(name) for name in names])
        now = self._clock()
        self._missed_since = {
            name: self._missed_since.get(name, now) for name in names if name not in live
        }
        return {
            name: NodeView(
                name,
                record.value,
                name in live,
                now - self._missed_since.get(name, now),
                assignment.value if assignment else Assignment(),
                assignment.version if assignment else ABSENT,
                status.value if status else None,
            )
            for name, record, assignment, status in zip(
                names, records, assignments, statuses, strict=True
            )
            if record is not None
        }

    def _journals(self) -> dict[str, Journal]:
        names = self._store.children(paths.journals())
        found = self._store.read_many([paths.journal(name) for name in names])
        return {name: journal.value for name, journal in zip(names, found, strict=True) if journal}

    def _drained(self, journals: Mapping[str, Journal]) -> frozenset[str]:
        closed = {name: journal for name, journal in journals.items() if journal.closed}
        acks = self._store.read_many(
            [paths.ack(journal.flow, CURSOR_MAIN, name) for name, journal in closed.items()]
        )
        return frozenset(
            name
            for (name, journal), ack in zip(closed.items(), acks, strict=True)
            if (ack.value.offset if ack else 0) >= (journal.end or 0)
        )

    def _draining(self, flows: Mapping[str, FlowView]) -> dict[str, float]:
        """Each owner has its own time, also when the task drains towards the next one at once."""
        now = self._clock()
        self._draining_since = {
            key: self._draining_since.get(key, now)
            for flow in flows.values()
            for name, task in flow.plan.tasks.items()
            if task.state == "draining"
            for key in ((f"{flow.name}/{name}", task.epoch),)
        }
        return {key: now - since for (key, _), since in self._draining_since.items()}

    def _committing(self, flows: Mapping[str, FlowView]) -> frozenset[str]:
        """Read after the acks: a commit that they have moved for is then listed or finished."""
        return frozenset(
            name
            for name, flow in flows.items()
            if flow.record.state != "running" and self._store.children(paths.commits(name))
        )


def looks_after(flow: str, masters: list[str]) -> str | None:
    """Which of the live masters plans ``flow``, by rendezvous hashing (Thaler and Ravishankar).

    It spreads the work and is no lock: two masters that disagree only lose a compare-and-set.
    """
    return max(
        masters,
        key=lambda master: hashlib.blake2b(f"{flow}\0{master}".encode(), digest_size=8).digest(),
        default=None,
    )
