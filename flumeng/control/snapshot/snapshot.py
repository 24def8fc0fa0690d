"""A frozen view of the cluster at one moment, for the planner. Pure and without a clock: facts that
depend on time (a node is lost, a task is overdue) are fields. Plans are written at the versions in
the snapshot. Until everything is reread, an unchanged view stays the same object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from flumeng.config import CollectPlace, Place, Rollout
from flumeng.config.flow_names import is_part, whole_of
from flumeng.config.replicas import Replicas
from flumeng.control.snapshot.leases import ExpiredLease
from flumeng.control.snapshot.partitions import OBJECTS, input_of, key, subscribed
from flumeng.control.snapshot.task_map import Tasks
from flumeng.control.zookeeper import ABSENT, Expected, Unreadable, Version
from flumeng.control.zookeeper.transaction import Scale
from zkschema import paths
from zkschema.records import (
    COLLECT,
    Assignment,
    Cluster,
    Flow,
    Intent,
    Journal,
    Node,
    NodeStatus,
    Partition,
    Plan,
    PlannedTask,
    TaskStatus,
)

Amounts = tuple[tuple[str, int], ...]
"""Dimensions, as ``slots``, with amounts in thousandths: whole numbers, so that sums are exact."""


@dataclass(frozen=True)
class FlowView:
    """A flow as the planner sees it. With an ``unreadable`` record the flow is set aside: its tasks
    stay unchanged. ``place``: None when its current revision cannot be read (``problem``).
    ``weights``: weights of partitions that differ from the place's. ``epoch_floor``: for a flow
    without a plan the highest epoch of its acks and discovery. ``by_batch``: tasks may decide
    batches before writing. ``partitions``: the discovered ones. ``pins``, ``discovers``: either
    revision of a rollout has sources on nodes, or partitions to discover. ``proposed_tasks``: the
    number that discovery proposes, or 0. ``replicas``: those of its journals, or None."""

    name: str
    record: Flow
    version: Version
    place: Place | None
    problem: str = ""
    rollout: Rollout | None = None
    plan: Plan = field(default_factory=Plan)
    plan_version: Expected = ABSENT
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    unreadable: tuple[Unreadable, ...] = ()
    epoch_floor: int = 0
    by_batch: bool = False
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    pins: bool = True
    discovers: bool = False
    proposed_tasks: int = 0
    replicas: Replicas | None = None

    @property
    def set_aside(self) -> bool:
        return bool(self.unreadable)

    @cached_property
    def tasks(self) -> Tasks:
        return Tasks.of(self.plan.tasks)

    @cached_property
    def ending(self) -> tuple[str, ...]:
        """The discovered partitions that are closed."""
        return tuple(name for name, part in self.partitions.items() if part.end is not None)

    @cached_property
    def lanes(self) -> int:
        return sum(input_of(name) == OBJECTS for name in self.partitions)

    @cached_property
    def draining(self) -> tuple[str, ...]:
        return tuple(name for name, task in self.tasks.items() if task.state == "draining")

    @cached_property
    def rolling(self) -> bool:
        return (
            self.rollout is not None
            and self.plan.revision not in (0, self.record.revision)
            and self.record.rollout_promoted != self.record.revision
        )

    def has_taken(self, task: PlannedTask) -> bool:
        """Return whether the plan gives the task the flow's current revision."""
        return task.revision == self.record.revision

    @property
    def collect_place(self) -> CollectPlace:
        """The placement of collect tasks; the defaults while the revision is unreadable."""
        return (self.place or Place()).collect

    def status_of(
        self, name: str, task: PlannedTask, nodes: Mapping[str, NodeView]
    ) -> TaskStatus | None:
        """Return the task's status as its owner reports it under the same epoch, or None."""
        owner = nodes.get(task.node or "")
        status = owner.status.tasks.get(f"{self.name}/{name}") if owner and owner.status else None
        return status if status is not None and status.epoch == task.epoch else None

    def revision_of(self, task: PlannedTask) -> int:
        current = self.record.revision
        return current if not self.rolling or task.revision == current else self.plan.revision

    def weight(self, partitions: tuple[str, ...]) -> Amounts:
        """Return the cost of a task that reads these partitions; without any, that of one."""
        if not self.weights:
            return self._weight_of(max(1, len(partitions)))
        total: dict[str, int] = {}
        for partition in partitions:
            own = self.weights.get(partition)
            for dimension, amount in thousandths(own) if own else self._weight_of(1):
                total[dimension] = total.get(dimension, 0) + amount
        return tuple(sorted(total.items())) or self._weight_of(1)

    def distinct_weights(self, groups: Iterable[tuple[str, ...]]) -> set[Amounts]:
        if not self.weights:
            return {self._weight_of(max(1, count)) for count in set(map(len, groups))}
        return set(map(self.weight, groups))

    def slots_beyond(self, unit: float) -> float:
        """Return the slots that partitions with weights of their own need beyond ``unit`` each."""
        return sum(own.get("slots", unit) - unit for own in self.weights.values())

    def _weight_of(self, count: int) -> Amounts:
        weight = self._weights_by_count.get(count)
        if weight is None:
            unit = thousandths(self.collect_place.weight)
            weight = tuple((dimension, amount * count) for dimension, amount in unit)
            self._weights_by_count[count] = weight
        return weight

    @cached_property
    def _weights_by_count(self) -> dict[int, Amounts]:
        return {}


