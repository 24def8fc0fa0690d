"""Takes a task over: claims it, or prepares for it while another node owns it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from flumeng.agent.collector import intents
from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.batch import Pipeline
from flumeng.agent.collector.claim import ClaimedTask
from flumeng.agent.collector.commit import OpenStore
from flumeng.agent.collector.job import Jobs
from flumeng.agent.collector.measures import Measures
from flumeng.agent.collector.partitions import Partitions
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.ranges import BatchSize
from flumeng.agent.collector.scheduler import Scheduler
from flumeng.agent.collector.slot_client import SlotClient
from flumeng.agent.collector.status import Report
from flumeng.connectors.api.ranged import OpenPositions
from flumeng.control.snapshot.partitions import ack_path
from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper.tree import TreeWatch
from flumeng.platform import file_store
from flumeng.platform.errors import UnavailableError, UserError
from zkschema import paths

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Surroundings:
    """Shared by a process's tasks. ``build`` raises a FlumengError. ``report``: see ``Report``."""

    store: Store
    publisher: Publisher
    scheduler: Scheduler
    jobs: Jobs
    build: Callable[[Assignment], Pipeline]
    positions: OpenPositions
    report: Report
    open_store: OpenStore = file_store.open_store
    clock: Callable[[], float] = time.monotonic
    measures: Measures = field(default_factory=Measures)
    tree: TreeWatch = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", TreeWatch(self.store, self.scheduler.wake_all))


class Takeover:
    """Builds and claims a task. ``size`` outlives claims, until the flow's batch limits change."""

    def __init__(
        self, around: Surroundings, partitions: Partitions, wake: Callable[[], None]
    ) -> None:
        self._around = around
        self._partitions = partitions
        self._wake = wake
        self._standby: tuple[Assignment, Pipeline] | None = None
        """The prepared pipeline, until a claim takes it."""
        self.size = BatchSize(0)  # before the first claim
        self._logged_epoch: int | None = None

    def stand_by(self, assignment: Assignment) -> str | None:
        """Prepare the slow steps of a failover: Spark's workers, the pipeline, the partitions'
        ends. Return an obstacle to running here, if any. Raises FlumengErrors."""
        standby = self._standby
        if standby is None or standby[0] != assignment or standby[1].outdated:
            standby = assignment, self._pipeline(assignment)
            self._standby = standby
            self._partitions.open(standby[1].spec)
        pipeline = standby[1]
        self._around.jobs.warm_up(pipeline)
        names = sorted(assignment.partitions)
        acks = self._around.store.read_many([ack_path(assignment.flow, name) for name in names])
        claimed = zip(names, acks, strict=True)
        self._partitions.of({name: ack.value.offset for name, ack in claimed if ack is not None})
        return self._partitions.trouble or pipeline.trouble or None

    def claim(self, assignment: Assignment) -> SlotClient:
        """Claim the task, for the revision of an open intent if there is one. Raises UserError,
        UnavailableError, ConflictError or CorruptError, and as ``build``."""
        around = self._around
        tree = around.tree.identity()
        if tree is None:
            raise UnavailableError("ZooKeeper has lost the cluster: import its last export")
        decided = intents.read(around.store, assignment.flow, assignment.task)
        built = assignment
        if decided is not None and decided.ranges:
            if decided.revision != assignment.revision:
                built = self._of_revision(assignment, decided.revision)
            built = replace(built, filters=decided.filters)
        try:
            pipeline = self._pipeline(built)
        except UserError as error:
            if not built.filters:
                raise
            raise UserError(
                f"a batch must be repeated as it was decided, but {error}: give it up with "
                f"`flumeng ack drop {assignment.flow} {assignment.task}`"
            ) from error
        limits = pipeline.spec.batch
        remote = any(part.options.remote for part in pipeline.spec.partitioned)
        seconds = BatchSize.REMOTE_SECONDS if remote else BatchSize.TARGET_SECONDS
        size = BatchSize(limits.events, limits.bytes, seconds)
        if self.size.limits != size.limits:
            self.size = size
        self._partitions.open(pipeline.spec)
        task = ClaimedTask(
            built,
            around.store,
            around.publisher,
            pipeline,
            self._partitions,
            size=self.size,
            clock=around.clock,
            open_store=around.open_store,
        )
        if assignment.epoch != self._logged_epoch:  # not at each retry
            log.info("task %s runs here, under epoch %d", assignment.key, assignment.epoch)
        self._logged_epoch = assignment.epoch
        around.measures.tasks.begin(assignment.key, assignment.epoch)
        for_repeat = built != assignment
        return SlotClient(
            assignment, pipeline, task, around.jobs, self._wake, tree=tree, for_repeat=for_repeat
        )

    def _pipeline(self, assignment: Assignment) -> Pipeline:
        standby, self._standby = self._standby, None
        if standby is not None:
            mine, pipeline = standby
            text = (assignment.key, assignment.revision, assignment.spec)
            fits = assignment.filters in ("", pipeline.filters)
            if (mine.key, mine.revision, mine.spec) == text and fits and not pipeline.outdated:
                return pipeline
        return self._around.build(assignment)

    def _of_revision(self, assignment: Assignment, revision: int) -> Assignment:
        record = self._around.store.read(paths.revision(assignment.flow, str(revision)))
        if record is None:
            raise UserError(
                f"a batch of revision {revision} must be repeated, but that revision is missing: "
                f"give the batch up with `flumeng ack drop {assignment.flow} {assignment.task}`"
            )
        return replace(assignment, revision=revision, spec=record.value.effective)
