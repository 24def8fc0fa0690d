"""Tombstones: the bounded history of deleted flows."""

from __future__ import annotations

from collections.abc import Collection

from flumeng.config.flow_names import whole_of
from flumeng.control.commands.lookup import found_by_name, readable_by_name
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY, Put, ReadableStore, Remove, Store, Write, tree
from zkschema import paths, records

KEEP_TOMBSTONES = 500
TEXT_CHARACTERS = 100_000
"""A longer text of a deleted flow is not kept."""


def tombstone_writes(operator: Operator, flow: str, keep: int = KEEP_TOMBSTONES) -> list[Write]:
    """Return the writes of a flow's tombstone, and the removal of the oldest ones."""
    store = operator.store
    path = paths.tombstone(flow)
    numbers = sorted(map(int, store.children(paths.revisions(flow))))
    revisions = readable_by_name(store, lambda name: paths.revision(flow, name), map(str, numbers))
    kept = [(int(name), revision.value) for name, revision in revisions.items()]
    text = kept[-1][1].text if kept else ""
    record = records.Tombstone(
        who=operator.author,
        reason=operator.reason,
        time=operator.now,
        revisions=tuple(
            records.PastRevision(number=number, author=r.author, reason=r.reason, time=r.time)
            for number, r in kept
        ),
        text=text if len(text) <= TEXT_CHARACTERS else "",
    )
    names = store.children(paths.tombstones())
    removed = [Remove(path, ANY)] if flow in names else []  # a new znode belongs to this tree
    return [*removed, Put(path, record, ABSENT), *_oldest(store, names, flow, keep)]


def deleted_in_this_tree(store: ReadableStore, flows: Collection[str]) -> set[str]:
    """Return those of the absent ``flows`` that were deleted in this tree, not before an import."""
    schema = tree.require_versioned(store)
    if not schema.value.generation:
        return set(flows)
    past = found_by_name(store, lambda name: paths.tombstone(whole_of(name)), sorted(flows))
    return {name for name, end in past.items() if end and end.created > schema.created}


def _oldest(store: Store, names: list[str], flow: str, keep: int) -> list[Write]:
    others = [name for name in names if name != flow]
    if len(others) < keep:
        return []
    readable = readable_by_name(store, paths.tombstone, others)
    times = {name: past.value.time for name, past in readable.items()}
    by_age = sorted((times.get(name, 0.0), name) for name in others)
    return [Remove(paths.tombstone(name), ANY) for _, name in by_age[: len(by_age) + 1 - keep]]
