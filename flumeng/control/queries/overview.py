"""Rows of flows, nodes and tasks. An unreadable record affects only its own row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flumeng.config import FlowSpec, SpecError, parse_flow
from flumeng.config.flow import OTHER_SECONDS, Lag
from flumeng.config.flow_names import beside, is_part, parts_among, whole_of
from flumeng.config.flow_outline import Outline, outline
from flumeng.config.guarantees import local_paths
from flumeng.control.commands.chains import upstream_of
from flumeng.control.commands.lookup import current_revisions, found_by_name, require_flow
from flumeng.control.queries import link_windows, task_status
from flumeng.control.queries.acks import Positions, acks_of
from flumeng.control.queries.counters import NO_COUNTS, TaskCounts
from flumeng.control.queries.flow_health import UNKNOWN_HEALTH, UNREADABLE, FlowHealth, flow_health
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.queries.task_status import (
    EndedRow,
    RolloutRow,
    RolloutStatus,
    ScalingRow,
    TaskRow,
)
from flumeng.control.snapshot.snapshot import FlowView
from flumeng.control.snapshot.task_map import read_plans
from flumeng.control.zookeeper import Found, ReadableStore, Unreadable, Versioned
from flumeng.platform.errors import CorruptError, UnknownNameError
from zkschema import paths, records

UNREADABLE_FLOW = records.Flow(revision=0, state=UNREADABLE)
NO_OUTLINE = Outline("", (), ())
UNREADABLE_NODE = records.Node(uuid="", roles=())
NODE_ROWS = (paths.node, paths.live_node, paths.assignment, paths.status)


@dataclass(frozen=True)
class FlowRow:
    """A flow. ``problem``: a read error. ``went_back``: why it returned to an older revision.
    ``waits``: why it reads nothing at this time of the day."""

    flow: str
    state: str
    revision: int
    delivery: str
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    tasks: tuple[TaskRow, ...]
    problem: str
    rollout: RolloutRow | None
    went_back: str
    lag_limit_seconds: float = Lag().seconds
    batch_seconds: float = OTHER_SECONDS
    local_paths: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    backfill_of: str = ""
    part_of: str = ""
    health: FlowHealth = UNKNOWN_HEALTH
    waits: str = ""


@dataclass(frozen=True)
class Backfill:
    """A backfill. ``left``: undelivered events, None if unknown. ``done``: stopped, none left."""

    of: str
    left: int | None
    done: bool

    def __str__(self) -> str:
        if self.done:
            return "done"
        return f"{'an unknown number of' if self.left is None else self.left} events left"


@dataclass(frozen=True)
class FlowDetail:
    """A flow in detail. ``spark_uis``: URLs by node. ``scaling``: None for a fixed number of tasks.
    ``counts``: empty unless nodes were asked."""

    flow: str
    state: str
    discard: bool
    revision: int
    revisions: tuple[int, ...]
    author: str
    reason: str
    time: float
    text: str
    tasks: tuple[TaskRow, ...]
    rollout: RolloutRow | None
    went_back: str
    problem: str = ""
    spark_uis: Mapping[str, str] = field(default_factory=dict)
    backfill: Backfill | None = None
    ended: tuple[EndedRow, ...] = ()
    scaling: ScalingRow | None = None
    health: FlowHealth = UNKNOWN_HEALTH
    counts: TaskCounts = NO_COUNTS
    part_of: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def rollout_status(self) -> RolloutStatus:
        return RolloutStatus(self.flow, self.revision, self.rollout, self.went_back)


@dataclass(frozen=True)
class NodeRow:
    """A node. ``assigned``, ``applied``: assignment versions. ``problems``: by subject."""

    node: str
    live: bool
    desired: str
    roles: tuple[str, ...]
    labels: Mapping[str, str]
    capacity: Mapping[str, float]
    zone: str
    address: str
    version: str
    assigned: int | None
    applied: int | None
    tasks: Mapping[str, str]
    problem: str = ""
    problems: Mapping[str, str] = field(default_factory=dict)
    spark_ui: str = ""


def flows(
    source: ReadableStore, *, checked: bool = True, now: float | None = None
) -> list[FlowRow]:
    """Return all flows, each before its parts. ``checked`` parses all texts: takes longer. With
    ``now``, seconds since the epoch, checked flows have ``waits``."""
    cache = ReadCache.of(source)
    statuses = _statuses(cache)
    return [
        _flow_row(seen, task_status.rows(seen.view, statuses), _waits(cache, seen, now))
        for seen in _flows(
            cache, sorted(cache.children(paths.flows()), key=beside), checked=checked
        )
    ]


def _waits(cache: ReadCache, seen: _Seen, now: float | None) -> str:
    return "" if now is None else link_windows.why_waiting(cache, seen.spec, now)


def _flow_row(seen: _Seen, tasks: tuple[TaskRow, ...], waits: str) -> FlowRow:
    view, spec, problem = seen.view, seen.spec, seen.view.problem
    try:
        shown = Outline.of(spec) if spec else outline(seen.text) if seen.text else NO_OUTLINE
    except SpecError as error:
        shown, problem = NO_OUTLINE, problem or str(error)
    return FlowRow(
        flow=view.name,
        state=view.record.state,
        revision=view.record.revision,
        delivery=shown.delivery,
        sources=shown.sources,
        sinks=shown.sinks,
        tasks=tasks,
        problem=problem,
        rollout=task_status.rollout(view, tasks),
        went_back=view.record.went_back,
        health=flow_health(view.record.state, problem, tasks, waits=waits),
        waits=waits,
        labels=shown.labels,
        backfill_of=view.record.backfill_of,
        part_of=whole_of(view.name) if is_part(view.name) else "",
        lag_limit_seconds=spec.lag_limit_seconds if spec else Lag().seconds,
        batch_seconds=spec.batch_seconds if spec else OTHER_SECONDS,
        local_paths=tuple(local_paths(spec)) if spec else (),
    )


def flow(store: ReadableStore, name: str, now: float | None = None) -> FlowDetail:
    """Return a flow; ``now`` as in ``flows``. Raises ``UserError`` if unknown, ``CorruptError`` if
    its text is missing."""
    require_flow(store, name)
    cache = ReadCache(store)
    matches = _flows(cache, [name], checked=True)
    if not matches:
        raise UnknownNameError(f'there is no flow "{name}" any more')
    view = matches[0].view
    record = view.record
    statuses = _statuses(cache)
    tasks = task_status.rows(view, statuses)
    revision = store.read(paths.revision(name, str(record.revision)))
    if revision is None:
        raise CorruptError(
            f"flow {name}: revision {record.revision} is missing: see `flumeng schema verify`"
        )
    numbers = store.children(paths.revisions(name))
    discovered = cache.read(paths.partitions(name))
    return FlowDetail(
        flow=name,
        state=record.state,
        discard=record.discard,
        revision=record.revision,
        revisions=tuple(sorted(int(number) for number in numbers if number.isdigit())),
        author=revision.value.author,
        reason=revision.value.reason,
        time=revision.value.time,
        text=revision.value.text,
        tasks=tasks,
        rollout=task_status.rollout(view, tasks),
        went_back=record.went_back,
        problem=view.problem,
        spark_uis=_spark_uis(tasks, statuses),
        backfill=_backfill(cache, name, record) if record.backfill_of else None,
        ended=task_status.ended(view),
        health=flow_health(record.state, view.problem, tasks, waits=_waits(cache, matches[0], now)),
        scaling=task_status.scaling(
            view.place.collect.tasks if view.place else None,
            discovered.value if discovered else None,
        ),
        part_of=whole_of(name) if is_part(name) else "",
        parts=_parts(cache, name),
    )


def _parts(cache: ReadCache, flow: str) -> dict[str, str]:
    names = parts_among(cache.children(paths.flows()), flow)
    return {
        name: record.value.state if isinstance(record, Versioned) else UNREADABLE
        for name, record in found_by_name(cache, paths.flow, names).items()
        if record is not None
    }


def _backfill(cache: ReadCache, name: str, record: records.Flow) -> Backfill:
    rows = acks_of(cache, Positions(), name)
    all_lags = bool(rows) and all(row.lag is not None for row in rows)
    left = sum(row.lag or 0 for row in rows) if all_lags else None
    return Backfill(record.backfill_of, left, done=record.state == "stopped" and left == 0)


def _spark_uis(tasks: Iterable[TaskRow], statuses: task_status.Statuses) -> dict[str, str]:
    nodes = sorted(
        {task.node for task in tasks if task.kind == records.COLLECT and task.node is not None}
    )
    status_of = {node: statuses.get(node) for node in nodes}
    return {
        node: status.spark_ui
        for node, status in status_of.items()
        if isinstance(status, records.NodeStatus) and status.spark_ui
    }


def dimensions(store: ReadableStore) -> set[str]:
    """Return the dimensions of capacity in which the flows' tasks have a weight."""
    seen = _flows(ReadCache(store), store.children(paths.flows()), checked=True)
    places = (flow_seen.view.place for flow_seen in seen if flow_seen.view.place)
    return {dimension for placement in places for dimension in placement.collect.weight}


