"""Differences from the last snapshot, to which a round of planning is limited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flumeng.control.snapshot.snapshot import Snapshot
from flumeng.control.snapshot.task_map import Change
from zkschema.records import COLLECT, INGEST


@dataclass(frozen=True)
class ChangeSet:
    """The changes of a flow: ``everything``, or only those of the changed names."""

    everything: bool = True
    nodes: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.everything or self.nodes or self.partitions or self.tasks)


def changed_partitions(before: Snapshot, after: Snapshot) -> dict[str, set[str]]:
    """Return by flow the journals that changed, and partitions that came, went or were drained."""
    changed: dict[str, set[str]] = {}
    drained = before.drained ^ after.drained
    for name in {*changed_names(before.journals, after.journals), *drained}:
        for journals in (before.journals, after.journals):
            journal = journals.get(name)
            if journal is not None:
                changed.setdefault(journal.flow, set()).add(name)
    for key in drained:
        flow, discovered, partition = key.rpartition("/")
        if discovered:
            changed.setdefault(flow, set()).add(partition)
    for name, view in after.flows.items():
        old = before.flows.get(name, view).partitions
        if old is not view.partitions and (others := old.keys() ^ view.partitions.keys()):
            changed.setdefault(name, set()).update(others)
    return changed


def changed_names(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[str, ...]:
    if before is after:
        return ()
    changed = [
        name
        for name, value in after.items()
        if (was := before.get(name)) is not value and was != value
    ]
    return tuple(sorted([*changed, *(before.keys() - after.keys())]))


def scope_of(differences: list[Change], *, everything: bool) -> ChangeSet:
    nodes, partitions = set(), set()
    for _, old, new in differences:
        task = old or new
        assert task is not None
        if old is None or new is None or task.kind == INGEST:
            everything = everything or task.kind == COLLECT
            nodes.update([task.node] if task.node else [])
        else:
            partitions.update(set(old.partitions) ^ set(new.partitions))
    names = tuple(name for name, _, _ in differences)
    return ChangeSet(everything, tuple(nodes), tuple(partitions), names)
