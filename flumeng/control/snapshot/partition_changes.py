"""Partitions that changed between two snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from flumeng.control.snapshot.snapshot import FlowView
from zkschema.records import Journal


class Look(Protocol):
    @property
    def flows(self) -> Mapping[str, FlowView]: ...
    @property
    def journals(self) -> Mapping[str, Journal]: ...
    @property
    def drained(self) -> frozenset[str]: ...


def changed_partitions(before: Look, after: Look) -> dict[str, set[str]]:
    """Flow -> its partitions that came, went, changed or were drained."""
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
        known = before.flows.get(name, view).partitions
        if known is not view.partitions and (others := known.keys() ^ view.partitions.keys()):
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
