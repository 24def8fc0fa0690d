"""Two sites and a link on which everything goes wrong, and faults that must be noticed.

``FLUMENG_SIM_SEED=n`` runs one schedule again, ``FLUMENG_RELAY_SEEDS=n`` that many: a million takes
hours. The checks are listed in ``tests.testkit.simulation.relay.checks``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from flumeng.agent.collector.gaps import Gap, gaps
from flumeng.agent.gateway.leases import Leases, cursor_name
from flumeng.agent.node.journal_registry import JournalRegistry
from flumeng.connectors.api.ranged import Reach
from flumeng.connectors.sites.finder import SiteFinder
from flumeng.control.snapshot.leases import ExpiredLease
from flumeng.control.snapshot.leases import Leases as Expiry
from flumeng.control.zookeeper import ANY, Put
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.gateway_wire import FlowPositions, LeaseAnswer, LeaseRequest
from tests.testkit.simulation import ViolationError
from tests.testkit.simulation.ensemble import Znode
from tests.testkit.simulation.relay import Parts, World
from tests.testkit.simulation.relay.site import SiteEnsemble
from zkschema import paths
from zkschema.records import Ack

ONE = os.environ.get("FLUMENG_SIM_SEED")
SEEDS = int(os.environ.get("FLUMENG_RELAY_SEEDS", "1500"))
PARTS = 4
CAUGHT_WITHIN = 400
"""Maximum number of worlds until a mutant must be noticed."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_event_is_lost_doubled_or_silently_skipped(part: int) -> None:
    seeds = [int(ONE)] if ONE else range(part, SEEDS, PARTS)
    for seed in seeds if part == 0 or not ONE else ():
        World(seed).run()


class BlindToLeases(JournalRegistry):
    """Trims without a look at cursors of other sites."""

    def _cursors(self, flows: Collection[str]) -> dict[str, list[str]]:
        found = super()._cursors(flows)
        return {flow: [c for c in cursors if ":" not in c] for flow, cursors in found.items()}


class ForgetsRemovals(JournalRegistry):
    """Lets a later cursor keep the record of a removed journal."""

    def clear_up(self, unneeded: Any, local: Collection[str]) -> None:
        self._unneeded.clear()
        super().clear_up(unneeded, local)


class AcksAhead(SiteFinder):
    """Reports events as acked before their batch is committed."""

    def _acks(self, partitions: Any) -> dict[str, int]:
        return {name: offset + 1 for name, offset in super()._acks(partitions).items()}


class BeginsAtFloor(SiteFinder):
    """Begins a new journal at its floor, whatever was given up below."""

    def _offers(self, found: FlowPositions, known: Any, began_with: Any) -> Any:
        del began_with
        return super()._offers(found, known, found.positions.keys())


class DoubtsNothing(SiteFinder):
    """Takes a journal for read because it is gone."""

    def _read_whole(self, names: Collection[str]) -> set[str]:
        return set(names)


class MovesBack(Leases):
    """Writes the acks of each request, old ones too."""

    def renew(self, here: str, caller: str, request: LeaseRequest) -> LeaseAnswer:
        answer = super().renew(here, caller, request)
        for name, offset in request.acks.items():
            path = paths.ack(request.flow, cursor_name(caller, request.reader), name)
            found = self._store.read(path)
            if found is not None and found.value.offset != offset:
                self._store.write(path, Ack(epoch=0, offset=offset), found.version)
        return answer


class TellsOnce(Leases):
    """Reports the end of a lease only to the request that finds it."""

    def renew(self, here: str, caller: str, request: LeaseRequest) -> LeaseAnswer:
        path = paths.lease(request.flow, cursor_name(caller, request.reader))
        ended = self._store.read(path) is None and bool(request.id)
        answer = super().renew(here, caller, request)
        return LeaseAnswer(answer.site, answer.id, ended)


class GivesUpAll(Leases):
    """Gives up events of a full journal up to its end."""

    def relieve(self, positions: Callable[[str], Mapping[str, Position]]) -> None:
        def ends(flow: str) -> Mapping[str, Position]:
            return {name: at for name, at in positions(flow).items() if at.full}

        super().relieve(ends)
        for name, at in ends("web").items():
            path = paths.ack("web", "nyc:copy", name)
            lease = self._store.read(paths.lease("web", "nyc:copy"))
            if lease is not None and self._store.exists(path):
                self._store.write(path, Ack(epoch=0, offset=at.safe), ANY)


