"""Finds the journals of another site's flow, and renews this flow's lease there at each search."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress

from flumeng.config.component import RemoteFlow
from flumeng.connectors.api.finding import Before, Bounds, FinderBase, Findings, Offer
from flumeng.connectors.sites.contacts import Contacts
from flumeng.connectors.sites.gateways import Gateways
from flumeng.connectors.sites.names import LONGEST, journal_of, site_of
from flumeng.control.snapshot import discovered
from flumeng.control.snapshot.partitions import SITE, ack_path, input_of, remote_partition
from flumeng.control.zookeeper import Store, readable
from flumeng.journal.serving.gateway_wire import FlowPositions, LeaseRequest
from flumeng.platform.errors import FlumengError
from zkschema import paths

END_TRIES = 12
END_PAUSE_SECONDS = 5.0
"""A lease whose end reaches no gateway ends after its ``keep_seconds``."""
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
        self._lease_id = ""
        self._contacts = Contacts(remote.site, reader, store)

    def find(self, before: Before) -> Findings:
        known = self._mine(before.partitions)
        scope = before.scope or ()
        held_id = next((text.removeprefix(LEASE) for text in scope if text.startswith(LEASE)), "")
        acks = self._acks(known)
        lease = self._gateways.lease(self._request(acks, held_id))
        self._lease_id = lease.id
        found = self._gateways.positions(self._remote.flow)
        self._contacts.note(found, acks)
        lost = {text.removeprefix(LOST) for text in scope if text.startswith(LOST)}
        if lease.ended:
            missing = {name for name in known if journal_of(name) not in _all(found)}
            lost |= missing - self._read_whole(missing)
        lost -= before.accepted.keys()
        offers, troubles = self._offers(found, known, begun=before.scope is not None)
        gone = frozenset(name for name in known if journal_of(name) not in _all(found)) - lost
        where = f"flow {self._remote.flow} of site {self._remote.site}"
        ended = f"the lease on {where} had ended: it was not renewed for "
        return Findings(
            offers,
            scope=(where, f"{LEASE}{lease.id}", *(f"{LOST}{name}" for name in sorted(lost))),
            gone=gone,
            kept=frozenset(lost),
            held={name: self._unread(name) for name in lost},
            notes=(f"{ended}{self._remote.keep_seconds:g} s",) if lease.ended else (),
            troubles=troubles,
            remember_seconds=self._remote.keep_seconds,
        )

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        mine = self._mine(partitions)
        if not mine:
            return {}
        positions = self._gateways.positions(self._remote.flow).positions
        found = ((name, positions.get(journal_of(name))) for name in mine)
        return {name: Bounds(at.floor, at.safe) for name, at in found if at is not None}

    def close(self) -> None:
        """Release all resources. In the background, end the lease if the flow was deleted."""
        threading.Thread(target=self._leave, name="end of a lease", daemon=True).start()

    def _leave(self) -> None:
        for _ in range(END_TRIES):
            with suppress(FlumengError):
                if self._lease_id and self._is_deleted():
                    self._contacts.remove()
                    self._gateways.lease(self._request({}, self._lease_id, end=True))
                break
            time.sleep(END_PAUSE_SECONDS)
        self._gateways.close()

    def _is_deleted(self) -> bool:
        flow = self._store.read(paths.flow(self._reader))
        return flow is None or flow.value.state == "deleted"

    def _request(self, acks: dict[str, int], lease: str, *, end: bool = False) -> LeaseRequest:
        return LeaseRequest(
            self._remote.flow,
            self._gateways.here(),
            self._reader,
            self._remote.keep_seconds,
            acks,
            lease,
            end,
            self._remote.site,
        )

    def _offers(
        self, found: FlowPositions, known: Collection[str], *, begun: bool
    ) -> tuple[dict[str, Offer], tuple[str, ...]]:
        """Return offers and troubles. A new journal waits until its position is known."""
        offers: dict[str, Offer] = {}
        troubles: list[str] = []
        for journal in sorted(_all(found)):
            name, at = remote_partition(self._remote.site, journal), found.positions.get(journal)
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
