"""The journals of a cluster. Facts are None when the node that knows them does not answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flumeng.control.queries import fan_out
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.snapshot import journal_registry
from flumeng.control.zookeeper import ReadableStore
from flumeng.journal.log.progress_history import AGO_SECONDS
from flumeng.journal.replication.membership import node_of
from flumeng.journal.serving.account import Account
from flumeng.platform.errors import UnknownNameError, UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths

Ask = Callable[[str], Mapping[str, Account]]
"""Returns the accounts of all journals served at an address. Raises ``UnavailableError``."""


def ask_worker(address: str) -> Mapping[str, Account]:
    with fan_out.client(address) as client:
        return client.accounts()


AskReplicas = Callable[[str], Mapping[str, int]]
"""Returns the ends of replicas on the node at an address. Raises ``UnavailableError``."""


def ask_replicas(address: str) -> Mapping[str, int]:
    """Return the ends of the replicas at an address; empty for an older node."""
    from flumeng.journal.log.errors import DeniedError  # noqa: PLC0415  loads pyarrow

    with fan_out.client(address) as client:
        try:
            return client.replicas()
        except DeniedError:
            raise
        except UserError:
            return {}


@dataclass(frozen=True)
class JournalRow:
    """A journal; offsets are half-open. ``end``: of a closed journal; ``waits_at``: where readers
    stop, before lost events. ``node``: the primary; ``in_sync``: nodes with every confirmed event;
    ``lags``: missing events by node. ``full_seconds``: as ``full_seconds``."""

    journal: str
    node: str
    flow: str
    term: int
    closed: bool
    end: int | None
    durability: str | None = None
    floor: int | None = None
    acked: int | None = None
    safe: int | None = None
    events: int | None = None
    unacked: int | None = None
    oldest_unacked_seconds: float | None = None
    bytes: int | None = None
    max_bytes: int | None = None
    lost: int | None = None
    waits_at: int | None = None
    replicas: tuple[str, ...] = ()
    in_sync: tuple[str, ...] = ()
    lags: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""
    full_seconds: float | None = None


def journals(store: ReadableStore, ask: Ask, now: float) -> list[JournalRow]:
    """Return all registered journals; ``now`` is in seconds since the epoch."""
    cache = ReadCache.of(store)
    registered = journal_registry.journals(cache)
    accounts, _ = fan_out.ask_all(cache, ask)
    rows = []
    for name, record in registered.items():
        problem = cache.why(paths.journal(name))
        row = JournalRow(
            name,
            record.primary,
            record.flow,
            record.term,
            record.closed,
            record.end,
            replicas=record.replicas,
            in_sync=tuple(map(node_of, record.in_sync)) if record.lineage else (),
            problem=problem,
        )
        account = accounts.get(record.primary, {}).get(name)
        rows.append(_with_account(row, account, now) if account else row)
    return rows


def journal(store: ReadableStore, ask: Ask, now: float, name: str) -> JournalRow:
    return pick(journals(store, ask, now), name)


def reached(store: ReadableStore, ask: AskReplicas, name: str) -> dict[str, int]:
    """Return the end of each replica of the journal, by node; only of nodes that answer."""
    ends, _ = fan_out.ask_all(ReadCache.of(store), ask)
    return {node: replicas[name] for node, replicas in ends.items() if name in replicas}


def pick(rows: Sequence[JournalRow], name: str) -> JournalRow:
    """Return a journal's row. Raises ``UserError`` with the nearest name for an unknown one."""
    by_name = {row.journal: row for row in rows}
    if name not in by_name:
        hint = nearest(name, by_name) if by_name else "there are none"
        raise UnknownNameError(f'there is no journal "{name}"; {hint}')
    return by_name[name]


def _with_account(row: JournalRow, account: Account, now: float) -> JournalRow:
    oldest = account.oldest_unacked_us
    return replace(
        row,
        durability=account.durability,
        floor=account.floor,
        acked=account.acked,
        safe=account.safe,
        events=account.events,
        unacked=account.unacked,
        oldest_unacked_seconds=None if oldest is None else max(0.0, round(now - oldest / 1e6, 3)),
        bytes=account.bytes,
        max_bytes=account.max_bytes,
        lost=account.lost,
        waits_at=account.waits_at,
        lags=account.lags,
        problem=row.problem or account.problem,
        full_seconds=full_seconds(account),
    )


def full_seconds(account: Account) -> float | None:
    """Return in how many seconds events that its flow has not acked fill a journal, at the growth
    of the last minute; 0 when it is full. None if this is unknown, the journal is closed, or the
    flow keeps up. Acked events do not count, since new ones take their room."""
    if account.closed or account.max_bytes <= 0:
        return None
    held = account.bytes_from(account.acked)
    if held >= account.max_bytes:
        return 0.0
    before = account.unacked_minute_ago
    if before is None or account.unacked <= before:
        return None
    bytes_a_second = held * (account.unacked - before) / account.unacked / AGO_SECONDS
    return (account.max_bytes - held) / bytes_a_second if bytes_a_second else None