@dataclass(frozen=True)
class IntentView:
    """A task's last decided batch; ``record`` is None when unreadable."""

    record: Intent | None
    version: Expected

    @property
    def open(self) -> bool:
        """Whether the decided batch may be unacked."""
        return self.record is None or bool(self.record.ranges)


UNDECIDED = IntentView(
    Intent(epoch=0, series="", number=0, revision=0, splits=1, ranges={}), ABSENT
)
"""The intent of a task that has never decided a batch."""


@dataclass(frozen=True)
class NodeView:
    """A registered node; unreadable parts are empty. ``down``: not live for the grace period.
    ``mark_due``: its record's ``down_since`` is outdated. ``gone``: no longer counted as missing;
    ``expired``: may be forgotten. ``status_version`` changes with each report."""

    name: str
    record: Node
    live: bool
    down: bool = False
    assignment: Assignment = field(default_factory=Assignment)
    assignment_version: Expected = ABSENT
    status: NodeStatus | None = None
    unreadable: tuple[Unreadable, ...] = ()
    version: Version = field(default_factory=lambda: Version(0))
    mark_due: bool = False
    gone: bool = False
    expired: bool = False
    status_version: Expected = field(default=ABSENT, compare=False)

    @property
    def spark_cores(self) -> int:
        """The cores of a Spark cluster that the node uses, or 0."""
        settings = self.assignment.spark
        cores, master = settings.get("cores", ""), settings.get("master", "local")
        return int(cores) if cores.isdigit() and not master.startswith("local") else 0

    @property
    def set_aside(self) -> bool:
        """Whether its record or assignment is unreadable; it then keeps its tasks while live."""
        return any(error.path.row is not paths.status for error in self.unreadable)

    @property
    def status_unreadable(self) -> bool:
        """Whether its status is unreadable: any task may be running on the node."""
        return any(error.path.row is paths.status for error in self.unreadable)

    def eligible(self, role: str, labels: Mapping[str, str]) -> bool:
        """Return whether tasks of this role may be placed on the node, live or not."""
        return (
            not self.set_aside
            and not self.expired
            and role in self.record.roles
            and self.record.desired == "active"
            and all(self.record.labels.get(key) == value for key, value in labels.items())
        )

    def has_released(self, flow: str, task: str) -> bool:
        """Return whether the node knows that the task is draining and no longer runs it."""
        if self.status is None or not isinstance(self.assignment_version, Version):
            return False
        ordered = any(
            (assigned.flow, assigned.task, assigned.state) == (flow, task, "draining")
            for assigned in self.assignment.tasks
        )
        seen = self.status.assignment_version == self.assignment_version.number
        return ordered and seen and f"{flow}/{task}" not in self.status.tasks


