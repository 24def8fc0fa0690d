"""What a master sees at one moment: a frozen picture of the cluster, and nothing it remembers.

Pure, and without a clock: what depends on time (a node is given up, a task drains for too long) is
in the picture as a fact. The versions in it are those that the writes of a plan expect. A view is
the same object in the next picture when nothing in it changed, so that planning can start from the
differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from flumeng.config import CollectPlace, Place, Rollout
from flumeng.config.flow_names import is_part, whole_of
from flumeng.config.replicas import Replicas
from flumeng.control.snapshot.leases import RunOut
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
)

Amounts = tuple[tuple[str, int], ...]
"""Dimension and amount in thousandths: whole numbers, so that sums do not drift."""


@dataclass(frozen=True)
class FlowView:
    """One flow. ``place`` is None when its current revision does not parse: see ``problem``.

    ``weights`` are those of the partitions that do not weigh what the flow's place says. ``record``
    and ``plan`` say nothing when they are among the ``unreadable``: such a flow is *set aside*,
    nobody plans it, and its tasks stay as their nodes were told.

    During a rollout the revision that all tasks ran before is among the ``unreadable`` when it
    cannot be read. ``epoch_floor`` is the highest epoch among the flow's acks when it has no plan.
    ``by_batch``: its tasks may decide batches before they write them, by what is known of its
    revisions and of what was decided.
    ``partitions`` are those that its discovery has found; it reads its journals beside them.
    ``pins``: it has sources that run on nodes, ``discovers``: partitions that are to be found, or
    were; during a rollout, by one of the two revisions.
    ``proposed_tasks`` is how many collect tasks its discovery task wants, 0 when it never said.
    ``replicas`` says how its journals are kept on several nodes, when they are.
    """

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
        """Whether a record is unreadable without which nothing can be planned."""
        return bool(self.unreadable)

    @cached_property
    def tasks(self) -> Tasks:
        """The planned tasks."""
        return Tasks.of(self.plan.tasks)

    @cached_property
    def ending(self) -> tuple[str, ...]:
        """The discovered partitions to which nothing more comes."""
        return tuple(name for name, one in self.partitions.items() if one.end is not None)

    @cached_property
    def lanes(self) -> int:
        """How many of its partitions are lanes of objects."""
        return sum(input_of(name) == OBJECTS for name in self.partitions)

    @cached_property
    def draining(self) -> tuple[str, ...]:
        """The tasks that their owners are to let go."""
        return tuple(name for name, task in self.tasks.items() if task.state == "draining")

    @cached_property
    def rolling(self) -> bool:
        """Whether a rollout is under way: some tasks still run the revision before."""
        return (
            self.rollout is not None
            and self.plan.revision not in (0, self.record.revision)
            and self.record.rollout_promoted != self.record.revision
        )

    def has_taken(self, task: PlannedTask) -> bool:
        """Whether the task runs the revision that is being rolled out."""
        return task.revision == self.record.revision

    @property
    def collect_place(self) -> CollectPlace:
        """Where its collect tasks run; the defaults while its revision cannot be read."""
        return (self.place or Place()).collect

    def revision_of(self, task: PlannedTask) -> int:
        """The revision that the task is to run now."""
        current = self.record.revision
        return current if not self.rolling or task.revision == current else self.plan.revision

    def weight(self, partitions: tuple[str, ...]) -> Amounts:
        """What a task that reads these costs; without any it costs as much as with one."""
        if not self.weights:
            return self._weight_of(max(1, len(partitions)))
        total: dict[str, int] = {}
        for partition in partitions:
            own = self.weights.get(partition)
            for dimension, amount in thousandths(own) if own else self._weight_of(1):
                total[dimension] = total.get(dimension, 0) + amount
        return tuple(sorted(total.items())) or self._weight_of(1)

    def distinct_weights(self, groups: Iterable[tuple[str, ...]]) -> set[Amounts]:
        """The weights of tasks that read these, each once."""
        if not self.weights:
            return {self._weight_of(max(1, count)) for count in set(map(len, groups))}
        return set(map(self.weight, groups))

    def slots_beyond(self, unit: float) -> float:
        """The slots of the partitions that have weights of their own beyond ``unit`` for each."""
        return sum(own.get("slots", unit) - unit for own in self.weights.values())

    def _weight_of(self, count: int) -> Amounts:
        found = self._weights_by_count.get(count)
        if found is None:
            unit = thousandths(self.collect_place.weight)
            found = tuple((dimension, amount * count) for dimension, amount in unit)
            self._weights_by_count[count] = found
        return found

    @cached_property
    def _weights_by_count(self) -> dict[int, Amounts]:
        return {}


@dataclass(frozen=True)
class IntentView:
    """What a task has decided last; ``record`` is None when that cannot be read."""

    record: Intent | None
    version: Expected

    @property
    def open(self) -> bool:
        """Whether a batch may be decided that is not acked."""
        return self.record is None or bool(self.record.ranges)


UNDECIDED = IntentView(
    Intent(epoch=0, series="", number=0, revision=0, splits=1, ranges={}), ABSENT
)
"""Of a task that has never decided anything."""


@dataclass(frozen=True)
class NodeView:
    """One registered node. ``lost``: not live for the whole grace period. ``unmarked``: what its
    record says of since when it is away is to be written anew. ``long_gone``: away for so long that
    it is not missing any more; ``expired``: for so long that it may be forgotten.
    ``status_version`` is another one whenever the node has reported something.

    What is among the ``unreadable`` says nothing here: its record is an empty one.
    """

    name: str
    record: Node
    live: bool
    lost: bool = False
    assignment: Assignment = field(default_factory=Assignment)
    assignment_version: Expected = ABSENT
    status: NodeStatus | None = None
    unreadable: tuple[Unreadable, ...] = ()
    version: Version = field(default_factory=lambda: Version(0))
    unmarked: bool = False
    long_gone: bool = False
    expired: bool = False
    status_version: Expected = field(default=ABSENT, compare=False)

    @property
    def spark_cores(self) -> int:
        """How many cores of a Spark cluster the node takes; 0 when that is not said."""
        told = self.assignment.spark
        cores, master = told.get("cores", ""), told.get("master", "local")
        return int(cores) if cores.isdigit() and not master.startswith("local") else 0

    @property
    def set_aside(self) -> bool:
        """Whether it is unknown what the node may run, or was told. Then it is told nothing, gets
        nothing new, and keeps what it has while it is live."""
        return any(one.path.row is not paths.status for one in self.unreadable)

    @property
    def mute(self) -> bool:
        """Whether what the node says of itself cannot be read: it may run anything."""
        return any(one.path.row is paths.status for one in self.unreadable)

    def eligible(self, role: str, labels: Mapping[str, str]) -> bool:
        """Whether work of this role may be placed here, live or not."""
        return (
            not self.set_aside
            and not self.expired
            and role in self.record.roles
            and self.record.desired == "active"
            and all(self.record.labels.get(key) == value for key, value in labels.items())
        )

    def has_let_go(self, flow: str, task: str) -> bool:
        """Whether the node was told to drain the task, knows it, and does not have it any more."""
        if self.status is None or not isinstance(self.assignment_version, Version):
            return False
        told = any(
            (assigned.flow, assigned.task, assigned.state) == (flow, task, "draining")
            for assigned in self.assignment.tasks
        )
        seen = self.status.assignment_version == self.assignment_version.number
        return told and seen and f"{flow}/{task}" not in self.status.tasks


@dataclass(frozen=True)
class Snapshot:
    """``drained`` names the partitions that take no more, with every event acked: a journal by its
    name, which is of one flow, any other as ``flow/partition``.

    ``committing`` names the flows that are to end but have sink commits in progress: their acks are
    ahead of what is visible. ``intents`` are those of the flows of which somebody wants to know, by
    task; nothing is known of the others'. ``mine`` names the flows that this master looks after;
    the others' tasks are left as they are. ``overdue`` names the tasks (``flow/task``) that have
    drained for longer than they may, ``settled`` those that have run their flow's current revision
    for as long as its rollout asks. ``stalled`` names the flows whose rollout has made no progress
    for as long as it may, ``slow`` the tasks (``flow/task``) that are starting for so long that
    nobody waits for them. ``balance_moves`` may be under way at once. ``leads`` is set for the one
    master that decides about the whole cluster. ``now`` is for people to read, in records.
    ``run_out`` are leases of cursors whose readers were not heard of in time.
    ``journal_versions`` are those of the records of replicated journals. ``unreadable`` are all
    records that were set aside. While that of the cluster is, ``cluster`` is
    in maintenance mode and ``cluster_known`` is not set. ``silent_masters`` are live and have no
    share, since they plan nothing. ``moves`` is the version of ``/moves``, no newer than any plan;
    None in a tree that has none. While it cannot be read, ``throttled_moves`` is not set: none
    begin.
    ``scale`` weighs what is planned.
    """

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
    run_out: tuple[RunOut, ...] = ()
    journal_versions: Mapping[str, Version] = field(default_factory=dict)
    unreadable: tuple[Unreadable, ...] = ()
    silent_masters: frozenset[str] = frozenset()
    moves: Version | None = None
    throttled_moves: bool = True
    scale: Scale = field(default_factory=Scale)

    @property
    def plannable(self) -> frozenset[str]:
        """The flows that are not set aside."""
        return frozenset(name for name, flow in self.flows.items() if not flow.set_aside)

    def starting(self) -> list[tuple[str, PlannedTask]]:
        """The collect tasks (``flow/task``) that live nodes were given and do not run yet."""
        return [
            (f"{flow.name}/{name}", task)
            for flow in self.flows.values()
            for name, task in flow.tasks.items()
            if task.kind == COLLECT and self._is_starting(f"{flow.name}/{name}", task)
        ]

    def _is_starting(self, key: str, task: PlannedTask) -> bool:
        node = self.nodes.get(task.node or "")
        if node is None or not node.live or task.state != "assigned":
            return False
        said = node.status.tasks.get(key) if node.status else None
        return said is None or said.epoch != task.epoch or said.state == "starting"

    def partitions_of(self, flow: str) -> list[str]:
        """All that are registered for the flow."""
        own = self._journals_by_flow.get(flow, [])
        view = self.flows.get(flow)
        return [*own, *view.partitions] if view and view.partitions else own

    def is_open(self, flow: str, partition: str) -> bool:
        """Whether the partition is the flow's, and is still to be read."""
        journal = self.journals.get(partition)
        if journal is not None:
            return journal.flow == flow and partition not in self.drained
        view = self.flows.get(flow)
        return (
            view is not None
            and partition in view.partitions
            and f"{flow}/{partition}" not in self.drained
        )

    def owes(self, flow: str) -> bool:
        """Whether the flow has accepted what it has not delivered yet: that is in its journals, and
        lost with them. What others keep is not, and may never end. An isolated part of a flow that
        ends has to read that one's journals to their end."""
        own = self._journals_by_flow.get(flow, ())
        if any(name not in self.drained for name in own):
            return True
        whole = self.flows.get(whole_of(flow)) if is_part(flow) else None
        if whole is None or whole.record.state in ("running", "suspended") or whole.record.discard:
            return False
        read = self._journals_by_flow.get(whole.name, ())
        return any(key(flow, subscribed(name)) not in self.drained for name in read)

    def open_of(self, flow: str) -> list[str]:
        """The flow's partitions that are still to be read."""
        own = self.partitions_of(flow)
        return [name for name in own if self.is_open(flow, name)] if self.drained else own

    @cached_property
    def _journals_by_flow(self) -> dict[str, list[str]]:
        by_flow: dict[str, list[str]] = {}
        for name, journal in self.journals.items():
            by_flow.setdefault(journal.flow, []).append(name)
        return by_flow


def thousandths(amounts: Mapping[str, float]) -> Amounts:
    """Amounts as whole numbers, sorted by dimension."""
    return tuple(sorted((name, round(value * 1000)) for name, value in amounts.items()))
