"""For whom journals are kept, told before they are full and senders wait. Pure.

A journal keeps what the slowest of its readers has not acked: its own flow, one of that flow's
isolated parts, or a flow that reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flumeng.journal.account import Account
from flumeng.journal.names import flow_of
from flumeng.spec.flow_names import is_part, whole_of
from flumeng.state.partitions import journal_of
from flumeng.views.overview import AckRow, FlowRow
from flumeng.views.unreadable import Cause

SHARE = 0.5
"""Of its `max_bytes`: a journal that has to keep more is told of."""


@dataclass(frozen=True)
class Kept:
    """A journal that is kept for ``reader``, which has not acked so many ``events``: about this
    ``share`` of the bytes that it may have."""

    journal: str
    reader: str
    events: int
    share: float


def kept(acks: Sequence[AckRow], accounts: Mapping[str, Account]) -> Iterator[Kept]:
    """The journals over ``SHARE``. ``acks`` are of all flows, ``accounts`` by the names of journals
    and other partitions."""
    slowest: dict[str, AckRow] = {}
    for row in acks:
        journal = journal_of(row.partition)
        known = slowest.get(journal)
        if known is None or (row.offset or 0) < (known.offset or 0):
            slowest[journal] = row
    for journal, row in sorted(slowest.items()):
        account = accounts.get(journal)
        if account is None or not account.max_bytes or row.problem:
            continue
        events = max(0, account.safe - max(row.offset or 0, account.floor))
        share = account.bytes * events / max(1, account.events) / account.max_bytes
        if share >= SHARE:
            yield Kept(journal, row.flow, events, share)


def causes(
    flows: Sequence[FlowRow], acks: Sequence[AckRow], accounts: Mapping[str, Account]
) -> Iterator[Cause]:
    """One for each flow that keeps journals, with its fullest."""
    states = {flow.flow: flow.state for flow in flows}
    found: dict[str, list[Kept]] = {}
    for one in kept(acks, accounts):
        found.setdefault(one.reader, []).append(one)
    for reader, journals in found.items():
        fullest = max(journals, key=lambda one: one.share)
        owner = flow_of(fullest.journal)
        more = f" and {len(journals) - 1} more" if len(journals) > 1 else ""
        state = states.get(reader, "")
        is_ = f", which is {state}," if state not in ("", "running") else ""
        yield Cause(
            f"journal {fullest.journal}{more} of flow {owner} is kept for flow {reader}{is_} that "
            f"has not read {fullest.events} events of it: {fullest.share:.0%} of `max_bytes`; at "
            f"100% the senders of flow {owner} wait",
            _advice(reader, owner, state),
            about=f"flow {reader}: keeps journals of flow {owner}",
        )


def _advice(reader: str, owner: str, state: str) -> str:
    if state == "suspended":
        mend = f"`flumeng flow resume {reader}`"
    else:
        mend = f"see why it is behind (`flumeng flow lag {whole_of(reader)}`)"
    given_up = ""
    if is_part(reader):
        given_up = f"; to give up what it has not read: apply flow {owner} without it"
    elif reader != owner:
        given_up = f"; to give up what it has not read: `flumeng flow delete {reader}`"
    return f"{mend}, or give flow {owner} more `journal.max_bytes`{given_up}"
