"""Implements ``Input`` for flows of other sites. Tasks that read the same flow share one long
poll."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from flumeng.config import FlowSpec
from flumeng.config.component import RemoteFlow
from flumeng.connectors.api.ranged import Kind, Range, Reach, Standstill
from flumeng.connectors.ranged.positions import Probes, WatchedPositions, described
from flumeng.connectors.ranged.watcher import EndWatcher
from flumeng.connectors.sites.gateways import Gateways
from flumeng.connectors.sites.names import journal_of, site_of, source_of
from flumeng.connectors.sites.reader import Filtered, SiteReader
from flumeng.control.zookeeper import Store
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.gateway_wire import WAIT_SECONDS, FiltersAnswer
from flumeng.platform.errors import CorruptError

REPEAT_SECONDS = 0.02
FILTERS_SECONDS = 15.0
"""How long a gateway may take to try a flow's filters: it may have to start a process."""
GONE = "site {site} no longer keeps them: this flow's lease had ended, or the journal was full"
_TEXTS: dict[Kind, str] = {
    "nonsense": "journal {source} stands still: {why}",
    "lost": "journal {source} ends at seq {offset}, but seq {acked} is acked: the site has lost "
    "events, or was restored from an old copy",
    "gone": "journal {source} begins at seq {offset}, but only seq {acked} is acked: the lease of "
    "this flow had ended there, or the journal was full; to go on, give the flow `dead_letters`, "
    "which get a record of the gap",
    "held": "journal {source} stops at seq {offset}: the site has lost the next events; repair the "
    "journal there",
    "damaged": "journal {source} stops at seq {offset}: {why}",
    "unanswered": "journal {source} waits at seq {offset}: {why}",
}


def remote_of(spec: FlowSpec) -> RemoteFlow | None:
    return next(filter(None, (part.options.remote for part in spec.partitioned)), None)


class SiteInput:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._watchers: dict[tuple[RemoteFlow, bool], SiteWatcher] = {}
        self._filtered: dict[tuple[RemoteFlow, str], Filtered] = {}
        """Results of filters by name: they never change."""
        self._probes = Probes("sites")

    def positions(self, wake: Callable[[], None]) -> SitePositions:
        return SitePositions(self, self._probes, wake)

    def reader(self, spec: FlowSpec) -> SiteReader | None:
        """Return the flow's reader, if it reads another site. Raises as ``reader_behind``."""
        return self.reader_behind(spec, "")

    def reader_behind(self, spec: FlowSpec, filters: str) -> SiteReader | None:
        """Return the reader of events behind ``filters`` of the site; "" for the current ones.
        Raises UserError; UnavailableError when no gateway answers which filters these are."""
        remote = remote_of(spec)
        if remote is None:
            return None
        gateways = Gateways(remote.site, self._store, answer_seconds=FILTERS_SECONDS)
        reader = SiteReader(remote.site, gateways.here(), gateways=gateways)
        if not remote.filters:
            return reader
        watcher = self.watcher(remote, reports_gaps=spec.dead_letters is not None)
        filtered = self._filtered.get((remote, filters or watcher.filters))
        if filtered is None:
            with closing(gateways):
                filtered = _filtered(gateways.filters(remote.flow, filters))
            self._filtered[remote, filtered.name] = filtered
            if not filters:
                watcher.filters = filtered.name  # newer than what it knows
        return replace(reader, filtered=filtered, current=lambda: watcher.filters)

    def watcher(self, remote: RemoteFlow, *, reports_gaps: bool) -> SiteWatcher:
        key = (remote, reports_gaps)
        with self._lock:
            if key not in self._watchers:
                gateways = Gateways(remote.site, self._store)
                self._watchers[key] = SiteWatcher(gateways, remote, reports_gaps=reports_gaps)
            return self._watchers[key]


def _filtered(answer: FiltersAnswer) -> Filtered:
    try:
        return Filtered(answer.filters, pa.ipc.read_schema(pa.py_buffer(answer.schema)))
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(f"a gateway of site {answer.site} sends no schema: {error}") from error


class SitePositions(WatchedPositions):
    def __init__(self, of: SiteInput, probes: Probes, wake: Callable[[], None]) -> None:
        super().__init__(probes, wake)
        self._input = of

    def open(self, spec: FlowSpec) -> None:
        self.close()
        remote = remote_of(spec)
        self._spec = spec
        self._watcher = (
            self._input.watcher(remote, reports_gaps=spec.dead_letters is not None)
            if remote
            else None
        )

    def _try(self, piece: Range, address: str) -> None:
        self._reader = self._input.reader(self._spec)
        super()._try(piece, address)

    def describe(self, standstill: Standstill) -> str:
        return described(standstill, _TEXTS, source=source_of(standstill.partition))


class SiteWatcher(EndWatcher[Reach]):
    """Follows one remote flow. ``reports_gaps``: gaps become dead letters instead of stops.
    ``filters``: the last reported name of the flow's filters, "" when unknown or not needed."""

    def __init__(self, gateways: Gateways, remote: RemoteFlow, *, reports_gaps: bool) -> None:
        super().__init__(f"flow {remote.flow} of site {remote.site}")
        self._gateways = gateways
        self._remote = remote
        self._reports_gaps = reports_gaps
        self.filters = ""
        self._asked: frozenset[str] = frozenset()
        self._seen = ""

    def ask(self, partitions: frozenset[str]) -> dict[str, Reach]:
        seen, self._seen = self._seen if partitions == self._asked else "", ""
        found = self._gateways.positions(
            self._remote.flow, seen, WAIT_SECONDS if seen else 0.0, filtered=self._remote.filters
        )
        self._asked, self._seen = partitions, found.seen
        self.filters = found.filters
        address = ",".join(self._gateways.addresses)
        return {
            name: self._reach(position, address)
            for name in partitions
            if site_of(name) == self._remote.site
            and (position := found.positions.get(journal_of(name))) is not None
        }

    def failed(self, why: str) -> Reach:
        return Reach("", 0, trouble=why)

    def _pause(self) -> float:
        return super()._pause() if self._failures else REPEAT_SECONDS

    def _reach(self, at: Position, address: str) -> Reach:
        reach = Reach(address, at.safe, at.held, closed=at.closed, full=at.full)
        if not self._reports_gaps:
            return replace(reach, floor=at.floor)
        why = GONE.format(site=self._remote.site)
        return replace(reach, gone_below=min(at.floor, at.safe), gone_why=why)
