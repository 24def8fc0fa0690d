"""Problems of journals: nearly full ones kept for slow readers, and too few replicas in sync."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flumeng.config.flow_names import is_part, whole_of
from flumeng.config.replicas import Replicas
from flumeng.control.queries.causes import Cause
from flumeng.control.queries.overview import FlowRow
from flumeng.control.queries.reading import Reading
from flumeng.control.zookeeper import Unreadable, Versioned
from flumeng.events.journal_names import flow_of
from flumeng.journal.replication.membership import node_of
from flumeng.journal.serving.account import Account
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Journal

SHARE = 0.5
"""Journals above this share of ``max_bytes`` are reported."""


@dataclass(frozen=True)
class Kept:
    """A journal kept for ``reader``, which lacks ``events``: a ``share`` of ``max_bytes``."""

    journal: str
    reader: str
    events: int
    share: float


def kept(reading: Reading, accounts: Mapping[str, Account]) -> Iterator[Kept]:
    """The journals above ``SHARE``. Reads acks only for journals of at least that size."""
    large = {
        name: one
        for name, one in sorted(accounts.items())
        if one.max_bytes and one.bytes >= SHARE * one.max_bytes
    }
    flows = sorted(set(map(flow_of, large)))
    listed = reading.children_many([paths.acks(flow) for flow in flows])
    cursors = {flow: sorted({CURSOR_MAIN, *own}) for flow, own in zip(flows, listed, strict=True)}
    for journal, account in large.items():
        flow = flow_of(journal)
        found = reading.read_each([paths.ack(flow, name, journal) for name in cursors[flow]])
        offsets = [ack.value.offset if isinstance(ack, Versioned) else 0 for ack in found]
        if any(isinstance(ack, Unreadable) for ack in found):
            continue
        offset = min(offsets)
        slowest = cursors[flow][offsets.index(offset)]
        events = max(0, account.safe - max(offset, account.floor))
        share = account.bytes * events / max(1, account.events) / account.max_bytes
        if share >= SHARE:
            yield Kept(journal, flow if slowest == CURSOR_MAIN else slowest, events, share)


def of_kept(
    flows: Sequence[FlowRow], reading: Reading, accounts: Mapping[str, Account], now: float
) -> Iterator[Cause]:
    """One cause per reader, with its fullest journal; only events of a due batch count. ``now``:
    seconds since the epoch."""
    states = {flow.flow: flow.state for flow in flows}
    due = {flow.flow: now - flow.batch_seconds for flow in flows if flow.state == "running"}
    found: dict[tuple[str, str], list[Kept]] = {}
    for one in kept(reading, accounts):
        oldest_us = accounts[one.journal].oldest_unacked_us
        own = one.reader == flow_of(one.journal)
        if own and oldest_us is not None and oldest_us / 1e6 > due.get(one.reader, now):
            continue
        found.setdefault((flow_of(one.journal), one.reader), []).append(one)
    for (owner, reader), journals in found.items():
        fullest = max(journals, key=lambda one: one.share)
        more = f" and {len(journals) - 1} more" if len(journals) > 1 else ""
        state = states.get(reader, "")
        is_ = f", which is {state}," if state not in ("", "running") else ""
        who = f"flow {reader}" if state else f"the reader {reader}"
        yield Cause(
            f"journal {fullest.journal}{more} of flow {owner} is kept for {who}{is_} that has not "
            f"read {fullest.events} events of it: {fullest.share:.0%} of `max_bytes`; at 100% the "
            f"senders of flow {owner} wait",
            _advice(reader, owner, state),
            about=f"{who}: keeps journals of flow {owner}",
        )


def _advice(reader: str, owner: str, state: str) -> str:
    if not state:
        mend = f"see who it is (`flumeng cursor list {owner}`)"
    elif state == "suspended":
        mend = f"`flumeng flow resume {reader}`"
    else:
        mend = f"see why it is behind (`flumeng flow lag {whole_of(reader)}`)"
    given_up = ""
    if is_part(reader):
        given_up = f"; to give up what it has not read: apply flow {owner} without it"
    elif not state:
        given_up = f"; to give up what it has not read: `flumeng cursor delete {owner} {reader}`"
    elif reader != owner:
        given_up = f"; to give up what it has not read: `flumeng flow delete {reader}`"
    return f"{mend}, or give flow {owner} more `journal.max_bytes`{given_up}"


NAMED = 3
UNAVAILABLE = "unavailable: no replica in sync is live"
BELOW = "below the minimum in sync, and take no events"
MINIMUM = "at the minimum in sync"
UNDER = "under-replicated"
ADVICE = {
    UNAVAILABLE: "start one of these nodes; when all are gone for good, `flumeng journal promote "
    "JOURNAL --to NODE --unclean` gives up what only they have",
    BELOW: "senders wait until another replica is in sync: about 2 s from when the session of the "
    "lost node is over (--session-seconds, 10 s by default), longer where it has much to catch up; "
    "without a free node with the role replica, until you start one, or those that are down",
    MINIMUM: "one replica less, and no events are taken: start the nodes that are down, or more "
    "with the role replica",
    UNDER: "start the nodes that are down, or more with the role replica; a replica that is "
    "catching up needs time",
}


def of_replicas(
    journals: Mapping[str, Journal],
    wanted: Mapping[str, Replicas],
    live: Collection[str],
    acked: Mapping[str, int],
) -> Iterator[Cause]:
    """One cause per flow and state. ``wanted``: by flow; ``acked``: journal -> the flow's ack."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, journal in journals.items():
        done = journal.end is not None and acked.get(name, 0) >= journal.end
        if journal.lineage and not journal.gone and not done:
            state, why = _shortage(journal, wanted.get(journal.flow), live)
            if state:
                found.setdefault((journal.flow, state), []).append(f"{name} ({why})")
    for (flow, state), those in sorted(found.items()):
        named = "; ".join(those[:NAMED])
        more = f"; and {len(those) - NAMED} more" if len(those) > NAMED else ""
        yield Cause(
            f"flow {flow}: {len(those)} journal{'s' if len(those) > 1 else ''} {state}: "
            f"{named}{more}",
            ADVICE[state],
            about=f"flow {flow}: journals {state}",
        )


def _shortage(journal: Journal, wanted: Replicas | None, live: Collection[str]) -> tuple[str, str]:
    """The state of a journal with too few replicas, and why; empty with enough."""
    known = [node_of(replica) for replica in journal.in_sync]
    there = [node for node in known if node in live]
    if not there:
        return UNAVAILABLE, f"{', '.join(known)} not live"
    if wanted is None or journal.closed or len(there) >= wanted.copies:
        return "", ""
    state = UNDER
    if len(there) < wanted.min_in_sync:
        state = BELOW
    elif len(there) == wanted.min_in_sync:
        state = MINIMUM
    missing = [
        f"{node} is not live" if node not in live else f"{node} is catching up"
        for node in dict.fromkeys((*known, *journal.replicas))
        if node not in there
    ]
    if len(journal.replicas) < wanted.copies:
        missing.append("no other node may hold a replica")
    return state, f"in sync: {', '.join(there)}; {', '.join(missing)}"
