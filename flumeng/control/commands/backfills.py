"""Backfill: a part of what Kafka or a store keeps of a flow is delivered once more, by a derived
flow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from flumeng.config import parse_flow
from flumeng.config.backfill import bounded_by, offsets_text, require_offsets, times_text
from flumeng.config.component import OffsetBounds, TimeBounds
from flumeng.control.commands import derived_flows
from flumeng.control.commands.flow_records import require_flow, require_revision
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UserError

NAMED = 100
"""So many partitions are named in the audit."""

Bounds = Mapping[str, tuple[int, int]]
"""Label of a partition, such as ``orders.3`` -> first offset, and the one before which it ends."""


def current_text(store: Store, flow: str) -> str:
    """Of a flow that can be backfilled. Raises ``UserError`` for another one."""
    text = require_revision(store, flow, require_flow(store, flow).value.revision).effective
    require_offsets(flow, parse_flow(text))
    return text


@dataclass(frozen=True)
class Written:
    """Objects that were written from ``start`` on, always when that is empty, until before ``end``,
    both with their zone. At these ``paths``, or at those of the flow without any."""

    start: str
    end: str
    paths: tuple[str, ...] = ()


def backfills_objects(store: Store, flow: str, paths: Collection[str]) -> bool:
    """Whether a backfill of the flow reads objects: where it reads nothing else that can be, or
    where ``paths`` are named. Raises ``UserError`` when it has paths and reads no objects."""
    spec = parse_flow(
        require_revision(store, flow, require_flow(store, flow).value.revision).effective
    )
    objects = bool(bounded_by(spec, TimeBounds))
    if paths and not objects:
        raise UserError(f"flow {flow} reads no objects: leave --path out")
    return objects and (bool(paths) or not bounded_by(spec, OffsetBounds))


def start_objects_backfill(operator: Operator, flow: str, name: str, written: Written) -> None:
    """Make the flow ``name``, which runs at once. Raises as ``start_backfill``."""
    store = operator.store
    text = require_revision(store, flow, require_flow(store, flow).value.revision).effective
    wanted = times_text(text, name, written.paths, written.start, written.end)
    said = f"written from {written.start or 'ever'} before {written.end}"
    where = f" at {', '.join(written.paths)}" if written.paths else ""
    command = f"flow backfill {flow} as {name}: {said}{where}"
    derived_flows.start(operator, wanted, name, of=flow, kind="backfill", command=command)


def start_backfill(operator: Operator, flow: str, name: str, bounds: Bounds) -> None:
    """Make the flow ``name``, which runs at once.

    Raises ``UserError`` when there is nothing to read, or for a flow that has no such source,
    ``SpecError``, ``ConflictError`` when there is a flow of that name, ``UnavailableError``.
    """
    text = offsets_text(current_text(operator.store, flow), name, bounds)
    command = f"flow backfill {flow} as {name}: {_said(bounds.items())}"
    derived_flows.start(operator, text, name, of=flow, kind="backfill", command=command)


def within(starts: Mapping[str, int], ends: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """What there is to read of each, without those that have nothing. Raises ``UserError`` when
    none has."""
    found = {name: (starts[name], ends[name]) for name in starts if starts[name] < ends[name]}
    if not found:
        raise UserError("there is nothing between --from and --to in any of its partitions")
    return found


def _said(bounds: Iterable[tuple[str, tuple[int, int]]]) -> str:
    return ", ".join(f"{name} {start}-{end}" for name, (start, end) in list(bounds)[:NAMED])
