"""The record of a flow's discovered partitions, in buckets when there are many. Changed buckets are
written with the record in one transaction, so the record's version covers all. A larger change
takes several steps: the epoch changes with the first, other fields with the last. The flow's
discovery task writes the record, and so do operators that accept partitions or isolate a part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from flumeng.control.snapshot import shards
from flumeng.control.snapshot.journal_registry import Source
from flumeng.control.snapshot.task_map import next_version
from flumeng.control.zookeeper import (
    ANY,
    Expected,
    Found,
    Path,
    Put,
    Remove,
    Unreadable,
    Versioned,
    Write,
)
from flumeng.control.zookeeper.transaction import Scale, singly
from zkschema import paths
from zkschema.records import Partition, Partitions

BUCKETS = 64
INLINE = 2_000
"""With more partitions than this the record uses buckets, and keeps them above half of it."""


def read(source: Source, flows: Iterable[str]) -> list[Found[Partitions]]:
    """Return flows' records with their buckets: Unreadable if any of these is, None if absent."""
    names = list(flows)
    records = source.read_each([paths.partitions(name) for name in names])
    buckets = [
        bucket
        for name, record in zip(names, records, strict=True)
        if isinstance(record, Versioned)
        for bucket in buckets_of(name, record.value)
    ]
    contents = iter(source.read_each(buckets) if buckets else [])
    return [
        whole(record, list(islice(contents, record.value.buckets)))
        if isinstance(record, Versioned)
        else record
        for record in records
    ]


def buckets_of(flow: str, record: Partitions) -> list[Path]:
    return [paths.partitions_bucket(flow, str(number)) for number in range(record.buckets)]


def whole(
    record: Versioned[Partitions], buckets: Sequence[Found[Partitions]]
) -> Versioned[Partitions] | Unreadable:
    if not buckets:
        return record
    together: dict[str, Partition] = {}
    for bucket in buckets:
        if isinstance(bucket, Unreadable):
            return bucket
        together.update(bucket.value.partitions if bucket else {})
    return replace(record, value=replace(record.value, partitions=together))


def transactions(
    flow: str, before: Partitions, after: Partitions, expect: Expected, scale: Scale
) -> Iterator[list[Write]]:
    """Yield the writes of few transactions. Each leaves a complete record, and the first fences
    other writers. Raises TooLargeError or UserError for an item over the limit."""
    at_once = writes(flow, before, after, expect)
    if not _buckets(before, after) or scale.fits(at_once):
        yield at_once
        return
    step = replace(before, epoch=after.epoch, buckets=BUCKETS)
    last, *changed = _written(flow, step, after, ANY, BUCKETS)
    assert isinstance(last, Put)
    *parts, rest = singly(scale, changed, each=[last])
    if not before.buckets:
        yield _written(flow, before, step, expect, BUCKETS)
        expect = next_version(expect)
    pointer = replace(step, partitions={})
    for part in parts:
        yield [replace(last, value=pointer, expect=expect), *part]
        expect = next_version(expect)
    yield [replace(last, expect=expect), *rest]


def writes(flow: str, before: Partitions, after: Partitions, expect: Expected) -> list[Write]:
    """Return the writes that replace the record and buckets that were read at ``expect``."""
    return _written(flow, before, after, expect, _buckets(before, after))


def _buckets(before: Partitions, after: Partitions) -> int:
    count = len(after.partitions)
    return BUCKETS if count > INLINE or (before.buckets and 2 * count > INLINE) else 0


def _written(
    flow: str, before: Partitions, after: Partitions, expect: Expected, buckets: int
) -> list[Write]:
    inline = {} if buckets else dict(after.partitions)
    pointer = replace(after, partitions=inline, buckets=buckets)
    old = shards.split(before.partitions, before.buckets) if before.buckets else []
    new = shards.split(after.partitions, buckets) if buckets else []
    changed = shards.shard_writes(
        partial(paths.partitions_bucket, flow),
        lambda share: Partitions(partitions=share),
        old,
        new or old,
    )
    if not buckets:
        changed += [Remove(bucket, ANY) for bucket in buckets_of(flow, before)]
    return [Put(paths.partitions(flow), pointer, expect), *changed]
