"""Scales a flow's collect tasks by its lag, as ``flumeng.control.planner.scaling`` decides."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from flumeng.agent.discovery.accounts import PartitionAccounts
from flumeng.config import TaskRange
from flumeng.control.planner.scaling import (
    CALM_SECONDS,
    SAMPLE_SECONDS,
    Decision,
    Limits,
    Sample,
    Standing,
    decide,
    recorded,
    standing,
)
from flumeng.control.snapshot import discovered
from flumeng.control.snapshot.task_map import read_plans
from flumeng.control.zookeeper import Store, Versioned, readable
from flumeng.journal.serving.account import Account
from flumeng.platform.errors import FlumengError
from zkschema import paths
from zkschema.records import COLLECT, Partitions, PlannedTask

log = logging.getLogger(__name__)

KEPT_SAMPLES = int(CALM_SECONDS / SAMPLE_SECONDS) + 2


@dataclass(frozen=True)
class Seen:
    """Accounts at monotonic ``time``. ``waited``: least seconds that events wait, by partition."""

    time: float
    accounts: Mapping[str, Account]
    waited: Mapping[str, float]


class Scaler:
    """Decides the number of a flow's collect tasks. Used by one thread at a time."""

    def __init__(
        self,
        store: Store,
        flow: str,
        epoch: int,
        bounds: TaskRange,
        batch_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._flow = flow
        self._epoch = epoch
        self._bounds = bounds
        self._batch_seconds = batch_seconds
        self._clock = clock
        self._wall = wall
        self._samples: deque[Sample] = deque(maxlen=KEPT_SAMPLES)
        self._before: Seen | None = None
        self._waits = _Waits()
        self._standing: Standing | None = None
        self._written_at = float("-inf")

    def step(self, accounts: Mapping[str, Account]) -> Decision | None:
        """Sample the flow, decide, and write a new decision; None when none is possible. Raises
        ConflictError, CorruptError, UnavailableError; the next step tries again."""
        record = readable(discovered.read(self._store, [self._flow])[0])
        if record is None or record.value.epoch != self._epoch:
            return None
        plans = read_plans(self._store, [self._flow])
        planned = plans[self._flow].value.tasks if plans else {}
        tasks = {name: task for name, task in planned.items() if task.kind == COLLECT}
        if self._standing is None:
            if not tasks:
                return None
            self._standing = standing(record.value.scaling, len(tasks), self._clock())
        moment = self._clock()
        now = Seen(moment, accounts, self._waits.see(accounts, moment))
        before, self._before = self._before, now
        if before is None or now.time <= before.time:
            return None
        unsettled = self._unsettled(record.value, tasks, accounts)
        self._samples.append(_sample(before, now, self._wall(), len(tasks), unsettled))
        still_read = sum(not account.closed or account.unacked > 0 for account in accounts.values())
        bounds = self._bounds
        limits = Limits(
            bounds.min, bounds.max, bounds.lag_seconds, self._batch_seconds, max(1, still_read)
        )
        decision = decide(self._samples, limits, self._standing)
        self._write(record, decision)
        self._standing = decision.standing
        return decision

    def _write(self, record: Versioned[Partitions], decision: Decision) -> None:
        assert self._standing is not None
        quiet = self._clock() - self._written_at
        before = record.value
        new = recorded(
            before.scaling, decision, self._standing.tasks, round(self._wall(), 3), quiet
        )
        if new is None:
            return
        after = replace(before, scaling=new)
        self._store.commit(discovered.writes(self._flow, before, after, record.version))
        self._written_at = self._clock()
        if before.scaling is None or before.scaling.tasks != decision.tasks:
            log.info(
                "flow %s: %d collect tasks (%s): %s",
                *(self._flow, decision.tasks, decision.kind, decision.why),
            )

    def _unsettled(
        self, record: Partitions, tasks: Mapping[str, PlannedTask], accounts: Mapping[str, Account]
    ) -> str:
        """Return why the sample allows no conclusion; empty when all tasks run."""
        assert self._standing is not None
        silent = [
            n for n, part in record.partitions.items() if part.end is None and n not in accounts
        ]
        if silent:
            return f"the end of partition {silent[0]} is unknown ({len(silent)} such partitions)"
        expected = self._bounds.clamp(self._standing.tasks)
        if len(tasks) != expected:
            return f"{len(tasks)} of {expected} tasks are planned"
        nodes = sorted({task.node for task in tasks.values() if task.node})
        live = self._store.read_each([paths.live_node(node) for node in nodes])
        reported = self._store.read_each([paths.status(node) for node in nodes])
        statuses = {
            node: status.value.tasks
            for node, there, status in zip(nodes, live, reported, strict=True)
            if there is not None and isinstance(status, Versioned)
        }
        for name, task in sorted(tasks.items()):
            status = statuses.get(task.node or "", {}).get(f"{self._flow}/{name}")
            if task.state != "assigned" or task.node is None:
                return f"task {name} is {task.state}"
            if status is None or status.epoch != task.epoch or status.state != "running":
                return f"task {name} does not run on node {task.node}"
        return ""


class _Waits:
    """Least waiting times of unacked events, as observed: in a burst all timestamps are young. A
    mark: the time when an end was first seen, and that end, which is not acked yet."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[float, int]] = {}

    def see(self, accounts: Mapping[str, Account], now: float) -> dict[str, float]:
        kept = ((n, self._marks.get(n, (now, new.safe)), new) for n, new in accounts.items())
        self._marks = {
            name: mark if new.acked < mark[1] else (now, new.safe) for name, mark, new in kept
        }
        waiting = (name for name, account in accounts.items() if account.unacked > 0)
        return {name: now - self._marks[name][0] for name in waiting}


def _sample(before: Seen, now: Seen, wall: float, tasks: int, unsettled: str) -> Sample:
    seconds = now.time - before.time
    both = [
        (before.accounts[name], account)
        for name, account in now.accounts.items()
        if name in before.accounts
    ]
    waiting = [account for account in now.accounts.values() if account.unacked > 0]
    ages = [age for age in (_age(account, wall) for account in waiting) if age is not None]
    if waiting and not ages:
        unsettled = unsettled or "the age of waiting events is unknown"
    return Sample(
        time=now.time,
        behind=sum(account.unacked for account in waiting),
        seconds=max((*ages, *now.waited.values()), default=0.0),
        arriving=sum(max(0, after.distance(old.safe, after.safe)) for old, after in both) / seconds,
        acked=sum(max(0, after.distance(old.acked, after.acked)) for old, after in both) / seconds,
        tasks=tasks,
        unsettled=unsettled,
    )


def _age(account: Account, wall: float) -> float | None:
    """Return the oldest event's age in seconds relative to the newest: stamps may be old."""
    if account.oldest_unacked_us is None:
        return None
    newest = wall if account.newest_us is None else account.newest_us / 1e6
    return max(0.0, newest - account.oldest_unacked_us / 1e6)


def scale(scalers: Callable[[], Mapping[str, Scaler]], accounts: PartitionAccounts) -> None:
    """Step each of the running ``scalers`` every 15 seconds, forever. All flows are queried at
    once, so a flow with unresponsive servers delays no other."""
    due = time.monotonic()
    while True:
        due = max(due + SAMPLE_SECONDS, time.monotonic())
        time.sleep(due - time.monotonic())
        running = scalers()
        reported = accounts.of_flows(running.keys())
        for flow, scaler in running.items():
            try:
                scaler.step(reported.get(flow, {}))
            except FlumengError as error:
                log.debug("flow %s: cannot decide its number of tasks: %s", flow, error)
