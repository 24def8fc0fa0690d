"""Which revisions are written in one transaction: a flow with its parts, and with all flows that
are composed with texts of the same chain."""

from __future__ import annotations

from collections.abc import Iterable

from flumeng.config.flow_names import whole_of
from flumeng.control.commands.next_revision import NextRevision


def groups(wanted: Iterable[NextRevision]) -> list[list[NextRevision]]:
    """Those that change together, in order."""
    ordered = list(wanted)
    origins = {one.flow: one.origin for one in ordered if one.origin}
    found: dict[str, list[NextRevision]] = {}
    for one in ordered:
        whole = whole_of(one.flow)
        found.setdefault(origins.get(whole, whole), []).append(one)
    return list(found.values())


def why_too_large(group: list[NextRevision], size_bytes: int, limit_bytes: int) -> str:
    """Why the group may not be applied: it does not fit into one transaction."""
    origin = next((one.origin for one in group if one.origin), "")
    what, advice = f"flow {group[0].flow}", "make its text shorter"
    if origin:
        what = f"{len(group)} flows and parts that read flow {origin} through filters of others"
        advice = "let fewer flows read `after: filters`, or apply new ones in smaller groups"
    elif len(group) > 1:
        what += f" with its {len(group) - 1} isolated parts"
        advice = "make its text shorter, or isolate fewer of its sinks"
    return (
        f"{what} change together: that takes {size_bytes // 1024} KiB, and at most "
        f"{limit_bytes // 1024} KiB fit into a transaction: {advice}"
    )
