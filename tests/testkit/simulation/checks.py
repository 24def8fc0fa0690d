"""Invariants of the simulated cluster, checked after every transaction and every deed on a disk.

1. Once an ack of one node is accepted under an epoch, none of another node is at or below it; and
   an offset is moved only by the process that claimed the partition last.
2. The offset of a partition's ack never goes back.
3. No ack is above the end of the journal, nothing is trimmed or removed above the ack, and a
   claimant of a partition can read on at its ack.
4. No task is assigned to two nodes, no partition is in two tasks of a flow, a flow's epoch never
   goes back, each is given once, and a task or partition that changes hands gets a higher one.
5. A live owner keeps a task until it has released it, or its time for that is over.
6. A broken revision is taken by its canary alone; another task takes it only for one that was lost.
7. A flow goes only once it was deleted, and then all its accepted events are acked, or were to be
   discarded; the events of a host that was given up are lost, and no ack counts them any more.
8. A target that knows batches by number has each acked event once, unless its batch was given up,
   and none twice; no partition leaves a task whose batch is decided and not acked.
9. No balance move begins beyond the cluster's throttle, for any number of masters.
10. The record of a flow's partitions is written by the node to which the discovery task was given
   under the record's epoch, which never goes back; a partition ends where it is acked.

``tests.testkit.simulation.queue_checks`` has the invariants of a work queue.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

from tests.testkit.simulation.canary import Canary
from tests.testkit.simulation.disk import Disks
from tests.testkit.simulation.ensemble import Change, Changes, Ensemble
from tests.testkit.simulation.output import Output
from tests.testkit.simulation.partition_file import PartitionFile
from tests.testkit.simulation.queue_checks import QueueChecks
from tests.testkit.simulation.story import Story
from tests.testkit.simulation.target import Target
from zkschema import paths, table
from zkschema.records import (
    DISCOVER,
    Ack,
    AssignedTask,
    Assignment,
    Cluster,
    Flow,
    Intent,
    NodeStatus,
    Partitions,
    Plan,
    PlannedTask,
)

DRAINING = "draining"
STANDBY = "standby"
EVEN_OUT = "is busier than"
"""Part of the reason of every balance move."""
OPERATOR = "operator"
Names = tuple[str, ...]


@dataclass(frozen=True)
class Accepted:
    """The last ack of a partition, with its node and process."""

    node: str
    process: str
    epoch: int
    offset: int


@dataclass
class Mark:
    """The time since when a task is marked as draining."""

    zxid: int
    seconds: float


class Checks:
    """Checks every change. ``acked``: the newest offset of each partition, also of removed ones."""

    def __init__(
        self,
        ensemble: Ensemble,
        disks: Disks,
        masters: Container[str],
        story: Story,
        clock: Callable[[], float],
        *,
        target: Target | None = None,
        output: Output,
        exactly_once: bool,
    ) -> None:
        self._target = target
        self.queues = QueueChecks(
            ensemble,
            target.times if target else output.times,
            most=1 if target or exactly_once else math.inf,
            strict=exactly_once and target is None,
            commit=output.commit,
            require=self._require,
        )
        self._ensemble = ensemble
        self._disks = disks
        self._masters = masters
        self._story = story
        self._clock = clock
        self.acked: dict[str, int] = {}
        self._accepted: dict[str, Accepted] = {}
        self._told: defaultdict[str, set[str]] = defaultdict(set)
        self._marks: dict[tuple[str, str], Mark] = {}
        self._returned: dict[str, int] = {}
        self._let_go: dict[tuple[str, str], int] = {}
        self._given: dict[tuple[str, int, int], tuple[str, str | None]] = {}
        self._discarded: set[str] = set()
        self._given_up: set[str] = set()
        self._canary = Canary(self._ensemble)
        self._handlers: Mapping[str, Callable[[str, Change, Names], None]] = {
            paths.ack.pattern: self._on_ack,
            paths.assignment.pattern: self._on_assignment,
            paths.assignment_page.pattern: self._on_assignment,
            paths.plan.pattern: self._on_plan,
            paths.journal.pattern: self._on_journal,
            paths.node.pattern: self._on_node,
            paths.status.pattern: self._on_status,
            paths.live_node.pattern: self._on_live,
            paths.flow.pattern: self._on_flow,
            paths.commit.pattern: self._on_commit,
            paths.intent.pattern: self._on_intent,
            paths.partitions.pattern: self._on_partitions,
        }
        self._ensemble.listeners.append(self._hear)

    def on_trim(self, journal: str, file: PartitionFile, ack: int) -> None:
        self._require(
            ack <= min(self.acked.get(journal, 0), file.end),
            f"{journal} is trimmed to {ack}, acked is {self.acked.get(journal, 0)} of {file.end}",
        )

    def on_removed(self, journal: str, file: PartitionFile) -> None:
        acked = self.acked.get(journal, 0)
        self._require(
            acked >= file.end or file.flow in self._discarded or journal in self._given_up,
            f"{journal} is removed with events up to {file.end}, acked is {acked}",
        )

    def on_claimed(self, journal: str, start: int) -> None:
        file = self._disks.file(journal)
        floor = file.floor if file else 0
        self._require(start >= floor, f"{journal} is to be read from {start}, kept from {floor}")

    def on_written(self, journal: str, start: int, end: int) -> None:
        """The target has taken or refused these events."""
        assert self._target is not None
        wrong = "" if journal in self.queues.lanes else self._target.twice(journal, start, end)
        self._require(not wrong, wrong)

    def lane(self, partition: str) -> PartitionFile | None:
        """The readable range of a lane."""
        lane = self.queues.lanes.get(partition)
        return lane.file if lane else None

    def _hear(self, session: int, changes: Changes) -> None:
        kinds = [(*_kind(change.path), change) for change in changes]
        self.queues.hear(kinds)
        for pattern, names, change in kinds:
            handler = self._handlers.get(pattern)
            if handler is not None:
                handler(self._ensemble.name_of(session), change, names)

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise self._story.violation(otherwise)

    def _on_ack(self, process: str, change: Change, names: Names) -> None:
        if change.after is None:
            return
        journal = names[-1]
        self._require(journal not in self._given_up, f"{journal} was given up, and has an ack")
        ack = change.after.value
        assert isinstance(ack, Ack)
        node = process.partition(".")[0]
        self._require(ack.epoch > 0, f"{journal} is acked by {node}, which only stands by")
        new = Accepted(node, process, ack.epoch, ack.offset)
        old = self._accepted.get(journal)
        file = self._disks.file(journal)
        if file is not None:
            self._require(ack.offset <= file.end, f"{journal}: {new} is above {file.end}")
        if old is not None and file is not None:
            self._require(new.offset >= old.offset, f"{journal}: the ack goes back: {old}, {new}")
            least = old.epoch + (old.node != new.node)
            self._require(new.epoch >= least, f"{journal}: fenced, and yet accepted: {old}, {new}")
            claimed = (old.process, old.epoch) == (new.process, new.epoch)
            self._require(
                claimed or new.offset == old.offset,
                f"{journal}: moved without a claim: {old}, {new}",
            )
        if self._target is not None and journal not in self.queues.lanes:
            wrong = self._target.wrong(journal, self.acked.get(journal, 0), ack.offset)
            self._require(not wrong, wrong)
        self._accepted[journal] = new
        self.acked[journal] = max(ack.offset, self.acked.get(journal, 0))

    def _on_assignment(self, _process: str, change: Change, names: Names) -> None:
        node = names[0]
        before, after = _tasks_told(change, before=True), _tasks_told(change, before=False)
        for key in before - after:
            self._told[key].discard(node)
        for key in after - before:
            self._told[key].add(node)
            self._require(
                len(self._told[key]) == 1, f"{key} is told to {sorted(self._told[key])} at once"
            )

    def _on_plan(self, _process: str, change: Change, names: Names) -> None:
        if change.after is None:
            return
        flow = names[0]
        zxid = self._ensemble.zxid
        old, new = self._whole_plan(flow, zxid - 1), self._whole_plan(flow, zxid)
        self._require(new.epoch >= old.epoch, f"the epoch of {flow} goes from {old.epoch} back")
        wrong = self._canary.on_plan(flow, old, new)
        self._require(not wrong, wrong)
        self._require_throttled(old, new)
        owners: dict[str, tuple[str | None, str, int]] = {
            partition: (task.node, name, task.epoch)
            for name, task in old.tasks.items()
            for partition in task.partitions
        }
        if self._target is not None and flow not in self._discarded:
            self._require_kept(flow, old, new)
        seen: set[str] = set()
        for name, task in new.tasks.items():
            was = old.tasks.get(name)
            key = f"{flow}/{name}"
            self._require(task.epoch <= new.epoch, f"{key} has an epoch that was not given")
            nodes = [task.node, *task.standbys]
            self._require(len(nodes) == len(set(nodes)), f"{key} stands by for itself: {nodes}")
            if task.node is not None:
                given = self._given.setdefault(
                    (flow, change.after.created, task.epoch), (name, task.node)
                )
                self._require(
                    given == (name, task.node),
                    f"epoch {task.epoch} of {flow} is given to {given} and to {name}, {task.node}",
                )
            if was is not None and was.node is not None and was.node != task.node:
                self._require(task.epoch > old.epoch, f"{key} changes hands under an old epoch")
                if task.kind != DISCOVER:
                    self._on_handover(key, was.node, change)
            for partition in task.partitions:
                self._require(partition not in seen, f"{partition} is in two tasks")
                seen.add(partition)
                if task.node is not None and partition in owners:
                    node, reader, epoch = owners[partition]
                    least = epoch + ((node, reader) != (task.node, name))
                    self._require(
                        task.epoch >= least, f"{partition} changes hands under an old epoch"
                    )
            marked = was is not None and (was.state, was.node) == (DRAINING, task.node)
            if task.state == DRAINING and task.node is not None and not marked:
                self._marks[task.node, key] = Mark(self._ensemble.zxid, self._clock())

    def _require_throttled(self, old: Plan, new: Plan) -> None:
        if _balancing(new) <= _balancing(old):
            return
        flows = self._ensemble.children(str(paths.flows()), self._ensemble.zxid)
        plans = [self._whole_plan(flow, self._ensemble.zxid) for flow in flows]
        moves = sorted(chain.from_iterable(map(_balancing, plans)))
        most = self._cluster.throttles.get("balance", 1)
        self._require(len(moves) <= most, f"{len(moves)} balance moves are under way: {moves}")

    def _require_kept(self, flow: str, old: Plan, new: Plan) -> None:
        for name, task in old.tasks.items():
            znode = self._ensemble.newest(str(paths.intent(flow, name)))
            if znode is None:
                continue
            assert isinstance(znode.value, Intent)
            kept = set(new.tasks[name].partitions) if name in new.tasks else set()
            left = set(task.partitions).intersection(znode.value.ranges) - kept - self._given_up
            self._require(not left, f"{flow}/{name} has decided a batch of {left}, which leave it")

    def _whole_plan(self, flow: str, zxid: int) -> Plan:
        """The plan after that transaction, with the tasks of its buckets."""
        znode = self._ensemble.read(str(paths.plan(flow)), zxid)
        if znode is None:
            return Plan()
        plan = znode.value
        assert isinstance(plan, Plan)
        if not plan.buckets:
            return plan
        tasks: dict[str, PlannedTask] = {}
        for number in range(plan.buckets):
            bucket = self._ensemble.read(str(paths.plan_bucket(flow, str(number))), zxid)
            assert bucket is not None
            assert isinstance(bucket.value, Plan)
            tasks |= bucket.value.tasks
        return replace(plan, tasks=tasks)

    def _on_journal(self, process: str, change: Change, names: Names) -> None:
        """An operator strikes a journal off when its host is gone for good."""
        if change.after is None and process == OPERATOR:
            self._given_up.add(names[0])

    def _on_node(self, process: str, change: Change, names: Names) -> None:
        """Journals that only this host had are lost with it."""
        if change.after is None and process == OPERATOR:
            self._given_up.update(self._disks.of[names[0]].files)

    def _on_handover(self, key: str, owner: str, change: Change) -> None:
        """A master decides on records that it has read after the plan that it replaces."""
        assert change.before is not None
        if self._ensemble.newest(str(paths.live_node(owner))) is None:
            return
        if self._returned.get(owner, 0) > change.before.changed:
            return
        mark = self._marks.get((owner, key))
        self._require(mark is not None, f"{key} is taken from {owner}, which was not told to drain")
        assert mark is not None
        late = self._clock() - mark.seconds >= self._cluster.drain_limit_seconds
        self._require(
            late or self._let_go.get((owner, key), -1) >= mark.zxid,
            f"{key} is taken from {owner}, which has not let it go and still had time",
        )

    @property
    def _cluster(self) -> Cluster:
        znode = self._ensemble.newest(str(paths.cluster()))
        assert znode is not None
        assert isinstance(znode.value, Cluster)
        return znode.value

    def _on_status(self, _process: str, change: Change, names: Names) -> None:
        """Record the tasks that the node has released after it knew that it should."""
        if change.after is None:
            return
        node, status = names[0], change.after.value
        assert isinstance(status, NodeStatus)
        znode = self._ensemble.newest(str(paths.assignment(node)))
        if znode is None or znode.version != status.assignment_version:
            return
        for task in self._told_tasks(node):
            key = f"{task.flow}/{task.task}"
            if task.state == DRAINING and key not in status.tasks:
                self._let_go[node, key] = self._ensemble.zxid

    def _told_tasks(self, node: str) -> Iterator[AssignedTask]:
        """The newest assignment of the node, with its pages."""
        znode = self._ensemble.newest(str(paths.assignment(node)))
        if znode is None:
            return
        assert isinstance(znode.value, Assignment)
        yield from znode.value.tasks
        for number in range(znode.value.pages):
            page = self._ensemble.newest(str(paths.assignment_page(node, str(number))))
            if page is not None:
                assert isinstance(page.value, Assignment)
                yield from page.value.tasks

    def _on_live(self, _process: str, change: Change, names: Names) -> None:
        if change.before is None:
            self._returned[names[0]] = self._ensemble.zxid
        if change.after is None:
            self._canary.on_left()

    def _on_flow(self, process: str, change: Change, names: Names) -> None:
        """A master marks a flow as discarded when it begins to remove it."""
        flow = names[0]
        if change.after is None:
            assert change.before is not None
            last = change.before.value
            assert isinstance(last, Flow)
            self._require(last.state == "deleted", f"{flow} is gone, and was {last.state}")
            self._require(last.discard, f"{flow} is gone, and was not marked")
            self._disks.broker.make_anew(flow)
            return
        assert isinstance(change.after.value, Flow)
        if not change.after.value.discard:
            self._discarded.discard(flow)
        elif flow not in self._discarded:
            self._discarded.add(flow)
            if process in self._masters:
                self._require_collected(flow)

    def _require_collected(self, flow: str) -> None:
        for journal, file in self._disks.files():
            if file.flow == flow and journal not in self._given_up:
                acked = self.acked.get(journal, 0)
                self._require(
                    acked >= file.end,
                    f"{flow} is removed, and {journal} is at {acked} of {file.end}",
                )

    def _on_partitions(self, process: str, change: Change, names: Names) -> None:
        if change.after is None:
            return
        flow, record = names[0], change.after.value
        assert isinstance(record, Partitions)
        before = change.before.value if change.before else Partitions()
        assert isinstance(before, Partitions)
        self._require(
            record.epoch >= before.epoch,
            f"the partitions of {flow} are written under {record.epoch} after {before.epoch}",
        )
        owners = {
            owner
            for (name, _, epoch), owner in self._given.items()
            if (name, epoch) == (flow, record.epoch)
        }
        node = process.partition(".")[0]
        self._require(
            ("discover.0", node) in owners,
            f"{process} writes the partitions of {flow} under {record.epoch}: {owners}",
        )
        for partition, known in record.partitions.items():
            old = before.partitions.get(partition)
            if known.end is not None and (old is None or old.end is None):
                self._require(
                    known.end <= self.acked.get(partition, known.start),
                    f"{partition} ends at {known.end}, acked is {self.acked.get(partition, 0)}",
                )

    def _on_commit(self, process: str, change: Change, names: Names) -> None:
        if change.after is None and names[0] not in self._discarded:
            by_owner = ".collect." in process
            self._require(by_owner, f"{process} removes the decided commit {change.path}")

    def _on_intent(self, process: str, change: Change, _names: Names) -> None:
        if change.before is None or change.after is None or self._target is None:
            return
        before, after = change.before.value, change.after.value
        assert isinstance(before, Intent)
        assert isinstance(after, Intent)
        fenced = process not in self._masters or not before.ranges
        self._require(fenced, f"{change.path} is fenced while a batch is decided: {before}")
        if process == OPERATOR:
            for journal, (start, end) in before.ranges.items():
                if not self.queues.excuse(journal, start, end):
                    self._target.excuse(journal, start, end)


def _balancing(plan: Plan) -> set[tuple[str, int]]:
    """The plan's balance moves that are under way."""
    return {
        (name, task.mark)
        for name, task in plan.tasks.items()
        if task.state == DRAINING and EVEN_OUT in task.why
    }


@lru_cache(maxsize=10_000)
def _kind(path: str) -> tuple[str, Names]:
    """The pattern of the path's row, and the names in it."""
    row = table.find(path)
    assert row is not None, f"{path} is not in the schema"
    names = row.matches(path)
    assert names is not None
    return row.pattern, names


def _tasks_told(change: Change, *, before: bool) -> set[str]:
    znode = change.before if before else change.after
    if znode is None:
        return set()
    assert isinstance(znode.value, Assignment)
    return {f"{task.flow}/{task.task}" for task in znode.value.tasks if task.state != STANDBY}
