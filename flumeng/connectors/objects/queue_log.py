"""Writer of a flow's queue: the discovery task appends items to lanes and removes acked ones.

Each write is one transaction on the version of the head: of two tasks only one writes. Seen objects
are written with their items. A file of seen objects is durable before ZooKeeper has its name, and
deleted after a transaction without the name. As an owner writes the head first, no former owner can
name a file any more: unnamed files are garbage.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from flumeng.connectors.objects.lanes import LaneState, Weigh, alike
from flumeng.connectors.objects.seen_files import SeenFiles
from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.items import Item
from flumeng.control.snapshot.partitions import ack_path
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Check,
    Put,
    Remove,
    Store,
    Unreadable,
    Versioned,
    Write,
    readable,
)
from flumeng.control.zookeeper.transaction import portions
from flumeng.platform.errors import ConflictError, CorruptError, UserError
from zkschema import codec, paths
from zkschema.records import Queue, QueueFailure, QueueSeen, QueueSegment

SEEN_BYTES = 6 << 20
"""Limit of the seen objects kept in ZooKeeper."""
SEEN_INLINE_BYTES = 12 << 10
"""With ``seen_in``, larger buckets are files."""
FORGOTTEN_AT_ONCE = 8
SEGMENT_BYTES = 48 * 1024
"""Limit of an encoded segment; the znode table allows a little more."""
RETRY = "retry"


@dataclass(frozen=True)
class _Bucket:
    """A bucket in ZooKeeper: the number of its ``bytes``, or the name of its ``file``."""

    bytes: int
    file: str = ""


class QueueLog:
    """Writer of one queue. Unusable after any error: the state in ZooKeeper is unknown then."""

    def __init__(
        self, store: Store, flow: str, head: Versioned[Queue], files: SeenFiles | None, weigh: Weigh
    ) -> None:
        self.weigh = weigh
        self._store = store
        self._flow = flow
        self._head = head
        self._files = files
        self._buckets: dict[str, _Bucket] = {}
        self._unnamed: set[str] = set()
        """Files whose names ZooKeeper lacks after the next transaction."""
        self._most_open = 1
        self.lanes: dict[str, LaneState] = {}

    @classmethod
    def take(
        cls,
        store: Store,
        flow: str,
        epoch: int,
        lanes: int,
        rules: str,
        *,
        seen_in: str | None = None,
        weigh: Weigh = alike,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex[:8],
    ) -> QueueLog:
        """Take the queue under this epoch, with at least ``lanes`` lanes that are not full; create
        a missing queue.
        ``rules`` of remembering objects never change. Raises ConflictError, CorruptError,
        UserError, UnavailableError."""
        head = queues.head(store, flow)
        if head is None:
            owner = store.read(paths.flow(flow))
            if owner is None or owner.value.state == "deleted":
                raise ConflictError(f"flow {flow} was deleted, with its queue")
            queue = Queue(epoch=epoch, id=new_id(), rules=rules)
            folders = [paths.queue_lanes(flow), paths.queue_seen(flow), paths.queue_failures(flow)]
            made = [Put(folder, None, ABSENT) for folder in folders]
            still = Check(paths.flow(flow), owner.version)
            store.commit([still, Put(paths.queue(flow), queue, ABSENT), *made])
            head = queues.head(store, flow)
            assert head is not None, "it was written just now"
        if head.value.rules != rules:
            raise UserError(
                f'flow {flow} recorded seen objects with "{head.value.rules}", and would read all '
                f'again with "{rules}": revert that change, or read them with another flow'
            )
        files = SeenFiles(seen_in, flow, head.value.id) if seen_in else None
        log = cls(store, flow, head, files, weigh)
        log._most_open = lanes
        log._take_over(epoch)
        log._load()
        return log

    @property
    def id(self) -> str:
        return self._head.value.id

    @property
    def partitions(self) -> dict[str, str]:
        return {queues.partition_of(lane, self._head.value): lane for lane in self.lanes}

    def read_acks(self) -> None:
        acks = self._store.read_each([ack_path(self._flow, name) for name in self.partitions])
        for lane, ack in zip(self.partitions.values(), map(readable, acks), strict=True):
            if ack is not None:
                self.lanes[lane].acknowledge(items.number_of(ack.value.offset))

    @property
    def kept_items(self) -> int:
        """Number of items that wait, or whose segments are not removed yet."""
        return sum(state.kept for state in self.lanes.values())

    @property
    def waiting_weights(self) -> dict[str, int]:
        """The weight that waits in each lane that is not full."""
        lanes = self.lanes.items()
        return {lane: state.weight for lane, state in lanes if state.next < items.FULL_ITEMS}

    def seen(self) -> dict[str, bytes]:
        """Return the buckets of seen objects. Raises CorruptError when one is missing."""
        names = self._store.children(paths.queue_seen(self._flow))
        read = self._store.read_each([paths.queue_seen_bucket(self._flow, name) for name in names])
        inline, filed = {}, {}
        for name, bucket in zip(names, map(readable, read), strict=True):
            if bucket is not None and bucket.value.file:
                filed[name] = bucket.value.file
            elif bucket is not None:
                inline[name] = base64.b64decode(bucket.value.data)
        self._buckets = {name: _Bucket(len(data)) for name, data in inline.items()}
        self._buckets |= {name: _Bucket(0, file) for name, file in filed.items()}
        return inline | self._filed(filed)

    def _filed(self, files: Mapping[str, str]) -> dict[str, bytes]:
        if self._files is None:
            if files:
                raise UserError(
                    f"flow {self._flow} records seen objects in files: set `seen_in` as before"
                )
            return {}
        self._unnamed = self._files.names() - {*files.values()}
        read = self._files.read(files.values())
        for file in files.values():
            if file not in read:
                self._store.commit([Check(paths.queue(self._flow), self._head.version)])
                raise CorruptError(
                    f"{self._files.path(file)} with seen objects of flow {self._flow} is missing: "
                    "restore this file, or move all files of its directory to the new `seen_in`"
                )
        return {name: read[file] for name, file in files.items()}

    def append(
        self,
        new: Mapping[str, Sequence[Item]],
        seen: Mapping[str, bytes],
        also: Sequence[Write] = (),
        *,
        retried: str = "",
    ) -> None:
        """Append items. ``new``: the next ones of each lane; ``seen``: changed buckets; ``also``:
        further writes of the transaction; ``retried``: lane of the failed item. Raises UserError
        when the buckets do not fit."""
        changed = {name: data for name, data in seen.items() if data or name in self._buckets}
        after_seen = self._stored(changed)
        segments = {lane: list(_segments(part)) for lane, part in new.items() if part}
        writes: list[Write] = [
            Put(paths.queue_segment(self._flow, lane, queues.segment_name(own.first)), own, ABSENT)
            for lane, parts in segments.items()
            for own in parts
        ]
        writes += [self._bucket(name, data, after_seen) for name, data in changed.items()]
        after = dict(self._head.value.next)
        for lane, part in new.items():
            after[lane] = part[-1].number + 1
        head = replace(self._head.value, next=after)
        if retried:
            head = replace(
                head, retried={**head.retried, retried: head.retried.get(retried, 0) + 1}
            )
        self._write(head, [*writes, *also])
        named = {bucket.file for bucket in after_seen.values()}
        self._unnamed |= {bucket.file for bucket in self._buckets.values()} - named - {""}
        self._buckets = after_seen
        for lane, parts in segments.items():
            for segment in parts:
                self.lanes[lane].append(items.of_segment(segment))
        if self._files is not None:
            self._files.remove(self._unnamed)
            self._unnamed = set()
        if any(after[lane] >= items.FULL_ITEMS for lane in segments):
            self._take_over(head.epoch)

    @property
    def complete(self) -> bool:
        return self._head.value.complete

    def end(self) -> None:
        self._write(replace(self._head.value, complete=True), [])

    def forget(self, seen: Mapping[str, bytes]) -> None:
        """Write changed buckets without items, a few at a time, in the order of ``SeenHashes``."""
        names = list(seen)
        for first in range(0, len(names), FORGOTTEN_AT_ONCE):
            self.append({}, {name: seen[name] for name in names[first : first + FORGOTTEN_AT_ONCE]})

    def _stored(self, changed: Mapping[str, bytes]) -> dict[str, _Bucket]:
        """Return all buckets after the write; files are durable on return."""
        large = {
            name: data
            for name, data in changed.items()
            if self._files is not None and len(data) > SEEN_INLINE_BYTES
        }
        small = {name: len(data) for name, data in changed.items() if data and name not in large}
        kept = {name: bucket for name, bucket in self._buckets.items() if name not in changed}
        if sum(bucket.bytes for bucket in kept.values()) + sum(small.values()) > SEEN_BYTES:
            raise UserError(
                f"flow {self._flow} has seen more objects than ZooKeeper may remember "
                f"({SEEN_BYTES >> 20} MiB, about 900,000): set `seen_in: LOCATION` to record them "
                "in files; or `order: name` or `order: modified` if objects arrive in that order; "
                "or `after` to remove objects that were read"
            )
        files = {} if self._files is None else self._files.write(large)
        written = {name: _Bucket(0, file) for name, file in files.items()}
        return kept | {name: _Bucket(size) for name, size in small.items()} | written

    def failures(self) -> dict[str, Versioned[QueueFailure]]:
        """Return failed items by ``LANE.NUMBER``."""
        names = self._store.children(paths.queue_failures(self._flow))
        read = self._store.read_each([paths.queue_failure(self._flow, name) for name in names])
        failures = zip(names, map(readable, read), strict=True)
        return {name: failure for name, failure in failures if failure is not None}

    def decide(self, failures: Mapping[str, Versioned[QueueFailure]]) -> None:
        """Carry out the operator's decision on failures whose segments are removed: append the item
        again, or forget it."""
        for name, failure in failures.items():
            if failure.value.wanted and not self._is_kept(name):
                gone = Remove(paths.queue_failure(self._flow, name), failure.version)
                weights = self.waiting_weights
                lane = min(weights, key=weights.__getitem__)
                if failure.value.wanted == RETRY:
                    failed = failure.value
                    at = failed.location, failed.size, failed.modified, failed.tag, failed.position
                    again = Item(self.lanes[lane].next, *at)
                    self.append({lane: [again]}, {}, [gone], retried=name.partition(".")[0])
                else:
                    self.append({}, {}, [gone])

    def _is_kept(self, name: str) -> bool:
        """Return whether the item's segment is kept; its failure must be kept as long."""
        lane, _, number = name.partition(".")
        kept = self.lanes[lane].segments
        return bool(kept) and kept[0][0].number <= int(number)

    def remove(self, done: Mapping[str, Iterable[tuple[Item, ...]]]) -> None:
        gone = [(lane, part) for lane, parts in done.items() for part in parts]
        still = Check(paths.queue(self._flow), self._head.version)

        def removal(segment: tuple[str, tuple[Item, ...]]) -> list[Write]:
            lane, part = segment
            name = queues.segment_name(part[0].number)
            return [Remove(paths.queue_segment(self._flow, lane, name), ANY)]

        for some in portions(self._store.scale, gone, removal, each=[still]):
            self._store.commit([still, *chain.from_iterable(map(removal, some))])
            for lane, part in some:
                self.lanes[lane].remove(part)

    def _take_over(self, epoch: int) -> None:
        """Write the epoch, and create lanes in place of full ones and of missing ones."""
        head = self._head.value
        full = sum(after >= items.FULL_ITEMS for after in head.next.values())
        new = [str(n) for n in range(len(head.next), full + self._most_open)]
        after = replace(
            head, epoch=max(epoch, head.epoch), next={**head.next, **dict.fromkeys(new, 0)}
        )
        self._write(after, [Put(paths.queue_lane(self._flow, name), None, ABSENT) for name in new])
        self.lanes |= {name: LaneState(0, self.weigh) for name in new}

    def _bucket(self, name: str, data: bytes, stored: Mapping[str, _Bucket]) -> Write:
        path = paths.queue_seen_bucket(self._flow, name)
        if not data:
            return Remove(path, ANY)
        file = stored[name].file
        record = QueueSeen(file=file) if file else QueueSeen(data=base64.b64encode(data).decode())
        return Put(path, record, ANY if name in self._buckets else ABSENT)

    def _write(self, head: Queue, also: Sequence[Write]) -> None:
        put = Put(paths.queue(self._flow), head, self._head.version)
        version, *_ = self._store.commit([put, *also])
        self._head = Versioned(head, version)

    def _load(self) -> None:
        head = self._head.value
        lanes = queues.lanes(self._store, self._flow, head, head.next)
        for name, lane in lanes.items():
            state = LaneState(lane.next, self.weigh)
            for segment in queues.segments(self._store, self._flow, name, lane.segments):
                if isinstance(segment, Unreadable):
                    raise segment.error
                if segment is not None:
                    state.append(items.of_segment(segment.value))
            self.lanes[name] = state


def _segments(part: Sequence[Item]) -> Iterable[QueueSegment]:
    """Yield segments that fit into a znode each. Raises CorruptError for an overlong item."""
    whole = items.segment_of(part)
    if len(codec.encode(whole)) <= SEGMENT_BYTES:
        yield whole
    elif len(part) == 1:
        raise CorruptError(f"{part[0].location[:200]}...: the object's name is too long")
    else:
        half = len(part) // 2
        yield from _segments(part[:half])
        yield from _segments(part[half:])
