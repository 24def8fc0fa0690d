"""Conditions to wait for. Each returns a line for every missing fact, and nothing once it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flumeng.config import SpecError, parse_flow
from flumeng.config.flow_names import is_part, parts_among, whole_of
from flumeng.control.commands.chains import why_not_deleted
from flumeng.control.commands.isolated_parts import parts_there
from flumeng.control.commands.lookup import found_by_name, require_flow, require_node
from flumeng.control.commands.nodes import left
from flumeng.control.planner.task_count import given_tasks, task_count
from flumeng.control.queries import overview
from flumeng.control.queries.acks import Positions, acks_of
from flumeng.control.queries.overview import FlowDetail
from flumeng.control.queries.task_status import TaskRow
from flumeng.control.snapshot import journal_registry, partitions
from flumeng.control.snapshot.partitions import subscribed
from flumeng.control.zookeeper import ReadableStore, Unreadable, Versioned
from flumeng.platform.errors import FlumengError, UnavailableError
from zkschema import paths
from zkschema.records import COLLECT, DISCOVER


def flow_running(store: ReadableStore, flow: str) -> list[str]:
    """Return why not all tasks run their wanted revision, in a rollout maybe the previous one."""
    return _not_running(overview.flow(store, flow))


def _not_running(flow: FlowDetail) -> list[str]:
    if flow.problem:
        return [f"flow {flow.flow}: {flow.problem}"]
    if flow.state != "running":
        return [f"flow {flow.flow} is set to {flow.state}"]
    if not flow.tasks:
        return [f"flow {flow.flow} is not planned yet"]
    return _unplanned(flow) + [_line(task) for task in flow.tasks if task.state != "running"]


def flow_rolled_out(store: ReadableStore, flow: str) -> list[str]:
    """As ``flow_running``, without a rollout. Raises ``UnsatisfiableError`` after a rollback."""
    detail = overview.flow(store, flow)
    if detail.went_back:
        raise UnsatisfiableError(
            f"flow {flow} went back to revision {detail.revision}: {detail.went_back}"
        )
    still = [str(detail.rollout)] if detail.rollout else []
    return still + _not_running(detail)


def flow_stopped(store: ReadableStore, flow: str) -> list[str]:
    """Return tasks but for discovery, or else undelivered journals, of a flow and its parts."""
    every = [flow, *parts_there(store, [flow])]
    return [line for name in every for line in _not_stopped(store, name)]


def _not_stopped(store: ReadableStore, flow: str) -> list[str]:
    state = require_flow(store, flow).value.state
    if state != "stopped":
        return [f"flow {flow} is set to {state}"]
    tasks = [_line(task) for task in overview.flow(store, flow).tasks if task.kind != DISCOVER]
    return tasks or [
        f"journal {name} is not fully collected yet" for name in _undrained(store, flow)
    ]


def flow_acked(store: ReadableStore, flow: str, ends: Mapping[str, int]) -> list[str]:
    """Return partitions not acked to ``ends``. Raises ``UnsatisfiableError`` for a paused flow."""
    state = require_flow(store, flow).value.state
    missing = [
        f"{row.partition} is acked up to {row.offset or 0} of {end}"
        for row in acks_of(store, Positions(), flow)
        if (end := ends.get(row.partition, 0)) > (row.offset or 0)
    ]
    if missing and state == "suspended":
        raise UnsatisfiableError(f"flow {flow} was paused meanwhile: {missing[0]}")
    return missing


def flow_gone(store: ReadableStore, flow: str) -> list[str]:
    existing = store.children(paths.flows())
    names = [name for name in (flow, *parts_among(existing, flow)) if name in existing]
    plans = found_by_name(store, paths.plan, names)
    waits = {name: f", but {plan}" for name, plan in plans.items() if isinstance(plan, Unreadable)}
    return [
        f"flow {name} is set to {record.value.state}{waits.get(name, '')}"
        if isinstance(record, Versioned)
        else f"flow {name} cannot be read"
        for name, record in found_by_name(store, paths.flow, names).items()
        if record is not None
    ]


def flow_unread(store: ReadableStore, flow: str) -> list[str]:
    require_flow(store, flow)
    return [why] if (why := why_not_deleted(store, flow)) else []


def node_drained(store: ReadableStore, node: str) -> list[str]:
    require_node(store, node)
    still = left(store, node)
    planned = {task.key: task for task in overview.tasks(store)} if still.tasks else {}
    tasks = [
        _line(planned[key]) if key in planned else f"task {key} is stopping" for key in still.tasks
    ]
    return [
        *tasks,
        *(f"journal {journal} is not fully collected yet" for journal in still.journals),
        *(f"no other node has a replica of {journal} instead yet" for journal in still.replicas),
    ]


def tasks_active(store: ReadableStore, keys: Sequence[str] = ()) -> list[str]:
    """Return which of these tasks (``flow/task``), or of all, do not run their wanted revision."""
    planned = {f"{task.flow}/{task.task}": task for task in overview.tasks(store)}
    if not planned and not keys:
        return ["nothing is planned yet"]
    unplanned = [f"task {key} is not planned yet" for key in keys if key not in planned]
    tasks = (planned[key] for key in keys or planned if key in planned)
    return unplanned + [_line(task) for task in tasks if task.state != "running"]


def _undrained(store: ReadableStore, flow: str) -> list[str]:
    registered = journal_registry.journals(store)
    own = [
        (subscribed(name) if is_part(flow) else name, journal)
        for name, journal in registered.items()
        if journal.flow == whole_of(flow)
    ]
    acks = store.read_each([partitions.ack_path(flow, name) for name, _ in own])
    return [
        name
        for (name, journal), ack in zip(own, acks, strict=True)
        if not partitions.is_drained(partitions.of_journal(journal), ack)
    ]


def _unplanned(flow: FlowDetail) -> list[str]:
    """Return a line while the planned number of collect tasks differs from the wanted one."""
    try:
        configured = parse_flow(flow.text).place.collect.tasks
    except SpecError:
        return []  # no master plans it, and its tasks say why they fail
    reads = [len(task.partitions) for task in flow.tasks if task.kind == COLLECT]
    planned = len(reads)
    given = given_tasks(configured, flow.scaling.tasks if flow.scaling else 0, planned)
    if given is None:
        return [] if planned else [f"flow {flow.flow} has no planned collect tasks yet"]
    expected = task_count(given, planned, sum(reads), 0, 0)
    line = f"flow {flow.flow} has {planned} of {expected} collect tasks planned so far"
    return [line] if planned != expected else []


def _line(task: TaskRow) -> str:
    return f"task {task.flow}/{task.task} is {task.state}{': ' + task.why if task.why else ''}"


LOOK_SECONDS = 0.5


class UnsatisfiableError(FlumengError):
    """The condition cannot become true until an operator acts."""


def wait_for(
    missing: Callable[[], Sequence[str]],
    *,
    timeout_seconds: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
    tell: Callable[[Sequence[str]], None] = lambda _missing: None,
) -> Sequence[str]:
    """Poll ``missing`` until it is empty or the time is up; return its last result. ``tell`` is
    called when it changes. Raises ``UnavailableError`` only when the time is up."""
    deadline = monotonic() + timeout_seconds
    reported: Sequence[str] | None = None
    while True:
        try:
            still = missing()
        except UnavailableError:
            if monotonic() >= deadline:
                raise
        else:
            if still != reported:
                tell(still)
                reported = still
            if not still or monotonic() >= deadline:
                return still
        sleep(LOOK_SECONDS)
