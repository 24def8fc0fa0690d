"""Objects as a collector's input: ends and items of lanes. An object's part that is unreadable
after a few tries is skipped and recorded with the ack. An unavailable store is retried."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from time import sleep, time

from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import Gone, Parts, Range, Reach, Standstill, UnreadableError
from flumeng.connectors.objects.formats import cuttable
from flumeng.connectors.objects.lanes import LaneContents
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.connectors.objects.reader import ObjectsReader
from flumeng.connectors.objects.watcher import LaneLog, QueueWatcher
from flumeng.connectors.ranged.positions import Probes
from flumeng.connectors.ranged.reading import source_of
from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.items import Item
from flumeng.control.zookeeper import ABSENT, Put, Store, Versioned
from flumeng.platform.errors import CorruptError, UnavailableError
from zkschema import paths
from zkschema.records import QueueFailure
from zkschema.table import ZPath

TRIES, TRY_SECONDS = 3, 0.3
"""Tries of an object, within a second, before its lane skips it."""
GIVEN_UP_AT_ONCE = 50
"""Maximum number of consecutive objects that are tried and given up together."""
WHY_CHARACTERS = 500
LEFT_OUT = "the object was unreadable when this batch was first written"
UNKNOWN = Reach("", 0, trouble="the name is not that of a lane of objects")


@dataclass(frozen=True)
class _GivenUp:
    """Given-up parts of a lane. ``items``: the unread end of each given-up item. ``last``: the
    consecutive ones given up last, as one part."""

    items: tuple[Gone, ...]
    last: Gone | None = None


@dataclass(frozen=True)
class _LaneReach:
    log: LaneLog
    given_up: _GivenUp | None
    reach: Reach


class ObjectsInput:
    def __init__(self, store: Store) -> None:
        self._watcher = QueueWatcher(store)
        self._probes = Probes("objects")

    def positions(self, wake: Callable[[], None]) -> LanePositions:
        return LanePositions(self._watcher, self._probes, wake)

    def reader(self, spec: FlowSpec) -> ObjectsReader | None:
        """Return the flow's reader, if any. Raises UserError for missing credentials of the store,
        or an unknown encoding."""
        source = source_of(spec, ObjectsSource)
        return None if source is None else ObjectsReader.of(source)


class LanePositions:
    """``Positions`` of lanes of objects. ``wall``: seconds since the epoch."""

    def __init__(
        self,
        watcher: QueueWatcher,
        probes: Probes,
        wake: Callable[[], None],
        *,
        reader: Callable[[ObjectsSource], ObjectsReader] = ObjectsReader.of,
        pause: Callable[[float], None] = sleep,
        wall: Callable[[], float] = time,
    ) -> None:
        self._watcher = watcher
        self._probes = probes
        self._wake = wake
        self._reader_of = reader
        self._pause = pause
        self._wall = wall
        self._flow = ""
        self._source: ObjectsSource | None = None
        self._reader: ObjectsReader | None = None
        self._lanes: frozenset[tuple[str, str]] = frozenset()
        self._reaches: dict[str, _LaneReach] = {}
        self._given_up: dict[str, _GivenUp] = {}
        self._left_out: dict[str, Sequence[tuple[int, int]]] = {}
        """Parts to give up as soon as the lane is known."""

    def open(self, spec: FlowSpec) -> None:
        self.close()
        self._flow, self._source = spec.flow, source_of(spec, ObjectsSource)
        self._reader = self._reader_of(self._source) if self._source else None
        self._left_out = {}
        for name, given_up in list(self._given_up.items()):
            as_of_now = tuple(map(self._as_of_now, given_up.items))
            self._given_up[name] = replace(given_up, items=as_of_now)

    def leave_out(self, parts: Parts) -> None:
        self._left_out = dict(parts)

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        """See ``Positions``; empty for a flow without this source, whose lanes are leaving it."""
        if self._source is None:
            return {}
        lanes = {name: queues.lane_of(name) for name in partitions}
        asked = frozenset(lane for lane in lanes.values() if lane is not None)
        if asked != self._lanes:
            numbers = {lane for lane, _ in asked}
            self._watcher.watch(self, self._flow, numbers, self._wake)
            self._lanes = asked
        logs: dict[str, LaneLog] = {}
        for queue in {queue for _, queue in asked}:
            own = [lane for lane, of in asked if of == queue]
            for lane, log in self._watcher.of(self._flow, queue, own).items():
                logs[queues.lane_partition(lane, queue)] = log
        reaches = {name: self._reach(name, log) for name, log in logs.items()}
        return reaches | {name: UNKNOWN for name, lane in lanes.items() if lane is None}

    def refresh(self, partitions: Collection[str]) -> None:
        del partitions
        self._watcher.reread(self._flow)

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        del address
        reader, lane = self._reader, self._reaches[partition]
        assert reader is not None and lane.reach.contents is not None, "a lane has contents"
        address_of = lane.reach.contents.address

        def read() -> None:
            most = GIVEN_UP_AT_ONCE
            for left in reversed(range(TRIES)):
                damage = _damage(reader, address_of, Range(partition, start, end), most)
                if not damage:
                    return
                if not left:
                    self._give_up(partition, start, lane.log, damage)
                    raise CorruptError(damage[0].why)
                most = len(damage)
                self._pause(TRY_SECONDS)

        return self._probes.probe(self._flow, read, self._wake)

    def describe(self, standstill: Standstill) -> str:
        queue_lane = queues.lane_of(standstill.partition)
        lane = f"lane {queue_lane[0]} of flow {self._flow}" if queue_lane else standstill.partition
        item = f"item {items.number_of(standstill.offset)}"
        if standstill.kind == "damaged":
            return f"{lane} stands still at {item}, which is retried: {standstill.why}"
        if standstill.kind == "unanswered":
            return f"{lane} waits at {item}: {standstill.why}"
        return (
            f"{lane} stands still at {item}, as the flow's queue in ZooKeeper was changed by hand "
            f"({standstill.why or standstill.kind}); `flumeng flow reset {self._flow} --to "
            "earliest` reads the items that are left"
        )

    def close(self) -> None:
        if self._flow:
            self._watcher.forget(self, self._flow)
        self._lanes, self._reaches = frozenset(), {}

    def _give_up(
        self, partition: str, start: int, log: LaneLog, damage: Sequence[UnreadableError]
    ) -> None:
        fresh = self._gone(partition, log, damage)
        more = f"; and {len(damage) - 1} more objects after it" if len(damage) > 1 else ""
        last = Gone(start, fresh[-1].end, damage[0].why + more)
        self._given_up[partition] = _GivenUp((*self._kept(partition, log, fresh), *fresh), last)

    def _give_up_again(self, partition: str, log: LaneLog) -> None:
        """Give up the parts that were left out of a batch when it was first written."""
        parts = self._left_out.pop(partition)
        damage = [UnreadableError(partition, start, LEFT_OUT) for start, _ in parts]
        again = self._gone(partition, log, damage)
        before = self._given_up.get(partition)
        kept = self._kept(partition, log, again)
        self._given_up[partition] = _GivenUp((*kept, *again), before.last if before else None)

    def _gone(self, partition: str, log: LaneLog, damage: Sequence[UnreadableError]) -> list[Gone]:
        by_number = {item.number: item for item in log.items}
        damaged = [by_number[items.number_of(error.offset)] for error in damage]
        return [
            Gone(error.offset, item.end, error.why, (self._failure(partition, item, error),))
            for error, item in zip(damage, damaged, strict=True)
        ]

    def _kept(self, partition: str, log: LaneLog, fresh: Sequence[Gone]) -> list[Gone]:
        """Return earlier given-up parts of other items that still exist."""
        before, numbers = self._given_up.get(partition), {items.number_of(o.start) for o in fresh}
        return [
            gone
            for gone in (before.items if before else ())
            if log.items[0].start <= gone.start and items.number_of(gone.start) not in numbers
        ]

    def _failure(self, partition: str, item: Item, damage: UnreadableError) -> Put:
        lane = queues.lane_of(partition)
        assert lane is not None, partition
        path = paths.queue_failure(self._flow, f"{lane[0]}.{item.number}")
        failure = QueueFailure(
            location=item.location,
            size=item.size,
            modified=item.modified_us,
            tag=item.tag,
            position=items.position_of(damage.offset),
            why=damage.why[:WHY_CHARACTERS],
            time=self._wall(),
        )
        return _over(self._watcher.store.read(path), path, failure)

    def _as_of_now(self, gone: Gone) -> Gone:
        """Return ``gone`` with its failure reread: an operator may have changed ``wanted``."""
        (put,) = gone.also
        assert isinstance(put, Put) and isinstance(put.value, QueueFailure)
        before = self._watcher.store.read(put.path)
        return replace(gone, also=(_over(before, put.path, put.value),))

    def _reach(self, name: str, log: LaneLog) -> Reach:
        if log.trouble:
            return Reach("", 0, trouble=log.trouble)
        parts = self._left_out.get(name, ())
        if parts and items.number_of(parts[-1][0]) < log.next:  # else our ZooKeeper server lags
            self._give_up_again(name, log)
        lane, given_up = self._reaches.get(name), self._given_up.get(name)
        if lane is None or lane.log is not log or lane.given_up is not given_up:
            reach = self._of_log(log, given_up)
            self._reaches[name] = lane = _LaneReach(log, given_up, reach)
        return lane.reach

    def _of_log(self, log: LaneLog, given_up: _GivenUp | None) -> Reach:
        assert self._source is not None
        safe = items.offset_of(log.next)
        floor = log.items[0].start if log.items else safe
        left_out = given_up.items if given_up else ()
        until = {items.number_of(gone.start): items.position_of(gone.start) for gone in left_out}
        contents = LaneContents(log.items, cuttable(self._source), until)
        reach = Reach("", safe, floor=floor, contents=contents, left_out=left_out)
        if given_up is None or (last := given_up.last) is None:
            return reach
        return replace(
            reach, gone_from=last.start, gone_below=last.end, gone_why=last.why, repeatable=safe
        )


def _over(
    before: Versioned[QueueFailure] | None, path: ZPath[QueueFailure], failure: QueueFailure
) -> Put:
    """Return a write of the failure that keeps its first position and the operator's ``wanted``."""
    if before is None:
        return Put(path, failure, ABSENT)
    position = min(failure.position, before.value.position)
    return Put(
        path, replace(failure, position=position, wanted=before.value.wanted), before.version
    )


def _damage(
    reader: ObjectsReader, address_of: Callable[[int, int], str], piece: Range, most: int
) -> list[UnreadableError]:
    """Return the errors of the leading unreadable items, at most ``most``. Raises UnavailableError
    when the store does not answer for the first."""
    damage: list[UnreadableError] = []
    start = piece.start
    while start < piece.end and len(damage) < most:
        end = min(piece.end, items.offset_of(items.number_of(start) + 1))
        try:
            next(reader.read(Range(piece.partition, start, end), address_of(start, end)), None)
            break
        except UnreadableError as error:
            if error.damaged:
                damage.append(error)
            elif damage:
                break  # a store without an answer is waited for when its turn comes
            else:
                raise UnavailableError(error.why) from error
        start = end
    return damage
