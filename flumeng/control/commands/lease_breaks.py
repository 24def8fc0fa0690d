"""Records of broken leases of other sites, ``/flows/FLOW/breaks``. They are written with the change
that gives events up, and kept until an operator acknowledges them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from flumeng.control.commands.lookup import require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot.missed_journals import KEPT_GAPS
from flumeng.control.zookeeper import ABSENT, Put, ReadableStore, Unreadable, Versioned, readable
from flumeng.events.journal_names import flow_of
from flumeng.platform.errors import UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Break, Breaks, Gap, Lease, Link

KEPT_CURSORS = 100
SHOWN_SECONDS = 604_800.0
"""After this time a break is no longer reported, even if no one has acknowledged it."""


def is_of_site(cursor: str) -> bool:
    """Whether the cursor ``SITE:FLOW`` is a lease of another site."""
    return ":" in cursor


def events_of(gaps: Sequence[Gap]) -> int:
    return sum(gap.end - gap.start for gap in gaps)


def counted(broke: Break) -> str:
    return f"at least {broke.events} events" if broke.at_least else f"{broke.events} events"


def with_gaps(before: Break | None, after: Break) -> Break:
    """Return ``after`` with the gaps of an unacknowledged break before it; adjoining ones join. The
    gaps of an earlier reader of that name are dropped."""
    before = None if before and before.made != after.made else before
    gaps = [*before.gaps] if before else []
    for gap in after.gaps:
        last = next(
            (old for old in gaps if (old.journal, old.end) == (gap.journal, gap.start)), None
        )
        if last is None:
            gaps.append(gap)
        else:
            gaps[gaps.index(last)] = replace(last, end=gap.end)
    events = after.events + (before.events if before else 0)
    return replace(after, events=events, gaps=tuple(gaps[-KEPT_GAPS:]))


def new_break(
    lease: Lease | Break, why: str, time: float, gaps: Sequence[Gap], *, away: bool = False
) -> Break:
    """Return a break of this lease, or of that of an earlier break."""
    lost = tuple(gap for gap in gaps if gap.start < gap.end)
    return Break(
        id=uuid.uuid4().hex[:12],
        reader=lease.reader,
        why=why,
        time=time,
        events=events_of(lost),
        gaps=lost[-KEPT_GAPS:],
        away=away,
        made=lease.made,
    )


def of_flow(store: ReadableStore, flow: str) -> Mapping[str, Break]:
    """Return the flow's unacknowledged breaks by cursor; none of an unreadable record."""
    found = store.read_each([paths.breaks(flow)])[0]
    return found.value.cursors if isinstance(found, Versioned) else {}


def recorded(
    store: ReadableStore, flow: str, cursor: str, change: Callable[[Break | None], Break | None]
) -> Put | None:
    """Return the write after ``change``, which gets the cursor's break and returns another, or None
    to remove it. Returns None for no change, and for an unreadable record, which stays."""
    found = store.read_each([paths.breaks(flow)])[0]
    if isinstance(found, Unreadable):
        return None
    cursors = dict(found.value.cursors) if found else {}
    before = cursors.pop(cursor, None)
    broke = change(before)
    if before == broke:
        return None
    if broke is not None:
        cursors[cursor] = broke
    for name in sorted(cursors, key=lambda name: cursors[name].time)[:-KEPT_CURSORS]:
        del cursors[name]
    record = replace(found.value, cursors=cursors) if found else Breaks(cursors=cursors)
    return Put(paths.breaks(flow), record, found.version if found else ABSENT)


def unread(store: ReadableStore, flow: str, cursor: str, journals: Sequence[str]) -> list[Gap]:
    """Return what only this cursor keeps of the journals: from its acks to the least other ack."""
    names = sorted(store.children(paths.acks(flow)))
    others = [name for name in names if name != cursor]
    acks = store.read_each(
        [paths.ack(flow, name, j) for j in journals for name in (cursor, *others)]
    )
    offsets = iter(ack.value.offset if isinstance(ack, Versioned) else 0 for ack in acks)
    gaps = []
    for journal in journals:
        own, *rest = (next(offsets) for _ in (cursor, *others))
        gaps.append(Gap(journal=journal, start=own, end=max(own, min(rest, default=own))))
    return gaps


def ended(
    store: ReadableStore, key: tuple[str, str], lease: Versioned[Lease], why: str, now: float
) -> Put | None:
    """Return the write that records the end of a lease of another site, with the events that it
    alone keeps. ``key``: its flow and cursor. Returns None for another reader's lease."""
    flow, cursor = key
    if not is_of_site(cursor) or not store.exists(paths.flow(flow)):
        return None
    folders = [paths.cursor(flow, name) for name in (cursor, CURSOR_MAIN)]
    there = [folder for folder in folders if store.exists(folder)]
    journals = sorted({name for names in store.children_many(there) for name in names})
    gaps = unread(store, flow, cursor, journals)
    broke = new_break(lease.value, why, now, gaps, away=True)
    broke = replace(broke, newest=max(lease.created, _newest(store, flow)))

    def change(before: Break | None) -> Break:
        if before is not None and before.away and before.made == broke.made:
            return before  # an interrupted end is repeated: acks may be gone already
        return with_gaps(before, broke)

    return recorded(store, flow, cursor, change)


def _newest(store: ReadableStore, flow: str) -> int:
    """Return the transaction that made the newest of the flow's journals, 0 without any."""
    own = [name for name in store.children(paths.journals()) if flow_of(name) == flow]
    found = store.read_each([paths.journal(name) for name in own])
    return max((record.created for record in found if record is not None), default=0)


def acknowledge(operator: Operator, flow: str, cursor: str) -> Break:
    """Remove the record of a cursor's break. Raises UserError when there is none."""
    require_flow(operator.store, flow)
    known = of_flow(operator.store, flow)
    if cursor not in known:
        hint = nearest(cursor, known) if known else "the flow has no broken lease"
        raise UserError(f'no lease "{cursor}" of flow {flow} is broken; {hint}')
    write = recorded(operator.store, flow, cursor, lambda _: None)
    assert write is not None, "the break was there"
    operator.commit([write], f"cursor acknowledge {flow} {cursor}")
    return known[cursor]


def acknowledge_own(operator: Operator, flow: str) -> Break:
    """Acknowledge the break of this flow's own lease at another site. Raises UserError."""
    require_flow(operator.store, flow)
    found = link_of(operator.store, flow)
    broke = found.value.broke if found else None
    if found is None or broke is None or broke.id == found.value.acknowledged:
        raise UserError(f"flow {flow} has no lease at another site that broke")
    after = replace(found.value, acknowledged=broke.id)
    operator.commit([Put(paths.link(flow), after, found.version)], f"cursor acknowledge {flow}")
    return broke


def link_of(store: ReadableStore, flow: str) -> Versioned[Link] | None:
    return readable(store.read_each([paths.link(flow)])[0])
