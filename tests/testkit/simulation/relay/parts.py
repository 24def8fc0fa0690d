"""The replaceable parts of a simulated relay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flumeng.agent.collector.gaps import Gap, gaps
from flumeng.agent.gateway.leases import Leases
from flumeng.agent.node.journal_registry import JournalRegistry
from flumeng.connectors.api.ranged import Reach
from flumeng.connectors.sites.finder import SiteFinder
from flumeng.control.snapshot.leases import Leases as Expiry
from tests.testkit.simulation.relay.site import SiteEnsemble

FindGaps = Callable[[Mapping[str, int], Mapping[str, Reach], int], tuple[Gap, ...]]


def all_of(found: Sequence[Gap]) -> Sequence[Gap]:
    return found


@dataclass(frozen=True)
class Parts:
    """A test replaces one by a broken one. ``recorded``: the gaps that get a record."""

    ensemble: type[SiteEnsemble] = SiteEnsemble
    leases: type[Leases] = Leases
    registry: type[JournalRegistry] = JournalRegistry
    finder: type[SiteFinder] = SiteFinder
    expiry: type[Expiry] = Expiry
    find_gaps: FindGaps = gaps
    recorded: Callable[[Sequence[Gap]], Sequence[Gap]] = all_of


SOUND = Parts()
