"""How the live masters share the flows among them."""

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
    """The masters other than ``me`` whose sessions live and which plan nothing any more: the loop
    hangs. They have not renewed their records ``MISSED_RENEWALS`` times."""
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
    """The masters that take their share, and the flows that each cannot plan; all live ones
    when none says that it does. The ``silent`` have none."""
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
    """Those of the flows that the master ``me`` looks after. What every master has trouble with,
    each does as far as it can."""
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
    """Which of the live masters plans ``flow``, by rendezvous hashing.

    It spreads the work and is no lock: two masters that disagree only lose a compare-and-set.
    """
    return chosen(flow, masters)
