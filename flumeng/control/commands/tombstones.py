"""Tombstones: the bounded history of deleted flows."""

from __future__ import annotations

from collections.abc import Collection

from flumeng.config.flow_names import whole_of
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Put,
    ReadableStore,
    Remove,
    Store,
    Versioned,
    Write,
    tree,
)
from zkschema import paths, records

KEEP_TOMBSTONES = 500
TEXT_CHARACTERS = 100_000
"""A longer text is not kept."""


def tombstone_writes(operator: Operator, flow: str) -> list[Write]:
    """Writes a tombstone and removes the oldest."""
    store = operator.store
    path = paths.tombstone(flow)
    numbers = sorted(map(int, store.children(paths.revisions(flow))))
    found = store.read_each([paths.revision(flow, str(number)) for number in numbers])
    kept = [
        (number, one.value)
        for number, one in zip(numbers, found, strict=True)
        if isinstance(one, Versioned)
    ]
    text = kept[-1][1].text if kept else ""
    record = records.Tombstone(
        who=operator.author,
        reason=operator.reason,
        time=operator.now,
        revisions=tuple(
            records.PastRevision(number=number, author=one.author, reason=one.reason, time=one.time)
            for number, one in kept
        ),
        text=text if len(text) <= TEXT_CHARACTERS else "",
    )
    names = store.children(paths.tombstones())
    removed = [Remove(path, ANY)] if flow in names else []  # the new one is made in this tree
    return [*removed, Put(path, record, ABSENT), *_oldest(store, names, flow)]


def deleted_in_this_tree(store: ReadableStore, flows: Collection[str]) -> set[str]:
    """Those of the absent flows that were deleted since the tree was made or imported: an import
    lacks flows made after its export."""
    schema = tree.require_versioned(store)
    if not schema.value.generation:
        return set(flows)
    names = sorted(flows)
    found = store.read_each([paths.tombstone(whole_of(name)) for name in names])
    return {
        name
        for name, one in zip(names, found, strict=True)
        if one is not None and one.created > schema.created
    }


def _oldest(store: Store, names: list[str], flow: str) -> list[Write]:
    others = [name for name in names if name != flow]
    if len(others) < KEEP_TOMBSTONES:
        return []
    found = store.read_each([paths.tombstone(name) for name in others])
    times = [one.value.time if isinstance(one, Versioned) else 0.0 for one in found]
    by_age = sorted(zip(times, others, strict=True))
    return [
        Remove(paths.tombstone(name), ANY)
        for _, name in by_age[: len(by_age) + 1 - KEEP_TOMBSTONES]
    ]
