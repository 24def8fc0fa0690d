"""Problems of journals: nearly full because of slow readers, or with too few replicas in sync."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flumeng.config.flow_names import is_part, whole_of
from flumeng.config.replicas import Replicas
from flumeng.control.commands.lease_breaks import is_of_site
from flumeng.control.queries.causes import Cause
from flumeng.control.queries.overview import FlowRow
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import Unreadable, Versioned
from flumeng.events.journal_names import flow_of
from flumeng.journal.replication.membership import node_of
from flumeng.journal.serving.account import Account
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Journal

SHARE = 0.5
"""Unread events from this share of ``max_bytes`` on are reported."""


@dataclass(frozen=True)
class Kept:
    """A journal whose ``reader`` has not read ``events``, a ``share`` of ``max_bytes``."""

    journal: str
    reader: str
    events: int
    share: float


def kept(cache: ReadCache, accounts: Mapping[str, Account]) -> Iterator[Kept]:
    """Yield journals whose slowest reader left ``SHARE`` unread, if all acks are readable. Leases
    of other sites do not count: they hold up no sender."""
    large = {
        name: account
        for name, account in sorted(accounts.items())
        if account.max_bytes and account.bytes >= SHARE * account.max_bytes
    }
    flows = sorted(set(map(flow_of, large)))
    listed = cache.children_many([paths.acks(flow) for flow in flows])
    cursors = {
        flow: sorted({CURSOR_MAIN, *(name for name in own if not is_of_site(name))})
        for flow, own in zip(flows, listed, strict=True)
    }
    for journal, account in large.items():
        flow = flow_of(journal)
        acks = cache.read_each([paths.ack(flow, name, journal) for name in cursors[flow]])
        offsets = [ack.value.offset if isinstance(ack, Versioned) else 0 for ack in acks]
        if any(isinstance(ack, Unreadable) for ack in acks):
            continue
        offset = min(offsets)
        slowest = cursors[flow][offsets.index(offset)]
        events = max(0, account.safe - max(offset, account.floor))
        share = account.bytes_from(offset) / account.max_bytes
        if share >= SHARE:
            yield Kept(journal, flow if slowest == CURSOR_MAIN else slowest, events, share)


def of_kept(
    flows: Sequence[FlowRow], cache: ReadCache, accounts: Mapping[str, Account], now: float
) -> Iterator[Cause]:
    """Yield one cause per flow and reader, with the fullest journal. A flow's own journals count
    once its next batch is due. ``now``: seconds since the epoch."""
    states = {flow.flow: flow.state for flow in flows}
    due = {flow.flow: now - flow.batch_seconds for flow in flows if flow.state == "running"}
    by_reader: dict[tuple[str, str], list[Kept]] = {}
    for journal in kept(cache, accounts):
        oldest_us = accounts[journal.journal].oldest_unacked_us
        own = journal.reader == flow_of(journal.journal)
        if own and oldest_us is not None and oldest_us / 1e6 > due.get(journal.reader, now):
            continue
        by_reader.setdefault((flow_of(journal.journal), journal.reader), []).append(journal)
    for (owner, reader), journals in by_reader.items():
        fullest = max(journals, key=lambda kept_journal: kept_journal.share)
        more = f" and {len(journals) - 1} more" if len(journals) > 1 else ""
        state = states.get(reader, "")
        shown_state = f" ({state})" if state not in ("", "running") else ""
        subject = f"flow {reader}" if state else f"the reader {reader}"
        yield Cause(
            f"journal {fullest.journal}{more} of flow {owner} keeps {fullest.events:,} events that "
            f"{subject}{shown_state} has not read, {fullest.share:.0%} of `max_bytes`; at 100% "
            f"the senders of flow {owner} wait",
            _advice(reader, owner, state),
            about=f"{subject}: keeps journals of flow {owner}",
        )


def _advice(reader: str, owner: str, state: str) -> str:
    if not state:
        remedy = f"identify the reader (`flumeng cursor list {owner}`)"
    elif state == "suspended":
        remedy = f"`flumeng flow resume {reader}`"
    else:
        remedy = f"find out why it is behind (`flumeng flow lag {whole_of(reader)}`)"
    given_up = ""
    if is_part(reader):
        given_up = f"; to give up its unread events: apply flow {owner} without it"
    elif not state:
        given_up = f"; to give up its unread events: `flumeng cursor end {owner} {reader}`"
    elif reader != owner:
        given_up = f"; to give up its unread events: `flumeng flow delete {reader}`"
    return f"{remedy}, or raise `journal.max_bytes` of flow {owner}{given_up}"


NAMED = 3
UNAVAILABLE = "unavailable: no replica in sync is live"
BELOW = "below the minimum in sync, and take no events"
MINIMUM = "at the minimum in sync"
UNDER = "under-replicated"
ADVICE = {
    UNAVAILABLE: "start one of these nodes; if all are gone for good, `flumeng journal promote "
    "JOURNAL --to NODE --unclean` gives up the events that only they have",
    BELOW: "senders wait until another replica is in sync: about 2 s after the lost node's session "
    "ends (--session-seconds, 10 s by default), longer if it has much to catch up; if no node with "
    "the role replica is free, start one, or the nodes that are down",
    MINIMUM: "with one replica less no events are accepted: start the nodes that are down, or more "
    "with the role replica",
    UNDER: "start the nodes that are down, or more with the role replica; a replica that is "
    "catching up needs time",
}


def of_replicas(
    journals: Mapping[str, Journal],
    replication: Mapping[str, Replicas],
    live: Collection[str],
    acked: Mapping[str, int],
) -> Iterator[Cause]:
    """Yield one cause per flow and shortage. ``replication`` is by flow, ``acked`` by journal."""
    by_state: dict[tuple[str, str], list[str]] = {}
    for name, journal in journals.items():
        done = journal.end is not None and acked.get(name, 0) >= journal.end
        if journal.lineage and not journal.gone and not done:
            state, why = _shortage(journal, replication.get(journal.flow), live)
            if state:
                by_state.setdefault((journal.flow, state), []).append(f"{name} ({why})")
    for (flow, state), those in sorted(by_state.items()):
        named = "; ".join(those[:NAMED])
        more = f"; and {len(those) - NAMED} more" if len(those) > NAMED else ""
        yield Cause(
            f"flow {flow}: {len(those)} journal{'s' if len(those) > 1 else ''} {state}: "
            f"{named}{more}",
            ADVICE[state],
            about=f"flow {flow}: journals {state}",
        )


def _shortage(journal: Journal, target: Replicas | None, live: Collection[str]) -> tuple[str, str]:
    """Return the state of a journal with too few replicas, and why; empty if it has enough."""
    in_sync = [node_of(replica) for replica in journal.in_sync]
    there = [node for node in in_sync if node in live]
    if not there:
        return UNAVAILABLE, f"{', '.join(in_sync)} not live"
    if target is None or journal.closed or len(there) >= target.copies:
        return "", ""
    state = UNDER
    if len(there) < target.min_in_sync:
        state = BELOW
    elif len(there) == target.min_in_sync:
        state = MINIMUM
    missing = [
        f"{node} is not live" if node not in live else f"{node} is catching up"
        for node in dict.fromkeys((*in_sync, *journal.replicas))
        if node not in there
    ]
    if len(journal.replicas) < target.copies:
        missing.append("no other node may hold a replica")
    return state, f"in sync: {', '.join(there)}; {', '.join(missing)}"