def ended(source: ReadableStore) -> list[EndedRow]:
    """Return the kept outcomes of tasks of all flows."""
    cache = ReadCache.of(source)
    return [
        entry
        for seen in _flows(cache, cache.children(paths.flows()), checked=False)
        for entry in task_status.ended(seen.view)
    ]


def tasks(source: ReadableStore) -> list[TaskRow]:
    cache = ReadCache.of(source)
    statuses = _statuses(cache)
    return [
        task
        for seen in _flows(cache, cache.children(paths.flows()), checked=False)
        for task in task_status.rows(seen.view, statuses)
    ]


def nodes(source: ReadableStore) -> list[NodeRow]:
    cache = ReadCache.of(source)
    names = cache.children(paths.nodes())
    records_by_row = cache.read_each([paths.node(name) for name in names])
    lives = cache.read_each([paths.live_node(name) for name in names])
    assignments = cache.read_each([paths.assignment(name) for name in names])
    statuses = cache.read_many([paths.status(name) for name in names])
    return [
        NodeRow(
            node=name,
            live=live is not None,
            desired=node.value.desired if isinstance(node, Versioned) else UNREADABLE,
            roles=record.roles,
            labels=dict(record.labels),
            capacity=dict(record.capacity),
            zone=record.zone,
            address=", ".join(filter(None, live.value.addresses))
            if isinstance(live, Versioned)
            else "",
            version=live.value.version if isinstance(live, Versioned) else "",
            assigned=assignment.version.number if assignment else None,
            applied=status.value.assignment_version if status else None,
            tasks={key: task.state for key, task in status.value.tasks.items()} if status else {},
            problem=cache.why(*(row(name) for row in NODE_ROWS)),
            problems=dict(status.value.problems) if status else {},
            spark_ui=status.value.spark_ui if status and live is not None else "",
        )
        for name, node, live, assignment, status in zip(
            names, records_by_row, lives, assignments, statuses, strict=True
        )
        if node is not None
        for record in [node.value if isinstance(node, Versioned) else UNREADABLE_NODE]
    ]


