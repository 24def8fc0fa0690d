"""Implements ``Input`` for flows of other sites. Tasks that read the same flow share one long
poll."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa

from flumeng.config import FlowSpec
from flumeng.config.component import RemoteFlow
from flumeng.connectors.api.ranged import CutError, Gone, Kind, Range, Reach, Standstill
from flumeng.connectors.ranged.positions import Probes, WatchedPositions, described
from flumeng.connectors.ranged.watcher import EndWatcher
from flumeng.connectors.sites.gateways import Gateways
from flumeng.connectors.sites.names import journal_of, site_of, source_of
from flumeng.connectors.sites.reader import Filtered, SiteReader
from flumeng.control.zookeeper import Store
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.gateway_wire import WAIT_SECONDS, FiltersAnswer
from flumeng.journal.serving.wire import Choke
from flumeng.platform.errors import CorruptError, UnavailableError
from flumeng.platform.options.windows import parse_hours
from zkschema.records import Site

REPEAT_SECONDS = 0.02
FILTERS_SECONDS = 15.0
"""How long a gateway may take to try a flow's filters: it may have to start a process."""
GONE = "site {site}, in term {term}, no longer keeps them: {why}"
UNKNOWN_WHY = "this flow's lease had ended, or the journal was full"
REPLACED = (
    "site {site} was restored from an old copy, or has given events up: it has given these seqs to "
    "other events"
)
RESTORED = (
    "journal {source} has other events from seq {offset} on than before, but seq {acked} is acked: "
    "{why}. Pause the flow. To read them: `flumeng flow reset --to {partition}={offset}`; to skip "
    "them: the same with {acked}"
)
_TEXTS: dict[Kind, str] = {
    "nonsense": "journal {source} stands still: {why}",
    "lost": "journal {source} ends at seq {offset}, but seq {acked} is acked: the site has lost "
    "events, or was restored from an old copy",
    "gone": "journal {source} begins at seq {offset}, but only seq {acked} is acked: {broken}; to "
    "go on, give the flow `dead_letters`, which get a record of the gap",
    "held": "journal {source} stops at seq {offset}: the site has lost the next events; repair the "
    "journal there",
    "damaged": "journal {source} stops at seq {offset}: {why}",
    "unanswered": "journal {source} waits at seq {offset}: {why}",
}


def remote_of(spec: FlowSpec) -> RemoteFlow | None:
    return next(filter(None, (part.options.remote for part in spec.partitioned)), None)


