"""The lag of flows and their partitions, and its trend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from flumeng.control.commands.isolated_parts import parts_there
from flumeng.control.commands.lookup import require_flow
from flumeng.control.queries import fan_out, journals, links
from flumeng.control.queries.acks import AckRow, Positions, acks_of
from flumeng.control.queries.causes import Cause, of_unreadable
from flumeng.control.queries.fan_out import Answers
from flumeng.control.queries.links import LinkRow
from flumeng.control.queries.overview import FlowRow
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.queries.task_status import TaskRow
from flumeng.control.snapshot.partitions import key
from flumeng.control.zookeeper import ReadableStore
from flumeng.journal.log.progress_history import AGO_SECONDS
from flumeng.journal.serving.account import Account
from zkschema.records import COLLECT

N = TypeVar("N", int, float)

BATCHES = 2
"""Number of batches: a lag counts as steady while its oldest event is younger than these."""
NOISE = 0.1
"""A lag counts as steady when it changes by a smaller share in a minute."""
STUCK_SECONDS = 60.0
"""A collector counts as stuck when it acks nothing for this time while events wait."""


@dataclass(frozen=True)
class FlowLag:
    """A flow's lag. ``events`` wait in partitions with a known lag; ``unknown``: number of others.
    ``seconds``: age of the oldest. ``trend`` since a minute ago: ``growing``, ``shrinking``,
    ``steady`` or empty. ``moved``: an ack moved since; ``still``: nothing arrived since."""

    events: int
    unknown: int
    seconds: float | None
    trend: str
    moved: bool | None
    still: bool = False


def newest(answers: Answers[Account]) -> dict[str, Account]:
    """Return the account with the greatest end of each partition."""
    accounts: dict[str, Account] = {}
    for answer in answers.values():
        for name, account in answer.items():
            if name not in accounts or accounts[name].safe < account.safe:
                accounts[name] = account
    return accounts


def flow_lag(
    acks: Sequence[AckRow], accounts: Mapping[str, Account], now: float, batch_seconds: float = 0.0
) -> FlowLag:
    """Return the lag of one flow, which rises and falls with each batch of ``batch_seconds``."""
    events = sum(ack.lag or 0 for ack in acks)
    waiting = {key(ack.flow, ack.partition) for ack in acks if ack.lag}
    behind = [accounts[name] for name in waiting if name in accounts]
    ages = [now - a.oldest_unacked_us / 1e6 for a in behind if a.oldest_unacked_us]
    pairs = [(account, account.unacked_minute_ago) for account in behind]
    before = [ago for _, ago in pairs if ago is not None]
    trend, moved = "", None
    if behind and len(before) == len(pairs):
        oldest = max(ages, default=None)
        within = oldest is not None and oldest <= BATCHES * batch_seconds
        trend = _trend(sum(account.unacked for account in behind), sum(before), within_batch=within)
        waited = [account for account, ago in pairs if ago]
        moved = any(a.acked != a.acked_minute_ago for a in waited) if waited else None
    own = [accounts.get(key(ack.flow, ack.partition)) for ack in acks]
    return FlowLag(
        events=events,
        unknown=sum(ack.lag is None for ack in acks),
        seconds=round(max(0.0, *ages), 1) if ages else (None if events else 0.0),
        trend=trend,
        moved=moved,
        still=bool(own) and all(a is not None and a.safe == a.safe_minute_ago for a in own),
    )


def causes(flow: FlowRow, lag: FlowLag) -> Iterator[Cause]:
    """Yield at most one cause: the flow is late, or its collectors are stuck."""
    if flow.state == "suspended" or flow.waits or not lag.events:
        return
    late = lag.seconds is not None and lag.seconds > flow.lag_limit_seconds
    stuck = (
        lag.moved is False
        and lag.seconds is not None
        and lag.seconds > max(STUCK_SECONDS, 3 * flow.batch_seconds)
        and _all_run(flow.tasks)
    )
    if not late and not stuck:
        return
    oldest = "" if lag.seconds is None else f", the oldest for {lag.seconds:.0f} s"
    limit = f" (limit {flow.lag_limit_seconds:g} s)" if late else ""
    trend = f"; the lag is {lag.trend}" if lag.trend else ""
    reason, advice = _reason(flow.tasks, lag)
    yield Cause(
        f"flow {flow.flow} is behind: {lag.events:,} events wait{oldest}{limit}{trend}: {reason}",
        advice,
        about=f"flow {flow.flow}: lag",
    )


def _reason(tasks: Sequence[TaskRow], lag: FlowLag) -> tuple[str, str]:
    collect = [task for task in tasks if task.kind == COLLECT]
    if not collect:
        return "no collect task is planned", "see the problems of the flow and of the masters"
    for task in collect:
        if task.state != "running":
            why = f": {task.why}" if task.why else ""
            return f"task {task.key} is {task.state}{why}", "see the problem of this task"
    for task in collect:
        if task.why:
            return f"task {task.key}: {task.why}", "see the problem of this task"
    if lag.moved is False:
        return (
            "its tasks run but have acked nothing for a minute: a collector hangs, or a sink does "
            "not answer",
            "see the collector's log on "
            + ", ".join(sorted({task.node for task in collect if task.node}))
            + "; `flumeng task restart` restarts a task",
        )
    if lag.trend == "shrinking":
        return "it is catching up", "wait"
    return (
        "events arrive faster than its tasks deliver them, or a batch takes long",
        "add collect tasks or nodes (`place.collect`), or limit the incoming rate "
        "(`flumeng flow choke`)",
    )


def _all_run(tasks: Sequence[TaskRow]) -> bool:
    collect = [task for task in tasks if task.kind == COLLECT]
    return bool(collect) and all(task.state == "running" for task in collect)


def _trend(now: int, before: int, *, within_batch: bool) -> str:
    if within_batch or abs(now - before) <= NOISE * max(now, before):
        return "steady"
    return "growing" if now > before else "shrinking"


@dataclass(frozen=True)
class PartitionLag:
    """The lag of a partition: ``events`` not yet in all sinks. ``seconds``: age of the event at the
    ack, relative to the newest event, or to now where nodes stamp events. Rates are of the last
    minute. ``caught_up_seconds``: until no event waits at these rates; None if never or unknown."""

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
    """A flow's lag in detail. ``partitions``: ``unknown`` ones, without a known lag, then by most
    events. ``silent`` nodes did not answer; ``problems``: unreadable records. ``trend``: as in
    ``FlowLag``; ``link``: of a flow that reads another site."""

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
    trend: str = ""
    link: LinkRow | None = None


def lag_of_flow(store: ReadableStore, ask: journals.Ask, flow: str, now: float) -> LagOfFlow:
    """Return the lag of a flow and its isolated parts. ``now`` is in seconds since the epoch."""
    state = require_flow(store, flow).value.state
    cache = ReadCache.of(store)
    answers, silent = fan_out.ask_all(cache, ask)
    where, accounts = Positions(answers, silent), newest(answers)
    acks = acks_of(cache, where, flow)
    return replace(
        _lag(cache, flow, state, acks, accounts, silent=silent, now=now),
        trend=flow_lag(acks, accounts, now).trend,
        link=next(iter(links.links(cache, [flow], now)), None),
        parts=tuple(
            _lag(
                cache,
                part,
                record.value.state,
                acks_of(cache, where, part),
                accounts,
                silent=silent,
                now=now,
            )
            for part, record in parts_there(store, [flow]).items()
        ),
    )


def _lag(
    cache: ReadCache,
    flow: str,
    state: str,
    acks: Sequence[AckRow],
    accounts: Mapping[str, Account],
    *,
    silent: tuple[str, ...],
    now: float,
) -> LagOfFlow:
    rows = sorted(
        (_row(ack, accounts.get(key(flow, ack.partition)), now) for ack in acks), key=_latest_first
    )
    problems = tuple(cause.what for cause in of_unreadable(cache.unreadable.values()))
    return _total(flow, state, rows, silent, problems)


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
    measured = [row for row in rows if row.events is not None]
    events = sum(row.events or 0 for row in measured)
    ages = [row.seconds for row in measured if row.seconds is not None]
    acked = _sum([row.acked_per_second for row in measured])
    added = _sum([row.added_per_second for row in measured])
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
    return if_all_known(lambda rates_known: round(sum(rates_known), 3), rates)


def if_all_known(how: Callable[[list[N]], N], numbers: Sequence[N | None]) -> N | None:
    """Apply ``how``, such as a sum; None unless there are numbers and all are known."""
    present = [number for number in numbers if number is not None]
    return how(present) if present and len(present) == len(numbers) else None


def _latest_first(row: PartitionLag) -> tuple[bool, int, str]:
    return row.events is not None, -(row.events or 0), row.partition
