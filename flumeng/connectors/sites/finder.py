"""Finds the journals of another site's flow, and renews this flow's lease there at each search."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from flumeng.config.component import RemoteFlow
from flumeng.connectors.api.finding import Before, Bounds, FinderBase, Findings, Offer
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.sites.gateways import Gateways
from flumeng.connectors.sites.link_notes import LinkNotes
from flumeng.connectors.sites.names import LONGEST, journal_of, partition_of, site_of
from flumeng.connectors.sites.reader import SiteReader
from flumeng.control.snapshot import discovered
from flumeng.control.snapshot.partitions import SITE, ack_path, input_of
from flumeng.control.zookeeper import Store, readable
from flumeng.journal.serving.gateway_wire import FlowPositions, LeaseRequest
from flumeng.platform.errors import FlumengError
from flumeng.platform.metrics.table import Reading

MOST_TIMES = 20
"""Most journals whose oldest events are read for their times."""
LEASE, LOST = "lease ", "lost "
"""Prefixes in the scope: the id of the lease; a journal that ended unread with a lease."""


class SiteFinder(FinderBase):
    """``Finder`` of a remote flow. ``reader``: the flow that reads it."""

    no_times = "a flow of another site is read from earliest, latest or an offset, not from a time"

    def __init__(
        self, remote: RemoteFlow, store: Store, reader: str, *, at_end: bool = False
    ) -> None:
        self._remote = remote
        self._store = store
        self._reader = reader
        self._at_end = at_end
        self._gateways = Gateways(remote.site, store)
        self._link = LinkNotes(store, reader, remote)

    def find(self, before: Before) -> Findings:
        known = self._mine(before.partitions)
        scope = before.scope or ()
        held_id = next((text.removeprefix(LEASE) for text in scope if text.startswith(LEASE)), "")
        request = LeaseRequest(
            self._remote.flow,
            self._gateways.here(),
            self._reader,
            self._remote.keep_seconds,
            self._acks(known),
            held_id,
        )
        with self._link.noted():
            lease = self._link.renewed(lambda: self._gateways.lease(request))
            found = self._gateways.positions(self._remote.flow)
        lost = {text.removeprefix(LOST) for text in scope if text.startswith(LOST)}
        if lease.ended:
            missing = {name for name in known if journal_of(name) not in _all(found)}
            lost |= missing - self._read_whole(missing)
        lost -= before.accepted.keys()
        offers, troubles = self._offers(found, known, begun=before.scope is not None)
        gone = frozenset(name for name in known if journal_of(name) not in _all(found)) - lost
        where = f"flow {self._remote.flow} of site {self._remote.site}"
        why = lease.broke.why if lease.broke else f"not renewed for {self._remote.keep_seconds:g} s"
        return Findings(
            offers,
            scope=(where, f"{LEASE}{lease.id}", *(f"{LOST}{name}" for name in sorted(lost))),
            gone=gone,
            kept=frozenset(lost),
            held={name: self._unread(name) for name in lost},
            notes=(f"the lease on {where} had ended: {why}",) if lease.ended else (),
            troubles=troubles,
            soon=self._link.unsteady,
        )

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        mine = self._mine(partitions)
        if not mine:
            return {}
        positions = self._gateways.positions(self._remote.flow).positions
        found = ((name, positions.get(journal_of(name))) for name in mine)
        return {name: Bounds(at.floor, at.safe) for name, at in found if at is not None}

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        """Return the times of receipt there, by the clocks here."""
        names = self._mine(at)
        if not names or len(names) > MOST_TIMES:
            return {}
        reader = SiteReader(self._remote.site, self._gateways.here(), gateways=self._gateways)
        address = ",".join(self._gateways.addresses)
        times: dict[str, int] = {}
        ahead_us = round(self._link.ahead_seconds * 1e6)
        for name in sorted(names):
            with suppress(FlumengError):
                for batch in reader.read(Range(name, at[name], at[name] + 1), address):
                    times[name] = int(batch["ts"].cast("int64")[0].as_py()) - ahead_us
        return times

    def readings(self) -> Iterator[Reading]:
        return self._link.readings()

    def close(self) -> None:
        self._gateways.close()

    def _offers(
        self, found: FlowPositions, known: Collection[str], *, begun: bool
    ) -> tuple[dict[str, Offer], tuple[str, ...]]:
        """Return offers and troubles. A new journal waits until its position is known."""
        offers: dict[str, Offer] = {}
        troubles: list[str] = []
        for journal in sorted(_all(found)):
            name, at = partition_of(self._remote.site, journal), found.positions.get(journal)
            if len(name) > LONGEST:
                troubles.append(f"the name {name} has more than {LONGEST} characters")
            elif name in known or at is not None:
                latest = self._at_end and not begun
                start = 0 if at is None else at.safe if latest else at.floor
                offers[name] = Offer(start, found.ends.get(journal))
            else:
                troubles.append(
                    f"site {self._remote.site}: the server of the journal {journal} does not answer"
                )
        return offers, tuple(troubles)

    def _read_whole(self, names: Collection[str]) -> set[str]:
        """Return the closed journals of these that are acked up to their end."""
        record = readable(discovered.read(self._store, [self._reader])[0])
        partitions = record.value.partitions if record else {}
        acks = self._acks(names)
        return {
            name
            for name in names
            if name in partitions
            and (end := partitions[name].end) is not None
            and acks.get(journal_of(name), partitions[name].start) >= end
        }

    def _unread(self, name: str) -> str:
        ack = readable(self._store.read_each([ack_path(self._reader, name)])[0])
        return (
            f"journal {journal_of(name)} of site {site_of(name)} ended after the lease did: events "
            f"from seq {ack.value.offset if ack else 0} on may be missing. To accept that: "
            f"`flumeng flow reset {self._reader} --to earliest`"
        )

    def _acks(self, partitions: Collection[str]) -> dict[str, int]:
        names = sorted(partitions)
        acks = self._store.read_each([ack_path(self._reader, name) for name in names])
        found = zip(names, map(readable, acks), strict=True)
        return {journal_of(name): ack.value.offset for name, ack in found if ack is not None}

    def _mine(self, partitions: Iterable[str]) -> frozenset[str]:
        return frozenset(
            name
            for name in partitions
            if input_of(name) == SITE and site_of(name) == self._remote.site
        )


def _all(found: FlowPositions) -> set[str]:
    return {*found.positions, *found.ends, *found.away}