class SiteInput:
    def __init__(
        self, store: Store, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._store = store
        self.now = now
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
        reader = _unfiltered(gateways, spec.flow, remote)
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

    def unfiltered(self, spec: FlowSpec) -> SiteReader:
        """Return a reader of a remote flow's events before its filters. Raises UserError."""
        remote = remote_of(spec)
        assert remote is not None, "the flow reads another site"
        return _unfiltered(Gateways(remote.site, self._store), spec.flow, remote)

    def watcher(self, remote: RemoteFlow, *, reports_gaps: bool) -> SiteWatcher:
        key = (remote, reports_gaps)
        with self._lock:
            if key not in self._watchers:
                gateways = Gateways(remote.site, self._store)
                self._watchers[key] = SiteWatcher(gateways, remote, reports_gaps=reports_gaps)
            return self._watchers[key]


def _unfiltered(gateways: Gateways, flow: str, remote: RemoteFlow) -> SiteReader:
    here = gateways.here()
    choke = Choke(here, flow, remote.bytes_per_second, priority=remote.priority)
    return SiteReader(remote.site, here, gateways=gateways, choke=choke)


def _filtered(answer: FiltersAnswer) -> Filtered:
    try:
        return Filtered(answer.filters, pa.ipc.read_schema(pa.py_buffer(answer.schema)))
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(f"a gateway of site {answer.site} sends no schema: {error}") from error


class SitePositions(WatchedPositions):
    """Also ``Paced``, by the limits of the flow and of its site."""

    def __init__(self, of: SiteInput, probes: Probes, wake: Callable[[], None]) -> None:
        super().__init__(probes, wake)
        self._input = of
        self._remote: RemoteFlow | None = None
        self._reports_gaps = False

    def open(self, spec: FlowSpec) -> None:
        self.close()
        remote = remote_of(spec)
        self._remote = remote
        self._spec = spec
        self._reports_gaps = spec.dead_letters is not None
        self._watcher = (
            self._input.watcher(remote, reports_gaps=self._reports_gaps) if remote else None
        )

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        found, why = super().of(partitions), self._broken()
        if why == UNKNOWN_WHY:
            return found
        return {name: replace(at, gone_why=_gone(name, at, why)) for name, at in found.items()}

    def _broken(self) -> str:
        """Return why this flow's lease broke."""
        known = self._watcher.broken if isinstance(self._watcher, SiteWatcher) else {}
        return known.get(self._spec.flow.partition("~")[0], UNKNOWN_WHY) if known else UNKNOWN_WHY

    def rests(self) -> bool:
        now = self._input.now()
        windows = (limits.at for limits in self._limits())
        return not all(parse_hours(text).is_open(now) for text in windows if text)

    def rate(self) -> int:
        return min(filter(None, (it.bytes_per_second for it in self._limits())), default=0)

    def _limits(self) -> Iterator[RemoteFlow | Site]:
        if self._remote is not None:
            yield self._remote
        if isinstance(self._watcher, SiteWatcher) and self._watcher.site is not None:
            yield self._watcher.site

    def _try(self, piece: Range, address: str) -> None:
        self._reader = self._input.reader(self._spec)
        super()._try(piece, address)

    def find_cut(self, partition: str, offset: int, leader_epoch: int) -> Future[Gone | None]:
        """Compare the terms of events below ``offset``; see ``FindingCuts``."""
        assert self._watcher is not None, "a partition that was reached has a watcher"
        reach = self._watcher.of([partition]).get(partition)

        def find() -> Gone | None:
            if reach is None:
                raise UnavailableError(f"the gateways of site {site_of(partition)} do not answer")
            cut = self._cut(partition, offset, leader_epoch, reach)
            if cut is not None and not self._reports_gaps:
                raise CutError(cut.why, cut.start)
            return cut

        return self._probes.probe((self._watcher, partition), find, self._wake)

    def _cut(self, partition: str, offset: int, acked_term: int, reach: Reach) -> Gone | None:
        """Return the events below ``offset`` of a later term than the acked ones, if any. A
        restored copy has a term below ``acked_term`` only if a clock went back."""
        reader = self._input.unfiltered(self._spec)
        assert reach.leader_epoch is not None, "it was compared"
        newest = min(acked_term, reach.leader_epoch - 1)
        low, high = max(reach.floor, reach.gone_below), offset - 1
        if high < low or reader.term_of(partition, high, reach.address) <= newest:
            return None
        while low < high:
            middle = (low + high) // 2
            if reader.term_of(partition, middle, reach.address) > newest:
                high = middle
            else:
                low = middle + 1
        return Gone(low, offset, REPLACED.format(site=site_of(partition)))

    def describe(self, standstill: Standstill) -> str:
        source = source_of(standstill.partition)
        if standstill.kind == "lost" and standstill.why:
            return described(standstill, {"lost": RESTORED}, source=source)
        return described(standstill, _TEXTS, source=source, broken=self._broken())


class SiteWatcher(EndWatcher[Reach]):
    """Follows one remote flow. ``reports_gaps``: gaps become dead letters instead of stops.
    ``filters``: the last reported name of the flow's filters, "" when unknown or not needed.
    ``broken``: why leases broke, by the flow here that had them."""

    def __init__(self, gateways: Gateways, remote: RemoteFlow, *, reports_gaps: bool) -> None:
        super().__init__(f"flow {remote.flow} of site {remote.site}")
        self._gateways = gateways
        self._remote = remote
        self._reports_gaps = reports_gaps
        self.site: Site | None = None
        """The site's record, as last read."""
        self.filters = ""
        self.broken: Mapping[str, str] = {}
        self._asked: frozenset[str] = frozenset()
        self._seen = ""

    def ask(self, partitions: frozenset[str]) -> dict[str, Reach]:
        seen, self._seen = self._seen if partitions == self._asked else "", ""
        self.site = self._gateways.site_record()
        found = self._gateways.positions(
            self._remote.flow, seen, WAIT_SECONDS if seen else 0.0, filtered=self._remote.filters
        )
        self._asked, self._seen = partitions, found.seen
        self.filters, self.broken = found.filters, found.broken
        address = ",".join(self._gateways.addresses)
        return {
            name: self._reach(name, position, address)
            for name in partitions
            if site_of(name) == self._remote.site
            and (position := found.positions.get(journal_of(name))) is not None
        }

    def failed(self, why: str) -> Reach:
        return Reach("", 0, trouble=why)

    def _pause(self) -> float:
        return super()._pause() if self._failures else REPEAT_SECONDS

    def _reach(self, name: str, at: Position, address: str) -> Reach:
        reach = Reach(
            address, at.safe, at.held, closed=at.closed, full=at.full, leader_epoch=at.term
        )
        if not self._reports_gaps:
            return replace(reach, floor=at.floor)
        why = _gone(name, reach, UNKNOWN_WHY)
        return replace(reach, gone_below=min(at.floor, at.safe), gone_why=why)


def _gone(partition: str, reach: Reach, why: str) -> str:
    return GONE.format(site=site_of(partition), term=reach.leader_epoch, why=why)
