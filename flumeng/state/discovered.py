"""The record of a flow's discovered partitions, which lies in buckets when they are many.

All buckets that change are written with the record itself in one transaction, so the record's
version says whether anything of it has changed. Only the flow's discovery task writes it, but for
what an operator accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from flumeng.state import shards
from flumeng.state.journal_registry import Source
from flumeng.store import (
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
from zkschema import paths
from zkschema.records import Partition, Partitions

BUCKETS = 64
INLINE = 2_000
"""More partitions than this lie in buckets."""


def read(source: Source, flows: Iterable[str]) -> list[Found[Partitions]]:
    """The records of these flows, whole. One is as readable as the least readable of its buckets.
    Raises UnavailableError."""
    names = list(flows)
    records = source.read_each([paths.partitions(name) for name in names])
    wanted = [
        bucket
        for name, record in zip(names, records, strict=True)
        if isinstance(record, Versioned)
        for bucket in buckets_of(name, record.value)
    ]
    found = iter(source.read_each(wanted) if wanted else [])
    return [
        whole(record, list(islice(found, record.value.buckets)))
        if isinstance(record, Versioned)
        else record
        for record in records
    ]


def buckets_of(flow: str, record: Partitions) -> list[Path]:
    return [paths.partitions_bucket(flow, str(number)) for number in range(record.buckets)]


def whole(
    record: Versioned[Partitions], buckets: Sequence[Found[Partitions]]
) -> Versioned[Partitions] | Unreadable:
    """The record with what its buckets hold."""
    if not buckets:
        return record
    together: dict[str, Partition] = {}
    for bucket in buckets:
        if isinstance(bucket, Unreadable):
            return bucket
        together.update(bucket.value.partitions if bucket else {})
    return replace(record, value=replace(record.value, partitions=together))


def writes(flow: str, before: Partitions, after: Partitions, expect: Expected) -> list[Write]:
    """What makes the record that was read at ``expect`` another one, both whole."""
    count = len(after.partitions)
    buckets = BUCKETS if count > INLINE or (before.buckets and 2 * count > INLINE) else 0
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
