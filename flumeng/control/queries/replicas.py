"""Problems of replicated journals by flow: too few replicas in sync. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from flumeng.config.replicas import Replicas
from flumeng.control.queries.unreadable import Cause
from flumeng.journal.replication.membership import node_of
from zkschema.records import Journal

NAMED = 3
"""Journals of a flow in the same state that are named."""
UNAVAILABLE = "unavailable: no copy in sync is live"
BELOW = "below the minimum in sync, and take no events"
MINIMUM = "at the minimum in sync"
UNDER = "under-replicated"
ADVICE = {
    UNAVAILABLE: "start one of these nodes; when all are gone for good, `flumeng journal promote "
    "JOURNAL --to NODE --unclean` gives up what only they have",
    BELOW: "senders wait until another copy is in sync: about 2 s from when the session of the "
    "lost node is over (--session-seconds, 10 s by default), longer where it has much to catch up; "
    "without a free node with the role copy, until you start one, or those that are away",
    MINIMUM: "one copy less, and no events are taken: start the nodes that are away, or more with "
    "the role copy",
    UNDER: "start the nodes that are away, or more with the role copy; a copy that is catching up "
    "needs time",
}


@dataclass(frozen=True)
class Short:
    """A journal with too few replicas."""

    journal: str
    flow: str
    state: str
    why: str


def causes(
    journals: Mapping[str, Journal],
    wanted: Mapping[str, Replicas],
    live: Collection[str],
    acked: Mapping[str, int],
) -> Iterator[Cause]:
    """One for each flow and state. ``wanted``: by flow; ``acked``: journal -> the flow's ack."""
    found: dict[tuple[str, str], list[Short]] = {}
    for name, journal in journals.items():
        done = journal.end is not None and acked.get(name, 0) >= journal.end
        if journal.lineage and not journal.gone and not done:
            short = _short(name, journal, wanted.get(journal.flow), live)
            if short is not None:
                found.setdefault((short.flow, short.state), []).append(short)
    for (flow, state), those in sorted(found.items()):
        named = "; ".join(f"{one.journal} ({one.why})" for one in those[:NAMED])
        more = f"; and {len(those) - NAMED} more" if len(those) > NAMED else ""
        yield Cause(
            f"flow {flow}: {len(those)} journal{'s' if len(those) > 1 else ''} {state}: "
            f"{named}{more}",
            ADVICE[state],
            about=f"flow {flow}: journals {state}",
        )


def _short(
    name: str, journal: Journal, wanted: Replicas | None, live: Collection[str]
) -> Short | None:
    known = [node_of(copy) for copy in journal.in_sync]
    there = [node for node in known if node in live]
    if not there:
        return Short(name, journal.flow, UNAVAILABLE, f"{', '.join(known)} not live")
    if wanted is None or journal.closed or len(there) >= wanted.copies:
        return None
    state = UNDER
    if len(there) < wanted.min_in_sync:
        state = BELOW
    elif len(there) == wanted.min_in_sync:
        state = MINIMUM
    missing = [
        f"{node} is not live" if node not in live else f"{node} is catching up"
        for node in dict.fromkeys((*known, *journal.copies))
        if node not in there
    ]
    if len(journal.copies) < wanted.copies:
        missing.append("no other node may hold a copy")
    return Short(name, journal.flow, state, f"in sync: {', '.join(there)}; {', '.join(missing)}")
