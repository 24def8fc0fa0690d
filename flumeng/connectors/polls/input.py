"""Collector input for polls; partitions are lanes of due times. A silent server delays only its own
flow. Due times with permanent errors are recorded as failed, and the next one follows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from pyspark.sql import SparkSession

from flumeng.config import FlowSpec, registry
from flumeng.config.component import Component
from flumeng.connectors.api.ranged import Range, Reach, Standstill, UnreadableError
from flumeng.connectors.objects.watcher import LaneLog, QueueWatcher
from flumeng.connectors.polls.answers import AnswerContents, AnswerFiles, PollsReader
from flumeng.connectors.polls.jdbc import SparkJdbc
from flumeng.connectors.polls.lane_poller import LanePoller
from flumeng.connectors.polls.poll import Poll
from flumeng.connectors.polls.sql_options import SqlPollSource
from flumeng.control.snapshot import items, queues
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from flumeng.platform.file_store import open_store

ASK_THREADS, FAILING_THREADS = 16, 8
"""Threads of a process for requests; polls whose last attempt failed have their own."""
PROBE_THREADS = 2
UNKNOWN = Reach("", 0, trouble="the name is not that of a lane of due times")


class PollsInput:
    """``Input`` of polls. ``store`` has the queues; ``spark`` reads databases."""

    def __init__(self, store: Store, spark: SparkSession) -> None:
        self.store = store
        self.watcher = QueueWatcher(store)
        self.pool = ThreadPoolExecutor(ASK_THREADS, "poll")
        self.failing_pool = ThreadPoolExecutor(FAILING_THREADS, "poll-failing")
        self.probes = ThreadPoolExecutor(PROBE_THREADS, "polls probe")
        self._spark = spark

    def positions(self, wake: Callable[[], None]) -> PollPositions:
        return PollPositions(self, wake)

    def reader(self, spec: FlowSpec) -> PollsReader | None:
        """Return the flow's reader, if any. Raises UserError for a missing location secret."""
        return PollsReader.of(spec.flow, spec.pollers[0]) if spec.pollers else None

    def poll(self, part: Component[Any]) -> Poll:
        """Create the poll of a source. Raises UserError when its package or a secret is missing."""
        try:
            kind = registry.get("source", part.name).poll_class()
        except ImportError as missing:
            raise UserError(f"the source {part.name} needs a package: {missing}") from missing
        is_sql = isinstance(part.options, SqlPollSource)
        more = [SparkJdbc(self._spark, part.options)] if is_sql else []
        poll: Poll = kind(part.options, *more)
        return poll


class PollPositions:
    """``Positions`` of a task's lanes of due times."""

    def __init__(self, shared: PollsInput, wake: Callable[[], None]) -> None:
        self._shared = shared
        self._wake = wake
        self._reader: PollsReader | None = None
        """None when closed, or when the flow has no poller."""
        self._poll: Poll | None = None
        self._pollers: dict[str, LanePoller] = {}
        self._watches = False

    def open(self, spec: FlowSpec) -> None:
        self.close()
        if spec.pollers:
            (part,) = spec.pollers
            open_store(part.options.answers.location)
            reader = PollsReader.of(spec.flow, part)
            self._poll = self._shared.poll(part)
            self._reader = reader

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        if self._reader is None:
            return {}
        reaches: dict[str, Reach] = {}
        for name in partitions:
            lane = queues.lane_of(name)
            if lane is None:
                reaches[name] = UNKNOWN
            elif (log := self._lane(self._reader, *lane)) is not None:
                if name not in self._pollers:
                    self._pollers[name] = self._begin(self._reader, name, lane[1])
                if reach := _reach(self._pollers[name], log):
                    reaches[name] = reach
        return reaches

    def refresh(self, partitions: Collection[str]) -> None:
        del partitions
        if self._reader is not None:
            self._shared.watcher.reread(self._reader.flow)

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        reader, answered = self._reader, self._pollers[partition].answered
        assert reader is not None and answered is not None, "a lane with answers"
        del address
        where = AnswerContents(answered.answers).address(start, end)

        def read() -> None:
            try:
                next(reader.read(Range(partition, start, end), where), None)
            except UnreadableError as error:
                raise (CorruptError if error.damaged else UnavailableError)(error.why) from error

        probe = self._shared.probes.submit(read)
        probe.add_done_callback(lambda _: self._wake())
        return probe

    def describe(self, standstill: Standstill) -> str:
        flow = self._reader.flow if self._reader else standstill.partition
        number, why = items.number_of(standstill.offset), standstill.why
        if standstill.kind == "held":
            poller = self._pollers.get(standstill.partition)
            why = poller.answered.trouble if poller and poller.answered else why
            return f"flow {flow} gets no answer, and polls again: {why}"
        if standstill.kind == "unanswered":
            return f"flow {flow} waits for answer {number}: {why}"
        if standstill.kind == "nonsense":
            return f"flow {flow} stands still: {why}"
        if standstill.kind != "damaged":
            why = f"the queue in ZooKeeper was changed by hand ({why or standstill.kind})"
        return (
            f"flow {flow} stands still at answer {number}, which is retried: {why}; to skip the "
            f"unread answers: pause the flow, and `flumeng flow reset {flow} --to latest`"
        )

    def close(self) -> None:
        for poller in self._pollers.values():
            poller.close()
        if self._poll is not None:
            self._poll.close()
        if self._reader is not None:
            self._shared.watcher.forget(self, self._reader.flow)
        self._pollers, self._reader, self._poll, self._watches = {}, None, None, False

    def _lane(self, reader: PollsReader, lane: str, queue: str) -> LaneLog | None:
        watcher = self._shared.watcher
        if not self._watches:
            watcher.watch(self, reader.flow, {lane}, self._wake)
            self._watches = True
        return watcher.of(reader.flow, queue, [lane]).get(lane)

    def _begin(self, reader: PollsReader, partition: str, queue: str) -> LanePoller:
        assert self._poll is not None, "opened"
        shared = self._shared
        return LanePoller(
            shared.store,
            reader.flow,
            partition,
            self._poll,
            AnswerFiles(reader.location, reader.flow, queue),
            shared.pool,
            shared.failing_pool,
            self._wake,
        )


def _reach(poller: LanePoller, lane: LaneLog) -> Reach | None:
    """Return the readable answers; unanswered due times count as held while there is trouble. None
    until ZooKeeper is read."""
    if lane.trouble:
        return Reach("", 0, trouble=lane.trouble)
    poller.follow(lane)
    answered = poller.answered
    if answered is None:
        return None
    if answered.elsewhere:
        remain = f"unread answers remain at {answered.elsewhere}"
        return Reach("", 0, trouble=f"{remain}: restore `answers.path` until they are read")
    safe = max(answered.safe, items.offset_of(lane.first))
    held = max(0, items.offset_of(lane.next) - safe) if answered.trouble else 0
    return Reach("", safe, held=held, contents=AnswerContents(answered.answers))
