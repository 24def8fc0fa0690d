"""Pollers as an input of a collector: what is due is asked, and answers are what can be read.

A server that does not answer costs its own flow a delay. A due time for which asking again is no
use is set aside as an item that failed, and the next one is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from flumeng.config import FlowSpec
from flumeng.config.component import Component
from flumeng.connectors.api.ranged import Range, Reach, Standstill, UnreadableError
from flumeng.connectors.objects.watcher import LaneLog, QueueWatcher
from flumeng.connectors.polls.answer_files import AnswerFiles
from flumeng.connectors.polls.answers import AnswerContents
from flumeng.connectors.polls.asking import Asking, Pools
from flumeng.connectors.polls.poll import Poll
from flumeng.connectors.polls.reader import PollsReader
from flumeng.control.snapshot import items, queues
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import CorruptError, UnavailableError
from flumeng.platform.file_store import open_store

ASK_THREADS, FAILING_THREADS = 16, 8
"""So many pollers of a process wait for their servers at once; those that were not answered last
wait apart from the others."""
PROBE_THREADS = 2
UNKNOWN = Reach("", 0, trouble="this is not the name of a lane of due times")

MakePoll = Callable[[Component[Any]], Poll]
"""Makes what a source asks, of its options. Raises UserError."""


class PollsInput:
    """See ``Input``. ``store`` has the queues."""

    def __init__(self, store: Store, make_poll: MakePoll) -> None:
        self.store = store
        self.make_poll = make_poll
        self.watcher = QueueWatcher(store)
        self.pools = Pools(
            ThreadPoolExecutor(ASK_THREADS, "poll"),
            ThreadPoolExecutor(FAILING_THREADS, "poll-failing"),
        )
        self.probes = ThreadPoolExecutor(PROBE_THREADS, "polls probe")

    def positions(self, wake: Callable[[], None]) -> PollPositions:
        return PollPositions(self, wake)

    def reader(self, spec: FlowSpec) -> PollsReader | None:
        """Raises UserError when the store's credentials are nowhere."""
        return PollsReader.of(spec.flow, spec.pollers[0]) if spec.pollers else None


@dataclass(frozen=True)
class _Source:
    """The poller of a flow, what asks for it, and what reads its answers."""

    flow: str
    part: Component[Any]
    poll: Poll
    reader: PollsReader


class PollPositions:
    """See ``Positions``."""

    def __init__(self, shared: PollsInput, wake: Callable[[], None]) -> None:
        self._shared = shared
        self._wake = wake
        self._source: _Source | None = None
        self._asking: dict[str, Asking] = {}
        """By partition: that of the queue which the flow has now."""
        self._watches = False

    def open(self, spec: FlowSpec) -> None:
        """Raises UserError."""
        self.close()
        if spec.pollers:
            (part,) = spec.pollers
            open_store(part.options.answers.location)
            reader = PollsReader.of(spec.flow, part)
            self._source = _Source(spec.flow, part, self._shared.make_poll(part), reader)

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        """Of a flow that polls no more nothing: its lane is on its way out of its tasks."""
        if self._source is None:
            return {}
        found: dict[str, Reach] = {}
        for name in partitions:
            lane = queues.lane_of(name)
            if lane is None:
                found[name] = UNKNOWN
            elif (log := self._lane(self._source, *lane)) is not None:
                if name not in self._asking:
                    self._asking[name] = self._begin(self._source, name, lane[1])
                if reach := self._reach(self._asking[name], log):
                    found[name] = reach
        return found

    def refresh(self, partitions: Collection[str]) -> None:
        del partitions
        if self._source is not None:
            self._shared.watcher.look_again(self._source.flow)

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        source, asked = self._source, self._asking[partition].asked
        assert source is not None and asked is not None, "nothing was read"
        del address
        where = AnswerContents(asked.answers).address(start, end)

        def read() -> None:
            try:
                next(source.reader.read(Range(partition, start, end), where), None)
            except UnreadableError as error:
                raise (CorruptError if error.damaged else UnavailableError)(error.why) from error

        probe = self._shared.probes.submit(read)
        probe.add_done_callback(lambda _: self._wake())
        return probe

    def describe(self, standstill: Standstill) -> str:
        flow = self._source.flow if self._source else standstill.partition
        number = items.number_of(standstill.offset)
        if standstill.kind == "held":
            asking = self._asking.get(standstill.partition)
            asked = asking.asked if asking else None
            why = asked.trouble if asked else standstill.why
            return f"flow {flow} is not answered, and asks again: {why}"
        if standstill.kind == "unanswered":
            return f"flow {flow} waits for answer {number}: {standstill.why}"
        why = standstill.why
        if standstill.kind == "nonsense":
            return f"flow {flow} stands still: {why}"
        if standstill.kind != "damaged":
            why = f"{why or standstill.kind}: its queue in ZooKeeper was changed by hand"
        return (
            f"flow {flow} stands still at answer {number}, which is tried again: {why}; to go on "
            f"without what was not read: pause the flow, and `flumeng flow reset {flow} --to "
            "latest`"
        )

    def close(self) -> None:
        for asking in self._asking.values():
            asking.close()
        if self._source is not None:
            self._source.poll.close()
            self._shared.watcher.forget(self, self._source.flow)
        self._asking, self._source, self._watches = {}, None, False

    def _lane(self, source: _Source, lane: str, queue: str) -> LaneLog | None:
        watcher = self._shared.watcher
        if not self._watches:
            watcher.watch(self, source.flow, {lane}, self._wake)
            self._watches = True
        return watcher.of(source.flow, queue, [lane]).get(lane)

    def _begin(self, source: _Source, partition: str, queue: str) -> Asking:
        files = AnswerFiles(source.part.options.answers.location, source.flow, queue)
        shared = self._shared
        return Asking(
            shared.store,
            source.flow,
            partition,
            source.poll,
            files,
            pools=shared.pools,
            wake=self._wake,
        )

    def _reach(self, asking: Asking, lane: LaneLog) -> Reach | None:
        """Answers can be read; due times that have none are held while something is wrong."""
        if lane.trouble:
            return Reach("", 0, trouble=lane.trouble)
        asking.follow(lane)
        asked = asking.asked
        if asked is None:
            return None
        if asked.elsewhere:
            why = (
                f"answers that were not read yet lie at {asked.elsewhere}: put `answers.path` back "
                "until they are read"
            )
            return Reach("", 0, trouble=why)
        safe = max(asked.safe, items.offset_of(lane.first))
        held = max(0, items.offset_of(lane.next) - safe) if asked.trouble else 0
        return Reach("", safe, held=held, contents=AnswerContents(asked.answers))
