"""Finds the upstream flow's journals. A new one is offered when its server has reported its bounds;
until then this flow's cursor keeps its events. A closed one ends at its registered end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from flumeng.connectors.api.finding import (
    Before,
    Bounds,
    Finder,
    FinderBase,
    Findings,
    FindingTask,
    Offer,
)
from flumeng.connectors.flows.flow_journals import ANSWER_SECONDS, FlowJournals
from flumeng.connectors.flows.options import FlowSource
from flumeng.connectors.sites.finder import SiteFinder
from flumeng.control.snapshot.partitions import FLOW, input_of, journal_of, subscribed
from flumeng.control.zookeeper import Store
from flumeng.events.journal_names import flow_of
from flumeng.journal.serving.client import JournalClient
from zkschema import paths

MOST_TIMES = 64
"""With more partitions than this, no event times are requested."""


class FlowFinder(FinderBase):
    """``Finder`` of another flow's journals. ``connect`` opens a client to a server."""

    no_times = "a flow is read from earliest, latest or an offset, not from a time"

    def __init__(
        self,
        options: FlowSource,
        store: Store,
        connect: Callable[[str], JournalClient] = lambda a: JournalClient(a, ANSWER_SECONDS),
    ) -> None:
        self._flow = options.name
        self._latest = options.start_from == "latest"
        self._store = store
        self._journals = FlowJournals(self._flow, store, connect)

    @classmethod
    def of(cls, options: FlowSource, store: Store, task: FindingTask) -> Finder:
        if options.remote is not None:
            latest = options.start_from == "latest"
            return SiteFinder(options.remote, store, task.flow, at_end=latest)
        return cls(options, store)

    def find(self, before: Before) -> Findings:
        existing = self._mine(before.partitions)
        journals = self._journals.registered()
        fresh = [name for name in journals if name not in existing]
        reached = self._bounds(fresh) if fresh else {}
        at_end = self._latest and before.scope is None
        offers = {
            subscribed(name): Offer(
                start=(reached[name].safe if at_end else reached[name].floor)
                if name in reached
                else 0,
                end=(journal.end or 0) if journal.closed else None,
            )
            for name, journal in journals.items()
            if name in existing or name in reached
        }
        silent = [name for name in fresh if name not in reached]
        is_there = bool(journals) or self._store.exists(paths.flow(self._flow))
        return Findings(
            offers,
            scope=(f"flow {self._flow}",),
            gone=frozenset(subscribed(name) for name in existing - journals.keys()),
            troubles=tuple(f"the server of the journal {name} does not answer" for name in silent),
            lacks=() if is_there else (f"there is no flow {self._flow}",),
        )

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        by_journal = self._bounds(self._mine(partitions))
        return {subscribed(name): bounds for name, bounds in by_journal.items()}

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        names = self._mine(at)
        if not names or len(names) > MOST_TIMES:
            return {}
        moments = self._journals.times({name: at[subscribed(name)] for name in names})
        return {subscribed(name): moment for name, moment in moments.items()}

    def close(self) -> None:
        self._journals.close()

    def _mine(self, partitions: Iterable[str]) -> set[str]:
        names = {journal_of(name) for name in partitions if input_of(name) == FLOW}
        return {name for name in names if flow_of(name) == self._flow}

    def _bounds(self, journals: Collection[str]) -> dict[str, Bounds]:
        positions = self._journals.positions(self._journals.addresses(journals))
        return {name: Bounds(position.floor, position.safe) for name, position in positions.items()}
