"""How far the lanes of queues are acked, who reads them, and how fast. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flumeng.control.queries.reading import Reading
from flumeng.control.snapshot import queues
from flumeng.control.snapshot.partitions import ack_path, key
from flumeng.control.snapshot.task_map import read_plans
from flumeng.control.zookeeper import Found, Versioned
from flumeng.journal.log.past import AGO_SECONDS
from flumeng.journal.serving.account import Account
from zkschema import paths
from zkschema.records import COLLECT, Ack, Queue

N = TypeVar("N", int, float)
Accounts = Mapping[str, Account]
"""By ``partitions.key``."""


@dataclass(frozen=True)
class Owner:
    """``running``: the live ``node`` says that the task which reads a lane runs."""

    node: str = ""
    running: bool = False


NOBODY = Owner()


def acks_of(reading: Reading, heads: Mapping[str, Queue]) -> dict[str, dict[str, Found[Ack]]]:
    """Flow -> lane -> its ack; a lane that never had an item has none."""
    wanted = [
        (flow, lane, ack_path(flow, queues.partition_of(lane, head)))
        for flow, head in heads.items()
        for lane, number in head.next.items()
        if number
    ]
    found: dict[str, dict[str, Found[Ack]]] = {
        flow: dict.fromkeys(head.next) for flow, head in heads.items()
    }
    read = reading.read_each([path for _, _, path in wanted])
    for (flow, lane, _), ack in zip(wanted, read, strict=True):
        found[flow][lane] = ack
    return found


def owners_of(reading: Reading, flows: Iterable[str]) -> dict[str, Owner]:
    """By ``partitions.key``: who reads it. A task runs where a live node says so."""
    plans = read_plans(reading, flows)
    nodes = reading.children(paths.live_nodes())
    told = reading.read_many([paths.status(node) for node in nodes])
    statuses = {
        node: one.value.tasks for node, one in zip(nodes, told, strict=True) if one is not None
    }
    owners: dict[str, Owner] = {}
    for flow, plan in plans.items():
        for name, task in plan.value.tasks.items():
            if task.kind == COLLECT and task.node:
                status = statuses.get(task.node, {}).get(f"{flow}/{name}")
                works = status is not None and status.works and status.epoch == task.epoch
                owner = Owner(task.node, works)
                owners.update((key(flow, partition), owner) for partition in task.partitions)
    return owners


def offset_of(ack: Found[Ack]) -> int:
    return ack.value.offset if isinstance(ack, Versioned) else 0


def rate_of(account: Account | None) -> float | None:
    if account is None or account.acked_minute_ago is None:
        return None
    done = account.distance(account.acked_minute_ago, account.acked)
    return round(max(0, done) / AGO_SECONDS, 3)


def end_of(account: Account | None) -> float | None:
    """By bytes, or by items where those have none."""
    if account is None:
        return None
    if not account.unacked:
        return 0.0
    left, before = account.unacked_bytes, account.unacked_bytes_minute_ago
    if not left:
        left, before = account.unacked, account.unacked_minute_ago
    if before is None or before <= left:
        return None
    return round(left * AGO_SECONDS / (before - left), 1)


def sum_of(numbers: Sequence[N | None]) -> N | None:
    """None unless all are known."""
    known = [one for one in numbers if one is not None]
    return sum(known, type(known[0])()) if known and len(known) == len(numbers) else None


def latest_of(seconds: Sequence[float | None]) -> float | None:
    """None unless all are known."""
    known = [one for one in seconds if one is not None]
    return max(known) if known and len(known) == len(seconds) else None


def in_order(head: Queue) -> list[str]:
    return sorted(head.next, key=lambda lane: int(lane) if lane.isdigit() else -1)
