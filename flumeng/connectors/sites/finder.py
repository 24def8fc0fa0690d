"""Finds the journals of another site's flow, and renews this flow's lease there at each search."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from flumeng.config.component import RemoteFlow
from flumeng.connectors.api.finding import Before, Bounds, FinderBase, Findings, Offer
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.sites.contacts import Contacts
from flumeng.connectors.sites.gateways import Gateways
from flumeng.connectors.sites.link_notes import LinkNotes
from flumeng.connectors.sites.names import LONGEST, journal_of, site_of
from flumeng.connectors.sites.reader import SiteReader
from flumeng.control.snapshot import discovered
from flumeng.control.snapshot.partitions import SITE, ack_path, input_of, remote_partition
from flumeng.control.zookeeper import Store, readable
from flumeng.journal.serving.gateway_wire import FlowPositions, LeaseRequest
from flumeng.platform.errors import FlumengError
from flumeng.platform.metrics.table import Reading
from zkschema import paths

CLOCK_SECONDS = 60.0
"""A larger difference of clocks is reported; an answer takes a few seconds at most."""
END_TRIES = 12
END_PAUSE_SECONDS = 5.0
"""A lease whose end reaches no gateway ends after its ``keep_seconds``."""
LEASE, LOST, DOUBTED, AWAITED = "lease ", "lost ", "doubted ", "awaited "
"""Prefixes in the scope: the id of the lease; a partition that ended unread with a lease, unless it
is seen again, as a gateway's view may be outdated; one that may still end so, since the source may
have decided that before it saw the lease again; a journal that was there when the subscription
began, and whose position is unknown still."""
MOST_TIMES = 20
"""Most journals whose oldest events are read for their times."""


class SiteFinder(FinderBase):
    """``Finder`` of a remote flow. ``reader``: the flow that reads it."""

    no_times = "a flow of another site is read from earliest, latest or an offset, not from a time"

    def __init__(
        self,
        remote: RemoteFlow,
        store: Store,
        reader: str,
        *,
        at_end: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._remote = remote
        self._store = store
        self._reader = reader
        self._at_end = at_end
        self._gateways = Gateways(remote.site, store)
        self._link = LinkNotes(store, reader, remote, wall)
        self._lease_id = ""
        self._contacts = Contacts(reader, store)

    def find(self, before: Before) -> Findings:
        known = self._mine(before.partitions)
        scope = before.scope or ()
        held_id = next(iter(_with(LEASE, scope)), "")
        acks = self._acks(known)
        request = self._request(acks, held_id)
        with self._link.noted():
            lease = self._link.renewed(lambda: self._gateways.lease(request))
            self._lease_id = lease.id
            found = self._gateways.positions(self._remote.flow)
        self._contacts.note(found, acks)
        began_with = _all(found) if before.scope is None else _with(AWAITED, scope)
        offers, lacks = self._offers(found, known, began_with)
        awaited = began_with & _all(found) - set(map(journal_of, offers))
        missing = {name for name in known if journal_of(name) not in _all(found)}
        doubted = (_with(DOUBTED, scope) | _with(LOST, scope)) & known
        if lease.ended:
            doubted = {*known, *offers}
        doubted -= self._read_whole(doubted)
        lost = (_with(LOST, scope) | doubted) & missing - before.accepted.keys()
        if not lease.ended:
            doubted -= {name for name in offers if _is_open(journal_of(name), found)}
        doubted -= missing
        gone = frozenset(missing) - lost
        where = f"flow {self._remote.flow} of site {self._remote.site}"
        why = lease.broke.why if lease.broke else f"not renewed for {self._remote.keep_seconds:g} s"
        return Findings(
            offers,
            scope=(
                where,
                f"{LEASE}{lease.id}",
                *(f"{LOST}{name}" for name in sorted(lost)),
                *(f"{DOUBTED}{name}" for name in sorted(doubted)),
                *(f"{AWAITED}{journal}" for journal in sorted(awaited)),
            ),
            gone=gone,
            kept=frozenset(lost),
            held={name: self._unread(name) for name in lost},
            notes=(f"the lease on {where} had ended: {why}",) if lease.ended else (),
            soon=bool(lacks) or self._link.unsteady,
            lacks=(*lacks, *self._clocks()),
            remember_seconds=self._remote.keep_seconds,
        )

    def _clocks(self) -> tuple[str, ...]:
        """Return a sentence when the clocks of both sites differ by more than CLOCK_SECONDS."""
        ahead = self._link.ahead_seconds
        if abs(ahead) <= CLOCK_SECONDS:
            return ()
        side = "ahead of" if ahead > 0 else "behind"
        minutes = round(abs(ahead) / 60)
        apart = f"{minutes} minutes" if minutes < 120 else f"{round(minutes / 60)} hours"
        return (
            f"the clock of a gateway of site {self._remote.site} is {apart} {side} this host's: "
            "times of events and of leases are wrong at one of them; synchronize both",
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
        """Release all resources. In the background, end the lease if the flow was deleted."""
        threading.Thread(target=self._leave, name="end of a lease", daemon=True).start()

    def _leave(self) -> None:
        for _ in range(END_TRIES):
            with suppress(FlumengError):
                if self._lease_id and self._is_deleted():
                    self._gateways.lease(self._request({}, self._lease_id, end=True))
                break
            time.sleep(END_PAUSE_SECONDS)
        self._gateways.close()

    def _is_deleted(self) -> bool:
        flow = self._store.read(paths.flow(self._reader))
        return flow is None or flow.value.state == "deleted"

    def _request(self, acks: dict[str, int], lease: str, *, end: bool = False) -> LeaseRequest:
        flow = self._store.read(paths.flow(self._reader))
        made = f"{flow.created:x}" if flow else ""
        site = self._store.read(paths.site(self._remote.site))
        failover = site.value.failover if site else None
        paused = failover is not None and self._reader in failover.paused
        return LeaseRequest(
            self._remote.flow,
            self._gateways.here(),
            self._reader,
            self._remote.keep_seconds,
            acks,
            lease,
            end,
            self._remote.site,
            made,
            failover.since if failover is not None and paused else 0.0,
        )

    def _offers(
        self, found: FlowPositions, known: Collection[str], began_with: Collection[str]
    ) -> tuple[dict[str, Offer], tuple[str, ...]]:
        """Return offers, and why journals are not offered. A new journal waits until its position
        is known. It is read from seq 0, so that events which the source gave up are a gap, unless
        it is one of ``began_with``."""
        offers: dict[str, Offer] = {}
        lacks: list[str] = []
        for journal in sorted(_all(found)):
            name, at = remote_partition(self._remote.site, journal), found.positions.get(journal)
            if len(name) > LONGEST:
                lacks.append(f"the name {name} has more than {LONGEST} characters")
            elif name in known or at is not None:
                start = 0
                if at is not None and journal in began_with:
                    start = at.safe if self._at_end else at.floor
                offers[name] = Offer(start, found.ends.get(journal))
            else:
                lacks.append(
                    f"site {self._remote.site}: the server of the journal {journal} does not answer"
                )
        return offers, tuple(lacks)

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


def _with(prefix: str, scope: Iterable[str]) -> set[str]:
    """Return the texts with this prefix, without it."""
    return {text.removeprefix(prefix) for text in scope if text.startswith(prefix)}


def _is_open(journal: str, found: FlowPositions) -> bool:
    """Return whether the journal is served and not closed: the source removes only closed ones."""
    return journal in found.positions and journal not in found.ends


def _all(found: FlowPositions) -> set[str]:
    return {*found.positions, *found.ends, *found.away}
