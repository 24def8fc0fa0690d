"""Warns for which reader journals are kept, before they are full and senders wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flumeng.config.flow_names import is_part, whole_of
from flumeng.control.queries.overview import FlowRow
from flumeng.control.queries.reading import Reading
from flumeng.control.queries.unreadable import Cause
from flumeng.control.zookeeper import Unreadable, Versioned
from flumeng.events.journal_names import flow_of
from flumeng.journal.serving.account import Account
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN

SHARE = 0.5
"""Of ``max_bytes``: a journal that has to keep more is reported."""


@dataclass(frozen=True)
class Kept:
    """A journal kept for ``reader``, which has not acked ``events``: a ``share`` of
    ``max_bytes``."""

    journal: str
    reader: str
    events: int
    share: float


def kept(reading: Reading, accounts: Mapping[str, Account]) -> Iterator[Kept]:
    """The journals above ``SHARE``. Acks are read only of journals that are as large."""
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


def causes(
    flows: Sequence[FlowRow], reading: Reading, accounts: Mapping[str, Account], now: float
) -> Iterator[Cause]:
    """One cause per reader, with its fullest journal. Events whose batch is not due yet do not
    count. ``now``: seconds since the epoch."""
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
