"""How far one flow is behind in each of its partitions, and when it will have caught up.

Reads only. An end that nobody tells leaves ``None``, never an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flumeng.control.commands.flow_records import require_flow
from flumeng.control.commands.parts import parts_there
from flumeng.control.queries import asking, journals
from flumeng.control.queries.acks import AckRow, Positions, acks_of
from flumeng.control.queries.lag import newest
from flumeng.control.queries.reading import Reading
from flumeng.control.queries.unreadable import causes
from flumeng.control.snapshot.partitions import key
from flumeng.control.zookeeper import ReadableStore
from flumeng.journal.log.past import AGO_SECONDS
from flumeng.journal.serving.account import Account


@dataclass(frozen=True)
class PartitionLag:
    """``events`` wait between ``ack`` and ``end``.

    ``seconds``: by so much the event at the ack is older than the newest one of the partition, or
    than now where events are stamped with the clock of a node. ``acked_per_second`` and
    ``added_per_second`` are those of the last minute, and ``caught_up_seconds`` is what they lead
    to: None when the partition does not catch up, or nobody knows.
    """

    partition: str
    ack: int | None
    end: int | None
    events: int | None
    seconds: float | None
    acked_per_second: float | None
    added_per_second: float | None
    caught_up_seconds: float | None
    problem: str = ""


@dataclass(frozen=True)
class LagOfFlow:
    """Of ``partitions``, the latest first. ``events`` are those that wait where the end is known;
    of ``unknown`` nobody says anything. ``silent`` are the nodes that did not answer, ``problems``
    what of the cluster could not be read."""

    flow: str
    state: str
    events: int
    seconds: float | None
    acked_per_second: float | None
    added_per_second: float | None
    caught_up_seconds: float | None
    unknown: tuple[str, ...]
    silent: tuple[str, ...]
    problems: tuple[str, ...]
    partitions: tuple[PartitionLag, ...]
    parts: tuple[LagOfFlow, ...] = ()


def lag_of_flow(store: ReadableStore, ask: journals.Ask, flow: str, now: float) -> LagOfFlow:
    """With its isolated parts. ``now`` is in seconds since the epoch. Raises ``UserError`` when
    there is no such flow."""
    state = require_flow(store, flow).value.state
    reading = Reading.of(store)
    told, silent = asking.ask_all(reading, ask)
    asked = Positions(told, silent), newest(told)
    whole = _lag(reading, flow, state, *asked, now=now)
    return replace(
        whole,
        parts=tuple(
            _lag(reading, part, record.value.state, *asked, now=now)
            for part, record in parts_there(store, [flow]).items()
        ),
    )


def _lag(
    reading: Reading,
    flow: str,
    state: str,
    where: Positions,
    accounts: Mapping[str, Account],
    *,
    now: float,
) -> LagOfFlow:
    acks = acks_of(reading, where, flow)
    rows = sorted(
        (_row(ack, accounts.get(key(flow, ack.partition)), now) for ack in acks), key=_latest_first
    )
    problems = tuple(cause.what for cause in causes(reading.unreadable.values()))
    return _total(flow, state, rows, where.silent, problems)


def _row(ack: AckRow, account: Account | None, now: float) -> PartitionLag:
    acked, added = _rates(account)
    return PartitionLag(
        partition=ack.partition,
        ack=ack.offset,
        end=ack.end,
        events=ack.lag,
        seconds=_seconds(ack, account, now),
        acked_per_second=acked,
        added_per_second=added,
        caught_up_seconds=_caught_up(ack.lag, acked, added),
        problem=ack.problem,
    )


def _seconds(ack: AckRow, account: Account | None, now: float) -> float | None:
    if not ack.lag or account is None or account.oldest_unacked_us is None:
        return None if ack.lag is None or ack.lag else 0.0
    newest = now if account.newest_us is None else account.newest_us / 1e6
    return round(max(0.0, newest - account.oldest_unacked_us / 1e6), 3)


def _rates(account: Account | None) -> tuple[float | None, float | None]:
    if account is None or account.acked_minute_ago is None or account.safe_minute_ago is None:
        return None, None
    acked = account.distance(account.acked_minute_ago, account.acked)
    added = account.distance(account.safe_minute_ago, account.safe)
    return round(max(0, acked) / AGO_SECONDS, 3), round(max(0, added) / AGO_SECONDS, 3)


def _caught_up(events: int | None, acked: float | None, added: float | None) -> float | None:
    if not events:
        return None if events is None else 0.0
    if acked is None or added is None or acked <= added:
        return None
    return round(events / (acked - added), 1)


def _total(
    flow: str,
    state: str,
    rows: Sequence[PartitionLag],
    silent: tuple[str, ...],
    problems: tuple[str, ...],
) -> LagOfFlow:
    known = [row for row in rows if row.events is not None]
    events = sum(row.events or 0 for row in known)
    ages = [row.seconds for row in known if row.seconds is not None]
    acked = _sum([row.acked_per_second for row in known])
    added = _sum([row.added_per_second for row in known])
    return LagOfFlow(
        flow=flow,
        state=state,
        events=events,
        seconds=max(ages, default=None if events else 0.0),
        acked_per_second=acked,
        added_per_second=added,
        caught_up_seconds=_caught_up(events, acked, added),
        unknown=tuple(row.partition for row in rows if row.events is None),
        silent=silent,
        problems=problems,
        partitions=tuple(rows),
    )


def _sum(rates: Sequence[float | None]) -> float | None:
    """None unless all are known."""
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 3) if known and len(known) == len(rates) else None


def _latest_first(row: PartitionLag) -> tuple[bool, int, str]:
    return row.events is not None, -(row.events or 0), row.partition
