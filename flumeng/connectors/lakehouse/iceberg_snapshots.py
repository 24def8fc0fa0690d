"""Expires snapshots: each retained one slows down later commits. Only flumeng's own snapshots that
are followed by nothing but appends are expired: the current snapshot has all their data files.
Snapshots before another engine's rewrite are left to that engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from flumeng.connectors.lakehouse.options import Snapshots

log = logging.getLogger(__name__)

AT_ONCE = 10
"""Fewest snapshots to expire at once: fewer are not worth reading their manifest lists."""
APPEND = "append"
WRITER = "flumeng.version"
MAX_AGE, LEAST = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
DEFAULT_AGE_MS, DEFAULT_LEAST = 3_600_000, 20


def expired(metadata: Any, keep: Snapshots, now_ms: int) -> list[Any]:
    """Return the snapshots to expire, oldest first; none when fewer than AT_ONCE, or when the table
    has ``gc.enabled=false``."""
    if metadata.properties.get("gc.enabled", "true").lower() == "false":
        return []
    chain = _appended(metadata)
    protected = {ref.snapshot_id for ref in metadata.refs.values()}
    age_ms, least = _retention(metadata, keep)
    old = (s for s in chain[: max(0, len(chain) - least)] if s.timestamp_ms < now_ms - age_ms)
    expirable = [s for s in old if s.snapshot_id not in protected and _is_own(s)]
    return expirable if len(expirable) >= AT_ONCE else []


def _is_own(snapshot: Any) -> bool:
    return snapshot.summary is not None and WRITER in snapshot.summary.additional_properties


def _retention(metadata: Any, keep: Snapshots) -> tuple[int, int]:
    """Return the age in ms and the number of snapshots to keep, as set in the flow, else in the
    branch, else in the table, else by default."""
    branch = metadata.refs.get("main")

    def of_branch_or_table(name: str, by_branch: int | None, default: int) -> int:
        text = metadata.properties.get(name, "")
        by_table = int(text) if text.isdecimal() else default
        return by_table if by_branch is None else by_branch

    age_ms = of_branch_or_table(MAX_AGE, branch and branch.max_snapshot_age_ms, DEFAULT_AGE_MS)
    least = of_branch_or_table(LEAST, branch and branch.min_snapshots_to_keep, DEFAULT_LEAST)
    return (
        age_ms if keep.seconds is None else round(keep.seconds * 1000),
        least if keep.least is None else keep.least,
    )


def _appended(metadata: Any) -> list[Any]:
    """Return the main branch's latest snapshots followed only by appends, oldest first."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    chain = []
    snapshot = by_id.get(metadata.current_snapshot_id)
    while snapshot is not None:
        chain.append(snapshot)
        if snapshot.summary is None or snapshot.summary.operation.value != APPEND:
            break
        snapshot = by_id.get(snapshot.parent_snapshot_id)
    return chain[::-1]


def remove_files(table: Any, gone: Sequence[Any]) -> None:
    """Delete metadata files of only the snapshots ``gone``. Logged errors leave orphans."""
    try:
        dropped: dict[str, int] = {}
        for snapshot in gone:
            dropped |= _manifests(table, snapshot)
        for snapshot in sorted(table.metadata.snapshots, key=_sequence_number, reverse=True):
            if not dropped or min(dropped.values()) > _sequence_number(snapshot):
                break  # older snapshots have older manifests only
            for manifest in _manifests(table, snapshot):
                dropped.pop(manifest, None)
        for file in (*sorted(dropped), *(snapshot.manifest_list for snapshot in gone)):
            table.io.delete(file)
    except Exception as error:  # any error of the store's library
        left = len(gone), table.metadata.location, error
        log.warning("iceberg: metadata files of %d expired snapshots stay in table %s: %s", *left)


def _manifests(table: Any, snapshot: Any) -> dict[str, int]:
    """Return the snapshot's manifests by path, with sequence numbers (0 in tables of format 1)."""
    manifests = snapshot.manifests(table.io)
    return {manifest.manifest_path: manifest.sequence_number or 0 for manifest in manifests}


def _sequence_number(snapshot: Any) -> int:
    number: int | None = snapshot.sequence_number
    return number or 0
