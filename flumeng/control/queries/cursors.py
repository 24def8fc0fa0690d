"""Cursors of readers that are not the flow itself, and what their leases hold of its journals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from flumeng.control.commands import lease_breaks
from flumeng.control.commands.lease_breaks import is_of_site
from flumeng.control.queries.acks import Positions
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.snapshot import leases, partitions
from flumeng.control.snapshot.journal_registry import journals
from flumeng.control.zookeeper import Found, ReadableStore, Unreadable, Versioned
from flumeng.journal.serving.account import Account
from flumeng.platform.errors import UnknownNameError
from flumeng.platform.options.problems import nearest
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Ack, Break, Journal, Lease

Key = tuple[str, str]
"""A flow, and a cursor in its journals."""


@dataclass(frozen=True)
class HeldJournal:
    """A journal that a cursor keeps; None means unknown. ``room``: the share of the journal's
    ``max_bytes`` that its unread events take."""

    journal: str
    ack: int
    floor: int | None
    end: int | None
    events: int | None
    bytes: int | None
    room: float | None


@dataclass(frozen=True)
class CursorRow:
    """A reader's cursor; None means unknown or none. ``until``: end of its lease, None for a flow.
    ``lag``: unread events, and their ``bytes``. ``site`` and ``reads_as``: the other site, and its
    flow. ``age_seconds``: since the lease was renewed. ``time`` and ``room``: used shares of
    ``keep_seconds``, and of the fullest journal's room. ``journals``: their number. ``failover``:
    when the other site has taken over from this one, or 0. ``clock_ahead_seconds``: of ZooKeeper's
    clock was that of the gateway which renewed the lease."""

    flow: str
    cursor: str
    reader: str
    until: float | None
    journals: int
    lag: int | None
    problem: str = ""
    site: str = ""
    reads_as: str = ""
    age_seconds: float | None = None
    keep_seconds: float | None = None
    time: float | None = None
    bytes: int | None = None
    room: float | None = None
    failover: float = 0.0
    clock_ahead_seconds: float = 0.0


@dataclass(frozen=True)
class HoldingCursor(CursorRow):
    """A cursor with the journals that it keeps."""

    held: tuple[HeldJournal, ...] = field(default=(), repr=False)

    def listed(self) -> CursorRow:
        """Return the row of lists, without the journals."""
        return CursorRow(**{each.name: getattr(self, each.name) for each in fields(CursorRow)})


@dataclass(frozen=True)
class CursorDetail:
    """A cursor, and its last break. Either may be missing."""

    cursor: HoldingCursor | None
    broke: Break | None


def of_sites(cache: ReadCache) -> list[Key]:
    """Return the leases of other sites."""
    return [key for key in leases.names(cache) if is_of_site(key[1])]


def cursors(
    source: ReadableStore, where: Positions, accounts: Mapping[str, Account], now: float
) -> list[HoldingCursor]:
    """Return a row per reader's cursor, without the flows' own cursors. ``now``: epoch seconds."""
    cache = ReadCache.of(source)
    flows = cache.children(paths.flows())
    listed = cache.children_many([paths.acks(flow) for flow in flows])
    keys = [
        (flow, name)
        for flow, names in zip(flows, listed, strict=True)
        for name in names
        if name != CURSOR_MAIN
    ]
    return rows(cache, where, accounts, now, keys)


def rows(
    cache: ReadCache,
    where: Positions,
    accounts: Mapping[str, Account],
    now: float,
    keys: Sequence[Key],
) -> list[HoldingCursor]:
    """Return the rows of these cursors."""
    found = cache.read_each([paths.lease(*key) for key in keys])
    registered: defaultdict[str, dict[str, Journal]] = defaultdict(dict)
    for journal, record in (journals(cache) if keys else {}).items():
        registered[record.flow][journal] = record
    flows = set(cache.children(paths.flows())) if keys else set()
    ack_keys = [(*key, journal) for key in keys for journal in registered[key[0]]]
    acks = dict(zip(ack_keys, cache.read_each([paths.ack(*it) for it in ack_keys]), strict=True))
    made = []
    for (flow, name), lease in zip(keys, found, strict=True):
        own = registered[flow]
        held = tuple(
            _held(journal, own[journal], acks[flow, name, journal], where, accounts.get(journal))
            for journal in sorted(own)
        )
        lent = lease.value if isinstance(lease, Versioned) else None
        age = max(0.0, now - lease.written) if isinstance(lease, Versioned) else None
        keep = lent.keep_seconds if lent else None
        site, _, reads_as = name.partition(":") if is_of_site(name) else ("", "", "")
        shares = [each.room for each in held if each.room is not None]
        made.append(
            HoldingCursor(
                flow=flow,
                cursor=name,
                reader=lent.reader if lent else f"flow {name}" if name in flows else "",
                until=leases.until(lease) if isinstance(lease, Versioned) else None,
                journals=len(own),
                lag=_sum([each.events for each in held]),
                problem=str(lease) if isinstance(lease, Unreadable) else "",
                site=site,
                reads_as=reads_as,
                age_seconds=age,
                keep_seconds=keep,
                time=age / keep if age is not None and keep else None,
                bytes=_sum([each.bytes for each in held]),
                room=max(shares, default=None),
                held=held,
                failover=lent.failover if lent else 0.0,
                clock_ahead_seconds=_clock_ahead(lease),
            )
        )
    return made


def detail(
    source: ReadableStore, where: Positions, accounts: Mapping[str, Account], now: float, key: Key
) -> CursorDetail:
    """Return one cursor in detail. Raises UserError for an unknown one."""
    cache = ReadCache.of(source)
    known = [row for row in cursors(cache, where, accounts, now) if row.flow == key[0]]
    row = next((row for row in known if row.cursor == key[1]), None)
    broke = lease_breaks.of_flow(cache, key[0]).get(key[1])
    if row is None and broke is None:
        names = [row.cursor for row in known]
        hint = nearest(key[1], names) if names else "it has no other readers"
        raise UnknownNameError(f'flow {key[0]} has no cursor "{key[1]}"; {hint}')
    return CursorDetail(row, broke)


def _clock_ahead(lease: Found[Lease]) -> float:
    """Return the difference of both times of one write; 0.0 of one that renewed nothing."""
    if not isinstance(lease, Versioned) or lease.value.keep_seconds == leases.ENDED_SECONDS:
        return 0.0
    return lease.value.renewed - lease.written


def _held(
    name: str, record: Journal, ack: Found[Ack], where: Positions, account: Account | None
) -> HeldJournal:
    end = where.end_of(name, partitions.of_journal(record))
    offset = ack.value.emitted if isinstance(ack, Versioned) else 0
    floor = account.floor if account else None
    if end is None or isinstance(ack, Unreadable):
        return HeldJournal(name, offset, floor, end, None, None, None)
    events = max(0, end - max(offset, floor or 0))
    if account is None or not account.max_bytes:
        return HeldJournal(name, offset, floor, end, events, None if account is None else 0, None)
    held = account.bytes_from(offset)
    return HeldJournal(name, offset, floor, end, events, held, held / account.max_bytes)


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None
