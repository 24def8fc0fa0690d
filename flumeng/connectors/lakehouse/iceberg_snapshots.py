"""Expiry of snapshots: each retained snapshot slows down later commits. Only flumeng's own
snapshots followed only by appends are expired: all their data files are in the current one.
Snapshots before another engine's rewrite are left to that engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from flumeng.connectors.lakehouse.options import Snapshots

log = logging.getLogger(__name__)

AT_ONCE = 10
"""Fewer are not worth reading their manifest lists."""
APPEND = "append"
WRITER = "flumeng.version"
MAX_AGE, LEAST = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
DEFAULT_AGE_MS, DEFAULT_LEAST = 3_600_000, 20


def expired(metadata: Any, keep: Snapshots, now_ms: int) -> list[Any]:
    """The snapshots to expire, oldest first; none when fewer than AT_ONCE."""
    if metadata.properties.get("gc.enabled", "true").lower() == "false":
        return []
    chain = _appended(metadata)
    protected = {ref.snapshot_id for ref in metadata.refs.values()}
    age_ms, least = _retention(metadata, keep)
    found = [
        one
        for one in chain[: max(0, len(chain) - least)]
        if one.timestamp_ms < now_ms - age_ms and one.snapshot_id not in protected and _is_own(one)
    ]
    return found if len(found) >= AT_ONCE else []


def _is_own(snapshot: Any) -> bool:
    return snapshot.summary is not None and WRITER in snapshot.summary.additional_properties


def _retention(metadata: Any, keep: Snapshots) -> tuple[int, int]:
    """Age in ms and number of snapshots: of the flow, the branch, the table, or the default."""
    branch = metadata.refs.get("main")

    def told(name: str, by_branch: int | None, default: int) -> int:
        text = metadata.properties.get(name, "")
        by_table = int(text) if text.isdecimal() else default
        return by_table if by_branch is None else by_branch

    age_ms = told(MAX_AGE, branch and branch.max_snapshot_age_ms, DEFAULT_AGE_MS)
    least = told(LEAST, branch and branch.min_snapshots_to_keep, DEFAULT_LEAST)
    return (
        age_ms if keep.seconds is None else round(keep.seconds * 1000),
        least if keep.least is None else keep.least,
    )


def _appended(metadata: Any) -> list[Any]:
    """The latest snapshots of the main branch followed only by appends, oldest first."""
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
    """Delete metadata files that only ``gone`` needed. Failures leave orphans, for the table's own
    clean-up."""
    try:
        dropped: dict[str, int] = {}
        for one in gone:
            dropped |= _manifests(table, one)
        for one in sorted(table.metadata.snapshots, key=_sequence_number, reverse=True):
            if not dropped or min(dropped.values()) > _sequence_number(one):
                break  # older snapshots have older manifests only
            for manifest in _manifests(table, one):
                dropped.pop(manifest, None)
        for file in (*sorted(dropped), *(one.manifest_list for one in gone)):
            table.io.delete(file)
    except Exception as error:  # any error of the store's library
        log.warning("metadata of %d expired snapshots stays: %s", len(gone), error)


def _manifests(table: Any, snapshot: Any) -> dict[str, int]:
    """Path -> sequence number; 0 in tables of format 1."""
    found = snapshot.manifests(table.io)
    return {manifest.manifest_path: manifest.sequence_number or 0 for manifest in found}


def _sequence_number(snapshot: Any) -> int:
    number: int | None = snapshot.sequence_number
    return number or 0
