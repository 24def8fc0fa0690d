"""Expiry of snapshots: each one that is kept makes every later commit slower.

Only snapshots are expired behind which rows were appended and nothing else, so every data file of
them is in the current snapshot too. Those before a rewrite by another engine are left to that
engine, which removes the files that it has replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from flumeng.spec.sinks.lakehouse import Snapshots

log = logging.getLogger(__name__)

AT_ONCE = 10
"""Fewer are not worth reading the lists of their manifests."""
APPEND = "append"


def expired(metadata: Any, keep: Snapshots, now_ms: int) -> list[Any]:
    """The snapshots to expire, the oldest first; none when they are fewer than AT_ONCE."""
    if metadata.properties.get("gc.enabled", "true").lower() == "false":
        return []
    chain = _appended(metadata)
    protected = {ref.snapshot_id for ref in metadata.refs.values()}
    old = now_ms - round(keep.seconds * 1000)
    found = [
        one
        for one in chain[: max(0, len(chain) - keep.least)]
        if one.timestamp_ms < old and one.snapshot_id not in protected
    ]
    return found if len(found) >= AT_ONCE else []


def _appended(metadata: Any) -> list[Any]:
    """The snapshots of the main branch up to the current one, the oldest first, as far back as
    all that follow only append."""
    by_id = {one.snapshot_id: one for one in metadata.snapshots}
    found = []
    one = by_id.get(metadata.current_snapshot_id)
    while one is not None:
        found.append(one)
        if one.summary is None or one.summary.operation.value != APPEND:
            break
        one = by_id.get(one.parent_snapshot_id)
    return found[::-1]


def remove_files(table: Any, gone: Sequence[Any]) -> None:
    """Remove the metadata files that only ``gone`` needed, which ``table`` has no more. Those that
    cannot be removed are orphans, for the table's own clean-up."""
    try:
        kept = set().union(*(_manifests(table, one) for one in table.metadata.snapshots))
        dropped = set().union(*(_manifests(table, one) for one in gone))
        for file in (*sorted(dropped - kept), *(one.manifest_list for one in gone)):
            table.io.delete(file)
    except Exception as error:  # whatever the store's library raises
        log.warning("metadata of %d expired snapshots stays: %s", len(gone), error)


def _manifests(table: Any, snapshot: Any) -> set[str]:
    return {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
