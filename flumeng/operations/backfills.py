"""Backfill: a part of what a flow has delivered is delivered once more, beside the live flow.

A backfill is a flow of its own, with acks of its own, so it shares nothing with the live one but
its text. Its source has ends, so its discovery task stops it when all is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flumeng.errors import UserError
from flumeng.operations import audit
from flumeng.operations.flows import (
    next_revisions,
    refuse_several_hosts,
    refuse_too_old,
    require_flow,
    require_revision,
    revision_writes,
)
from flumeng.spec import check_flow, parse_flow
from flumeng.spec.backfill import backfill_text, require_kafka
from flumeng.store import Store, tree
from zkschema import paths, records

NAMED = 100
"""So many partitions are named in the audit."""

Bounds = Mapping[str, tuple[int, int]]
"""Label of a partition, such as ``orders.3`` -> first offset, and the one before which it ends."""


def current_text(store: Store, flow: str) -> str:
    """Of a flow that can be backfilled. Raises ``UserError`` for another one."""
    text = require_revision(store, flow, require_flow(store, flow).value.revision).effective
    require_kafka(flow, parse_flow(text))
    return text


def free_name(store: Store, flow: str) -> str:
    """``FLOW-backfill-N``, which no flow has and none had that is remembered."""
    used = {*store.children(paths.flows()), *store.children(paths.tombstones())}
    number = 1
    while f"{flow}-backfill-{number}" in used:
        number += 1
    return f"{flow}-backfill-{number}"


def start_backfill(
    store: Store, flow: str, name: str, bounds: Bounds, *, author: str, reason: str, now: float
) -> str:
    """Make the flow ``name``, which runs at once; gives its text.

    Raises ``UserError`` when there is nothing to read, or for a flow that has no such source,
    ``SpecError``, ``ConflictError`` when there is a flow of that name, ``UnavailableError``.
    """
    text = backfill_text(current_text(store, flow), name, bounds)
    check_flow(text)
    schema = tree.require_versioned(store)
    (wanted,) = next_revisions(store, {name: text}, 0)
    refuse_several_hosts(store, [wanted])
    refuse_too_old(schema.value, [wanted])
    command = f"flow backfill {flow} as {name}: {_said(bounds.items())}"
    entry = records.Audit(who=author, command=command, reason=reason, time=now)
    because = f"backfill of {flow}: {reason}" if reason else f"backfill of {flow}"
    writes = revision_writes(wanted, schema, author, because, now, backfill_of=flow)
    audit.commit(store, writes, entry)
    return text


def within(starts: Mapping[str, int], ends: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """What there is to read of each, without those that have nothing. Raises ``UserError`` when
    none has."""
    found = {name: (starts[name], ends[name]) for name in starts if starts[name] < ends[name]}
    if not found:
        raise UserError("there is nothing between --from and --to in any of its partitions")
    return found


def _said(bounds: Iterable[tuple[str, tuple[int, int]]]) -> str:
    return ", ".join(f"{name} {start}-{end}" for name, (start, end) in list(bounds)[:NAMED])