class GivesUpNothing(Leases):
    def relieve(self, positions: Callable[[str], Mapping[str, Position]]) -> None:
        """A full journal waits for other sites."""


class GivesUpTheLast(Leases):
    """Gives up the last event of a journal too."""

    def _relieve(self, flow: str, full: Mapping[str, Position]) -> None:
        super()._relieve(flow, {n: replace(at, safe=at.safe + 1) for n, at in full.items()})


class Hasty(Expiry):
    """Ends leases after half of their time."""

    def expired(self, now: float) -> tuple[ExpiredLease, ...]:
        return super().expired(now + 5.0)


class Forgiving(Expiry):
    """Never finds a lease expired."""

    def expired(self, now: float) -> tuple[ExpiredLease, ...]:
        return super().expired(now - 1e6)


class WithoutVersions(SiteEnsemble):
    """Does not compare versions of another site's cursor, or of its lease."""

    def expectation_holds(self, write: Any, znode: Znode) -> bool:
        careless = "nyc:copy" in str(write.path)
        return careless or super().expectation_holds(write, znode)


class AcksWithoutVersions(SiteEnsemble):
    """Does not compare versions of the subscriber's acks."""

    def expectation_holds(self, write: Any, znode: Znode) -> bool:
        careless = str(write.path).startswith("/acks/copy/") and isinstance(write, Put)
        return careless or super().expectation_holds(write, znode)


def unrecorded(_found: Sequence[Gap]) -> Sequence[Gap]:
    return ()


def beyond(planned: Mapping[str, int], reached: Mapping[str, Reach], most: int) -> tuple[Gap, ...]:
    """Gaps that end one event too high."""
    longer = {
        name: replace(reach, gone_below=reach.gone_below + 1)
        if 0 < reach.gone_below < reach.safe
        else reach
        for name, reach in reached.items()
    }
    return gaps(planned, longer, most)


MUTANTS = {
    "trimming ignores leases": (Parts(registry=BlindToLeases), "the lease is at"),
    "a later cursor keeps a removed journal": (Parts(registry=ForgetsRemovals), ""),
    "a lease acks ahead of the commit": (Parts(finder=AcksAhead), "is above"),
    "a new journal begins at its floor": (Parts(finder=BeginsAtFloor), "silent gap"),
    "a journal that is gone counts as read": (Parts(finder=DoubtsNothing), "silent gap"),
    "a renewal moves acks back": (Parts(leases=MovesBack), "moves back"),
    "the end of a lease is told once": (Parts(leases=TellsOnce), "silent gap"),
    "a full journal gives up unread events": (Parts(leases=GivesUpAll), "its own flow has read"),
    "a full journal gives up nothing": (Parts(leases=GivesUpNothing), "holds its senders"),
    "a full journal gives up its last event": (Parts(leases=GivesUpTheLast), ""),
    "a lease ends early": (Parts(expiry=Hasty), "too early"),
    "a lease never ends": (Parts(expiry=Forgiving), "outlives"),
    "gateways race without versions": (Parts(ensemble=WithoutVersions), ""),
    "collectors race without versions": (Parts(ensemble=AcksWithoutVersions), ""),
    "a gap has no record": (Parts(recorded=unrecorded), "silent gap"),
    "a gap has events that are there": (Parts(find_gaps=beyond), "which were held"),
}

NOTICED_SOON_FROM = {
    "a journal that is gone counts as read": 700,
    "the end of a lease is told once": 1400,
}


@pytest.mark.long
@pytest.mark.parametrize("fault", MUTANTS)
def test_fault_of_a_relay_is_noticed(fault: str) -> None:
    parts, what = MUTANTS[fault]
    first = NOTICED_SOON_FROM.get(fault, 0)
    for seed in range(first, first + CAUGHT_WITHIN):
        try:
            World(seed, parts).run()
        except ViolationError as violation:
            assert what in str(violation).partition("\n")[0], violation
            return
    pytest.fail(f"{CAUGHT_WITHIN} worlds did not notice the fault")
