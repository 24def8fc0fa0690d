"""Which revisions are written in one transaction: a flow with its parts, and with all flows that
are composed with texts of the same chain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flumeng.operations.next_revision import NextRevision
from flumeng.spec.flow_names import whole_of
from flumeng.store import WIRE_LIMIT_BYTES

TRANSACTION_BYTES = WIRE_LIMIT_BYTES


def in_transactions(wanted: Iterable[NextRevision]) -> Iterator[list[NextRevision]]:
    """In order and in as few transactions as fit; no group is parted."""
    transaction: list[NextRevision] = []
    room = TRANSACTION_BYTES
    for group in _groups(wanted):
        size = _bytes(group)
        if transaction and size > room:
            yield transaction
            transaction, room = [], TRANSACTION_BYTES
        transaction += group
        room -= size
    if transaction:
        yield transaction


def too_large(wanted: Iterable[NextRevision]) -> dict[str, str]:
    """Flow -> why it may not be applied: what is composed with the same flows does not fit into one
    transaction."""
    refused = {}
    for group in _groups(one for one in wanted if one.changed):
        origin = next((one.origin for one in group if one.origin), "")
        size = _bytes(group)
        if origin and size > TRANSACTION_BYTES:
            refused[group[0].flow] = (
                f"{len(group)} flows and parts that read flow {origin} through filters of others "
                f"change together: that takes {size // 1024} KiB, and at most "
                f"{TRANSACTION_BYTES // 1024} KiB fit into a transaction: let fewer flows read "
                "`after: filters`, or apply new ones in smaller groups"
            )
    return refused


def _groups(wanted: Iterable[NextRevision]) -> Iterable[list[NextRevision]]:
    ordered = list(wanted)
    origins = {one.flow: one.origin for one in ordered if one.origin}
    groups: dict[str, list[NextRevision]] = {}
    for one in ordered:
        whole = whole_of(one.flow)
        groups.setdefault(origins.get(whole, whole), []).append(one)
    return groups.values()


def _bytes(group: Iterable[NextRevision]) -> int:
    return sum(one.weight_bytes for one in group)