@dataclass(frozen=True)
class Snapshot:
    """The cluster at one moment. ``drained``: closed, fully acked partitions: a journal by its
    name, others as ``flow/partition``. ``committing``: stopped or deleted flows with unfinished
    sink commits. ``intents``: by flow and task, of the flows requested with ``Reader.note``.
    ``mine``: flows that this master plans. Tasks (``flow/task``): ``overdue`` ones drain too long,
    ``settled`` ones ran the new revision for the settling time, and recovery does not wait for
    ``slow`` ones to start. ``stalled``: flows whose rollout makes no progress. ``balance_moves``:
    limit of concurrent moves, 0 in a pause. ``leads``: this master decides for the whole cluster.
    ``now`` is for records only. ``unreadable``: records set aside. While the cluster's settings are
    unreadable, maintenance mode is on and ``cluster_known`` is False. ``silent_masters`` are live
    but hang. ``moves``: version of ``/moves``, no newer than any plan; without a readable one
    ``throttled_moves`` is False and no throttled move begins."""

    flows: Mapping[str, FlowView]
    nodes: Mapping[str, NodeView]
    journals: Mapping[str, Journal]
    drained: frozenset[str]
    mine: frozenset[str]
    committing: frozenset[str] = frozenset()
    intents: Mapping[str, Mapping[str, IntentView]] = field(default_factory=dict)
    overdue: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()
    stalled: frozenset[str] = frozenset()
    slow: frozenset[str] = frozenset()
    balance_moves: int = 1
    cluster: Cluster = field(default_factory=Cluster)
    cluster_version: Version = field(default_factory=lambda: Version(0))
    cluster_known: bool = True
    leads: bool = False
    now: float = 0.0
    expired_leases: tuple[ExpiredLease, ...] = ()
    journal_versions: Mapping[str, Version] = field(default_factory=dict)
    unreadable: tuple[Unreadable, ...] = ()
    silent_masters: frozenset[str] = frozenset()
    moves: Version | None = None
    throttled_moves: bool = True
    scale: Scale = field(default_factory=Scale)

    @property
    def plannable(self) -> frozenset[str]:
        return frozenset(name for name, flow in self.flows.items() if not flow.set_aside)

    def starting(self) -> list[tuple[str, PlannedTask]]:
        """Return the collect tasks (``flow/task``) of live nodes that do not run them yet."""
        return [
            (f"{flow.name}/{name}", task)
            for flow in self.flows.values()
            for name, task in flow.tasks.items()
            if task.kind == COLLECT
            and task.state == "assigned"
            and (node := self.nodes.get(task.node or "")) is not None
            and node.live
            and (
                (seen := flow.status_of(name, task, self.nodes)) is None or seen.state == "starting"
            )
        ]

    def partitions_of(self, flow: str) -> list[str]:
        own = self._journals_by_flow.get(flow, [])
        view = self.flows.get(flow)
        return [*own, *view.partitions] if view and view.partitions else own

    def is_open(self, flow: str, partition: str) -> bool:
        """Return whether the partition belongs to the flow and is not closed and fully acked."""
        journal = self.journals.get(partition)
        if journal is not None:
            return journal.flow == flow and partition not in self.drained
        view = self.flows.get(flow)
        return (
            view is not None
            and partition in view.partitions
            and f"{flow}/{partition}" not in self.drained
        )

    def has_undelivered(self, flow: str) -> bool:
        """Return whether a journal of the flow is not drained; other inputs do not count. For an
        isolated part also the journals of its flow count, if that ends without ``discard``."""
        own = self._journals_by_flow.get(flow, ())
        if any(name not in self.drained for name in own):
            return True
        whole = self.flows.get(whole_of(flow)) if is_part(flow) else None
        if whole is None or whole.record.state in ("running", "suspended") or whole.record.discard:
            return False
        read = self._journals_by_flow.get(whole.name, ())
        return any(key(flow, subscribed(name)) not in self.drained for name in read)

    def open_of(self, flow: str) -> list[str]:
        own = self.partitions_of(flow)
        return [name for name in own if self.is_open(flow, name)] if self.drained else own

    @cached_property
    def _journals_by_flow(self) -> dict[str, list[str]]:
        by_flow: dict[str, list[str]] = {}
        for name, journal in self.journals.items():
            by_flow.setdefault(journal.flow, []).append(name)
        return by_flow


def thousandths(amounts: Mapping[str, float]) -> Amounts:
    return tuple(sorted((name, round(value * 1000)) for name, value in amounts.items()))
