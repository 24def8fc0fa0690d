"""What a cluster looks like now, as plain rows: for the command line, the web page and tests.

Reads only. What is in ZooKeeper is always shown. How far journals reach only their nodes know:
they are asked, all at once, and a node that does not answer, or makes no sense, leaves ``None``,
never an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from flumeng.errors import CorruptError, UnavailableError, UserError
from flumeng.operations.flows import require_flow
from flumeng.spec import FlowSpec, SpecError, parse_flow
from flumeng.state import journal_registry
from flumeng.state.snapshot import FlowView
from flumeng.state.task_map import read_plans
from flumeng.store import Store, Versioned, tree
from flumeng.views import task_status
from flumeng.views.task_status import RolloutRow, TaskRow
from zkschema import paths, records

ASK_SECONDS = 2.0

A = TypeVar("A")


class Position(Protocol):
    """How far one journal reaches; offsets are half-open."""

    @property
    def floor(self) -> int: ...
    @property
    def safe(self) -> int: ...


Ask = Callable[[str], Mapping[str, Position]]
"""Gives the positions of all journals served at an address. Raises ``UnavailableError``."""


def ask_worker(address: str) -> Mapping[str, Position]:
    """The ``Ask`` of a real cluster."""
    from flumeng.journal.client import JournalClient  # noqa: PLC0415  loads pyarrow

    with JournalClient(address, ASK_SECONDS) as client:
        return client.positions()


@dataclass(frozen=True)
class FlowRow:
    """``problem`` is set when the current revision cannot be read by this flumeng, ``went_back``
    when a newer one was tried and a task failed with it."""

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


@dataclass(frozen=True)
class FlowDetail:
    """One flow with the text and the history of its current revision."""

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


@dataclass(frozen=True)
class NodeRow:
    """``assigned`` and ``applied`` are versions of its assignment: equal when it is up to date."""

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


@dataclass(frozen=True)
class AckRow:
    """``epoch`` and ``offset`` are ``None`` before the first ack, ``end`` when it is unknown."""

    flow: str
    cursor: str
    partition: str
    epoch: int | None
    offset: int | None
    end: int | None
    lag: int | None


@dataclass(frozen=True)
class Positions:
    """Answers of the live nodes: node -> journal -> position. ``silent`` did not answer."""

    by_node: Mapping[str, Mapping[str, Position]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    def of(self, name: str, journal: records.Journal) -> Position | None:
        return self.by_node.get(journal.primary, {}).get(name)


def positions(store: Store, ask: Ask) -> Positions:
    """Ask all live nodes that serve journals; takes as long as the slowest answer."""
    return Positions(*ask_all(store, ask))


def ask_all(
    store: Store, ask: Callable[[str], Mapping[str, A]]
) -> tuple[Mapping[str, Mapping[str, A]], tuple[str, ...]]:
    """The answers of the live nodes by node and journal, and the nodes that did not answer."""
    names = store.children(paths.live_nodes())
    found = store.read_many([paths.live_node(name) for name in names])
    served = [
        (name, address)
        for name, live in zip(names, found, strict=True)
        for address in (live.value.addresses if live is not None else ())
        if address
    ]

    def answer(address: str) -> Mapping[str, A] | None:
        try:
            return ask(address)
        except (UnavailableError, CorruptError):
            return None

    with ThreadPoolExecutor(max_workers=16) as pool:
        answers = list(pool.map(answer, (address for _, address in served)))
    by_node: dict[str, dict[str, A]] = {}
    silent = []
    for (name, _), answered in zip(served, answers, strict=True):
        if answered is None:
            silent.append(name)
        else:
            by_node.setdefault(name, {}).update(answered)
    return by_node, tuple(dict.fromkeys(silent))


def flows(store: Store) -> list[FlowRow]:
    tree.require(store)
    statuses = _statuses(store)
    rows = []
    for view, spec in _flows(store, store.children(paths.flows())):
        tasks = task_status.rows(view, statuses)
        rows.append(
            FlowRow(
                flow=view.name,
                state=view.record.state,
                revision=view.record.revision,
                delivery=spec.delivery if spec else "",
                sources=tuple(source.name for source in spec.sources) if spec else (),
                sinks=tuple(sink.name for sink in spec.sinks) if spec else (),
                tasks=tasks,
                problem=view.problem,
                rollout=task_status.rollout(view, tasks),
                went_back=view.record.went_back,
            )
        )
    return rows


def flow(store: Store, name: str) -> FlowDetail:
    """Raises ``UserError`` when there is no such flow, ``CorruptError`` when its text is gone."""
    require_flow(store, name)
    found = _flows(store, [name])
    if not found:
        raise UserError(f'there is no flow "{name}" any more')
    ((view, _),) = found
    record = view.record
    tasks = task_status.rows(view, _statuses(store))
    revision = store.read(paths.revision(name, str(record.revision)))
    if revision is None:
        raise CorruptError(
            f"flow {name}: its revision {record.revision} is not there: see `flumeng schema verify`"
        )
    return FlowDetail(
        flow=name,
        state=record.state,
        discard=record.discard,
        revision=record.revision,
        revisions=tuple(sorted(int(number) for number in store.children(paths.revisions(name)))),
        author=revision.value.author,
        reason=revision.value.reason,
        time=revision.value.time,
        text=revision.value.text,
        tasks=tasks,
        rollout=task_status.rollout(view, tasks),
        went_back=record.went_back,
    )


def dimensions(store: Store) -> set[str]:
    """Those in which the flows' tasks weigh something: a capacity in another one bounds nothing."""
    specs = (spec for _, spec in _flows(store, store.children(paths.flows())) if spec)
    return {dimension for spec in specs for dimension in spec.place.collect.weight}


