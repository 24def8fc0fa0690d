"""A flow's planned tasks: in the plan's main znode until too many, from then on in buckets below
it. Each change of a bucket writes the main znode in the same transaction, at the version read."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import replace
from functools import partial
from itertools import chain, islice

from flumeng.control.snapshot import shards
from flumeng.control.snapshot.journal_registry import Source
from flumeng.control.zookeeper import (
    Expected,
    Found,
    Put,
    Store,
    Unreadable,
    Version,
    Versioned,
    Write,
    readable,
)
from zkschema import paths
from zkschema.records import Plan, PlannedTask

INLINE_TASKS = 512
INLINE_PARTITIONS = 4096
BUCKETS = 256

Bucket = Mapping[str, PlannedTask]
Change = tuple[str, PlannedTask | None, PlannedTask | None]
"""Name of a task, and the task before and after; None when absent."""


def leaving(task: PlannedTask, target: str | None, why: str, epoch: int) -> PlannedTask:
    """Return the task in the draining state; its mark is ``epoch`` if it begins to drain now."""
    mark = task.mark if task.state == "draining" else epoch
    return replace(task, state="draining", target=target, mark=mark, why=why)


class Tasks(Mapping[str, PlannedTask]):
    """Immutable tasks by name; copies share unchanged buckets, so that comparing them is fast."""

    __slots__ = ("buckets",)

    def __init__(self, buckets: Sequence[Bucket] = ({},)) -> None:
        self.buckets = tuple(buckets)

    @classmethod
    def of(cls, tasks: Mapping[str, PlannedTask]) -> Tasks:
        """Return the tasks in one bucket or, if too many, in ``BUCKETS``; a ``Tasks`` as it is."""
        return tasks if isinstance(tasks, Tasks) else cls((dict(tasks),)).changed({})

    def __getitem__(self, name: str) -> PlannedTask:
        return self._bucket(name)[name]

    def find(self, name: str) -> PlannedTask | None:
        """Return the task or None; faster than the base class's ``get``."""
        return self._bucket(name).get(name)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.buckets)

    def __len__(self) -> int:
        return sum(map(len, self.buckets))

    def spread(self) -> Tasks:
        return self if len(self.buckets) > 1 else Tasks(_spread(self.buckets[0]))

    def items(self) -> ItemsView[str, PlannedTask]:
        if len(self.buckets) == 1:
            return self.buckets[0].items()
        return dict(chain.from_iterable(bucket.items() for bucket in self.buckets)).items()

    def values(self) -> ValuesView[PlannedTask]:
        if len(self.buckets) == 1:
            return self.buckets[0].values()
        return dict(chain.from_iterable(bucket.items() for bucket in self.buckets)).values()

    def changed(self, changes: Mapping[str, PlannedTask | None]) -> Tasks:
        """Return a copy with these tasks set; None removes a task."""
        buckets = list(self.buckets)
        if len(buckets) == 1 and not _is_small(buckets[0], changes):
            buckets = _spread(buckets[0])
        fresh: dict[int, dict[str, PlannedTask]] = {}
        spread = len(buckets) > 1
        for name, task in changes.items():
            number = bucket_of(name) if spread else 0
            bucket = fresh.get(number)
            if bucket is None:
                bucket = fresh[number] = dict(buckets[number])
            if task is None:
                bucket.pop(name, None)
            else:
                bucket[name] = task
        for number, bucket in fresh.items():
            buckets[number] = bucket
        return Tasks(buckets)

    def differences(self, before: Tasks) -> Iterator[Change]:
        if len(before.buckets) < len(self.buckets):
            before = before.spread()
        elif len(before.buckets) > len(self.buckets):
            yield from _differences(dict(before.items()), dict(self.items()))
            return
        for old, new in zip(before.buckets, self.buckets, strict=True):
            if old is not new:
                yield from _differences(old, new)

    def _bucket(self, name: str) -> Bucket:
        return self.buckets[bucket_of(name) if len(self.buckets) > 1 else 0]


def bucket_of(name: str) -> int:
    return shards.shard_of(name, BUCKETS)


def read_plan(store: Store, flow: str) -> Versioned[Plan] | None:
    """Return the plan with all buckets and the version of its main znode; None when absent."""
    (plan,) = _whole(store, [flow])
    return readable(plan)


def read_plans(store: Source, flows: Iterable[str]) -> dict[str, Versioned[Plan]]:
    names = list(flows)
    whole = zip(names, _whole(store, names), strict=True)
    return {name: plan for name, plan in whole if isinstance(plan, Versioned)}


def _whole(store: Source, flows: Sequence[str]) -> list[Found[Plan]]:
    """Return the plans with their buckets; one unreadable bucket makes its plan unreadable."""
    plans = store.read_each([paths.plan(name) for name in flows])
    bucket_paths = [
        paths.plan_bucket(name, str(number))
        for name, plan in zip(flows, plans, strict=True)
        if isinstance(plan, Versioned)
        for number in range(plan.value.buckets)
    ]
    buckets = iter(store.read_each(bucket_paths))
    return [
        _with_buckets(plan, list(islice(buckets, plan.value.buckets)))
        if isinstance(plan, Versioned)
        else plan
        for plan in plans
    ]


def _with_buckets(plan: Versioned[Plan], buckets: Sequence[Found[Plan]]) -> Found[Plan]:
    for bucket in buckets:
        if isinstance(bucket, Unreadable):
            return bucket
    if not buckets:
        return plan
    parts = [bucket.value.tasks if isinstance(bucket, Versioned) else {} for bucket in buckets]
    return replace(plan, value=replace(plan.value, tasks=Tasks(parts)))


def plan_writes(flow: str, plan: Plan, before: Tasks, expect: Expected) -> list[Write]:
    """Return the writes that replace the plan with the tasks ``before``, read at ``expect``."""
    after = Tasks.of(plan.tasks)
    if len(after.buckets) == 1:
        return [Put(paths.plan(flow), replace(plan, tasks=dict(after), buckets=0), expect)]
    old = () if len(before.buckets) == 1 else before.buckets
    return [
        Put(paths.plan(flow), replace(plan, tasks={}, buckets=len(after.buckets)), expect),
        *shards.shard_writes(
            partial(paths.plan_bucket, flow), lambda bucket: Plan(tasks=bucket), old, after.buckets
        ),
    ]


def next_version(expect: Expected) -> Version:
    """Return the version after a write: a znode starts at 0, and each write adds one."""
    return Version(expect.number + 1 if isinstance(expect, Version) else 0)


def _is_small(tasks: Bucket, changes: Mapping[str, PlannedTask | None]) -> bool:
    if len(tasks) + len(changes) > INLINE_TASKS:
        return False
    both = chain(tasks.values(), filter(None, changes.values()))
    return sum(len(task.partitions) for task in both) <= INLINE_PARTITIONS


def _spread(tasks: Bucket) -> list[Bucket]:
    return list(shards.split(tasks, BUCKETS))


def _differences(old: Bucket, new: Bucket) -> Iterator[Change]:
    for name, task in new.items():
        was = old.get(name)
        if was is not task and was != task:
            yield name, was, task
    for name, task in old.items():
        if name not in new:
            yield name, task, None
