"""Partitioning of the flows among live masters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from flumeng.control.snapshot.rendezvous import chosen
from flumeng.control.snapshot.timers import Moments
from flumeng.control.zookeeper import Unreadable, Versioned
from zkschema.records import LiveMaster

MISSED_RENEWALS = 3


def silent(
    me: str, live_masters: Mapping[str, Versioned[LiveMaster] | Unreadable], moments: Moments
) -> frozenset[str]:
    """Other live masters that missed ``MISSED_RENEWALS`` renewals of their records: they hang."""
    found = set()
    for name, live in live_masters.items():
        if name == me or isinstance(live, Unreadable) or not live.value.renew_seconds:
            continue
        renewal = f"{live.created}/{live.version.number}"
        limit = MISSED_RENEWALS * live.value.renew_seconds
        if moments.lasting(f"renewal of {name}", [renewal], limit):
            found.add(name)
    return frozenset(found)


def shares(
    live_masters: Mapping[str, Versioned[LiveMaster] | Unreadable],
    silent: Collection[str] = (),
) -> dict[str, frozenset[str]]:
    """The planning masters with the flows that each cannot plan; all live ones when none plans."""
    planning: dict[str, frozenset[str]] = {}
    idle: dict[str, frozenset[str]] = {}
    for name, live in live_masters.items():
        if name in silent:
            continue
        if isinstance(live, Unreadable):
            planning[name] = frozenset[str]()
            continue
        troubles = map(str.split, live.value.troubles)
        flows = (words[1] for words in troubles if len(words) == 2 and words[0] == "flow")
        (planning if live.value.plans else idle)[name] = frozenset(flows)
    return planning or idle


def looked_after(
    me: str, flows: Iterable[str], masters: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    """The flows that the master ``me`` plans; all masters plan a flow that is trouble for all."""
    hard = frozenset().union(*masters.values())
    mine = set()
    for name in flows:
        able: Collection[str] = masters.keys()
        if name in hard:
            able = [master for master, cannot in masters.items() if name not in cannot]
        if looks_after(name, able) in (me, None):
            mine.add(name)
    return frozenset(mine)


def looks_after(flow: str, masters: Collection[str]) -> str | None:
    """The master that plans ``flow``. No lock: masters that disagree lose a compare-and-set."""
    return chosen(flow, masters)