def tasks(store: Store) -> list[TaskRow]:
    """All planned tasks of all flows."""
    tree.require(store)
    statuses = _statuses(store)
    return [
        task
        for view, _ in _flows(store, store.children(paths.flows()))
        for task in task_status.rows(view, statuses)
    ]


def nodes(store: Store) -> list[NodeRow]:
    tree.require(store)
    names = store.children(paths.nodes())
    found = store.read_many([paths.node(name) for name in names])
    lives = store.read_many([paths.live_node(name) for name in names])
    assignments = store.read_many([paths.assignment(name) for name in names])
    statuses = store.read_many([paths.status(name) for name in names])
    return [
        NodeRow(
            node=name,
            live=live is not None,
            desired=node.value.desired,
            roles=node.value.roles,
            labels=dict(node.value.labels),
            capacity=dict(node.value.capacity),
            zone=node.value.zone,
            address=", ".join(filter(None, live.value.addresses)) if live else "",
            version=live.value.version if live else "",
            assigned=assignment.version.number if assignment else None,
            applied=status.value.assignment_version if status else None,
            tasks={key: task.state for key, task in status.value.tasks.items()} if status else {},
        )
        for name, node, live, assignment, status in zip(
            names, found, lives, assignments, statuses, strict=True
        )
        if node is not None
    ]


def acks(store: Store, where: Positions) -> list[AckRow]:
    """One row for each cursor and partition, also for journals that nobody has acked yet."""
    tree.require(store)
    known = journal_registry.journals(store)
    rows = []
    for name in store.children(paths.flows()):
        own = {journal for journal, record in known.items() if record.flow == name}
        for cursor in store.children(paths.acks(name)):
            partitions = sorted(own | set(store.children(paths.cursor(name, cursor))))
            found = store.read_many([paths.ack(name, cursor, item) for item in partitions])
            for partition, ack in zip(partitions, found, strict=True):
                end = _end(partition, known.get(partition), where)
                offset = ack.value.offset if ack else None
                rows.append(
                    AckRow(
                        flow=name,
                        cursor=cursor,
                        partition=partition,
                        epoch=ack.value.epoch if ack else None,
                        offset=offset,
                        end=end,
                        lag=None if end is None else max(0, end - (offset or 0)),
                    )
                )
    return rows


def _end(name: str, journal: records.Journal | None, where: Positions) -> int | None:
    if journal is None:
        return None
    if journal.closed:
        return journal.end
    position = where.of(name, journal)
    return position.safe if position else None


def _statuses(store: Store) -> dict[str, records.NodeStatus | None]:
    """What each live node says of itself; None before it said anything."""
    names = store.children(paths.live_nodes())
    found = store.read_many([paths.status(name) for name in names])
    return {
        name: status.value if status else None for name, status in zip(names, found, strict=True)
    }


def _flows(store: Store, names: Sequence[str]) -> list[tuple[FlowView, FlowSpec | None]]:
    """Those that are there, with their plans, and what their texts say where they can be read."""
    found = store.read_many([paths.flow(name) for name in names])
    there = {name: flow for name, flow in zip(names, found, strict=True) if flow}
    texts = store.read_many(
        [paths.revision(name, str(flow.value.revision)) for name, flow in there.items()]
    )
    plans = read_plans(store, there)
    views = []
    for (name, record), text in zip(there.items(), texts, strict=True):
        spec, problem = _spec(text, record.value.revision)
        plan = plans[name].value if name in plans else records.Plan()
        place, rollout = (spec.place, spec.rollout) if spec else (None, None)
        view = FlowView(name, record.value, record.version, place, problem, rollout, plan)
        views.append((view, spec))
    return views


def _spec(text: Versioned[records.Revision] | None, revision: int) -> tuple[FlowSpec | None, str]:
    if text is None:
        return None, f"revision {revision} is not there"
    try:
        return parse_flow(text.value.text), ""
    except SpecError as error:
        return None, str(error)
