"""Backfill: a part of what Kafka keeps of a flow is delivered once more, by a derived flow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flumeng.errors import UserError
from flumeng.operations import derived_flows
from flumeng.operations.flow_records import require_flow, require_revision
from flumeng.spec import parse_flow
from flumeng.spec.backfill import backfill_text, require_kafka
from flumeng.store import Store
from zkschema import records

NAMED = 100
"""So many partitions are named in the audit."""

Bounds = Mapping[str, tuple[int, int]]
"""Label of a partition, such as ``orders.3`` -> first offset, and the one before which it ends."""


def current_text(store: Store, flow: str) -> str:
    """Of a flow that can be backfilled. Raises ``UserError`` for another one."""
    text = require_revision(store, flow, require_flow(store, flow).value.revision).effective
    require_kafka(flow, parse_flow(text))
    return text


def start_backfill(
    store: Store, flow: str, name: str, bounds: Bounds, *, author: str, reason: str, now: float
) -> None:
    """Make the flow ``name``, which runs at once.

    Raises ``UserError`` when there is nothing to read, or for a flow that has no such source,
    ``SpecError``, ``ConflictError`` when there is a flow of that name, ``UnavailableError``.
    """
    text = backfill_text(current_text(store, flow), name, bounds)
    command = f"flow backfill {flow} as {name}: {_said(bounds.items())}"
    entry = records.Audit(who=author, command=command, reason=reason, time=now)
    derived_flows.start(store, text, name, of=flow, kind="backfill", entry=entry)


def within(starts: Mapping[str, int], ends: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """What there is to read of each, without those that have nothing. Raises ``UserError`` when
    none has."""
    found = {name: (starts[name], ends[name]) for name in starts if starts[name] < ends[name]}
    if not found:
        raise UserError("there is nothing between --from and --to in any of its partitions")
    return found


def _said(bounds: Iterable[tuple[str, tuple[int, int]]]) -> str:
    return ", ".join(f"{name} {start}-{end}" for name, (start, end) in list(bounds)[:NAMED])