def _statuses(cache: ReadCache) -> task_status.Statuses:
    statuses = found_by_name(cache, paths.status, cache.children(paths.live_nodes()))
    return {
        name: status.value if isinstance(status, Versioned) else status
        for name, status in statuses.items()
    }


class _Seen(NamedTuple):
    """A flow with its plan and current text; ``spec`` is None for a text that was not parsed."""

    view: FlowView
    text: str
    spec: FlowSpec | None


def _flows(cache: ReadCache, names: Sequence[str], *, checked: bool) -> list[_Seen]:
    """Return the existing flows. Texts are parsed if ``checked``, else only during a rollout."""
    records_by_name = found_by_name(cache, paths.flow, names)
    there = {name: flow for name, flow in records_by_name.items() if flow}
    revisions = current_revisions(cache, there)
    plans = read_plans(cache, there)
    seen = []
    for name, flow in there.items():
        record = flow.value if isinstance(flow, Versioned) else UNREADABLE_FLOW
        plan = plans[name].value if name in plans else records.Plan()
        spec, text, problem = None, "", ""
        if name in revisions:
            needed = checked or plan.revision not in (0, record.revision)
            spec, text, problem = _spec(revisions[name], record.revision, needed=needed)
        problem = cache.why(paths.flow(name), paths.plan(name)) or problem
        placement, rollout = (spec.place, spec.rollout) if spec else (None, None)
        view = FlowView(name, record, flow.version, placement, problem, rollout, plan)
        seen.append(_Seen(view, text, spec))
    return seen


def _spec(
    record: Found[records.Revision], revision: int, *, needed: bool
) -> tuple[FlowSpec | None, str, str]:
    if record is None:
        return None, "", f"revision {revision} is missing"
    if isinstance(record, Unreadable):
        return None, "", str(record)
    text = record.value.text
    try:
        return parse_flow(text) if needed else None, text, ""
    except SpecError as error:
        return None, text, f"revision {revision} cannot be read: {error}"


@dataclass(frozen=True)
class Receiving:
    """Where a flow gets events. ``journals``: its sources write them into journals. ``origin``:
    what else it reads, such as ``the source kafka``; else empty. The default is for an unreadable
    flow."""

    journals: bool = True
    origin: str = ""


def receiving(store: ReadableStore, flows: Sequence[str]) -> Mapping[str, Receiving]:
    texts = current_revisions(store, found_by_name(store, paths.flow, flows))
    return {
        flow: _of(text.value.effective) if isinstance(text, Versioned) else Receiving()
        for flow in flows
        for text in (texts.get(flow),)
    }


def _of(text: str) -> Receiving:
    try:
        spec = parse_flow(text)
    except SpecError:
        return Receiving()
    return Receiving(bool(spec.pinned), _origin(spec))


def _origin(spec: FlowSpec) -> str:
    if upstream := upstream_of(spec):
        return f"the journals of flow {upstream}"
    places = []
    for part in spec.partitioned:
        remote = part.options.remote
        place = f"flow {remote.flow} of site {remote.site}" if remote else f"the source {part.name}"
        places.append(place)
    return " and ".join(places)
