"""Discovery of objects: appends new ones to the queue's lanes, in bounded time, resuming the last
search. One transaction appends items and marks them as seen: each object is appended once."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, islice

from flumeng.connectors.api.finding import Before, Bounds, FinderBase, Findings, FindingTask, Offer
from flumeng.connectors.objects.cleanup import Cleanup
from flumeng.connectors.objects.lanes import LaneState, spread, weigh
from flumeng.connectors.objects.listing import Lister
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.connectors.objects.pages import Listed
from flumeng.connectors.objects.queue_log import QueueLog
from flumeng.connectors.objects.seen_hashes import LARGE, SMALL
from flumeng.connectors.objects.seen_objects import Seen, Settling, seen
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import Item
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import FlumengError

AHEAD_ITEMS = 50_000
APPENDED_AT_ONCE = 8_000
APPENDED_BYTES = 400_000
"""Bytes of names and tags in one append; keeps below ZooKeeper's largest transaction."""
SEARCH_SECONDS = 10.0
"""Time limit of listing in a search, and of the removal of acked items before it."""
NAMED = 3
WINDOW_SECONDS = 3600.0
"""With ``order: modified``, a new object may be older than others by this: S3 dates a multipart
upload to its beginning."""


@dataclass
class _Pass:
    """One listing of all paths. ``held``: with ``order: name``, paths with an unsettled object,
    which blocks later ones; ``listed``: number of objects; ``young``: some object was unsettled;
    ``troubles``: errors of incompletely listed paths."""

    pages: Iterator[tuple[str, list[Listed]]]
    held: set[str] = field(default_factory=set)
    listed: int = 0
    troubles: list[str] = field(default_factory=list)
    young: bool = False
    unnamed: int = 0
    unnamed_example: str = ""


@dataclass(frozen=True)
class Surroundings:
    clock: Callable[[], float] = time.monotonic
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000
    lister: Callable[[str], Lister] = Lister
    cleanup: Callable[[ObjectsSource], Cleanup] = Cleanup
    take: Callable[..., QueueLog] = QueueLog.take


class ObjectsFinder(FinderBase):
    no_times = "a queue is read from earliest or latest, not from a time"

    def __init__(
        self,
        source: ObjectsSource,
        store: Store,
        task: FindingTask,
        around: Surroundings | None = None,
        *,
        most_waiting: int = AHEAD_ITEMS,
    ) -> None:
        self._source = source
        self._store = store
        self._task = task
        self._around = around or Surroundings()
        self._clock = self._around.clock
        self._most_waiting = most_waiting
        self._log: QueueLog | None = None
        self._seen: Seen | None = None
        self._settling = Settling(source.settle_seconds)
        self._lister = cache(self._around.lister)
        """One lister for each path, whose threads are bounded."""
        self._pass: _Pass | None = None
        self._new: list[tuple[str, Listed]] = []
        """Settled new objects to be appended, with their paths."""
        self._new_names: set[str] = set()
        """The names in ``_new``: paths may overlap."""
        self._next_pass = 0.0
        self._troubles: tuple[str, ...] = ()
        self._cleanup_troubles: tuple[str, ...] = ()
        """Reasons why acked objects remain."""

    @classmethod
    def of(cls, options: ObjectsSource, store: Store, task: FindingTask) -> ObjectsFinder:
        return cls(options, store, task)

    def find(self, before: Before) -> Findings:
        """Process and remove acked objects, and append new ones. Raises ConflictError when another
        owner writes the queue. After an error, all state is reread."""
        del before
        try:
            log, seen = self._taken()
            log.read_acks()
            failures = log.failures()
            done = self._clear(log, failures.keys())
            log.decide(failures)
            more = (not log.complete and self._list(log, seen)) or not done
        except FlumengError:
            self._log = None
            raise
        ends = {n: items.offset_of(log.lanes[lane].next) for n, lane in log.partitions.items()}
        return Findings(
            {name: Offer(0, end if log.complete else None) for name, end in ends.items()},
            tuple(f"objects {path}" for path in self._source.paths),
            bounded=log.complete,
            more=more,
            soon=log.kept_items >= self._most_waiting,
            troubles=(*self._troubles, *self._cleanup_troubles),
        )

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        lanes = self._lanes(partitions)
        return {
            name: Bounds(
                state.segments[0][0].start if state.segments else items.offset_of(state.next),
                items.offset_of(state.next),
                state.bytes_from,
            )
            for name, state in lanes.items()
        }

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        moments = {}
        for name, state in self._lanes(at).items():
            number = items.number_of(at[name])
            kept = (item for part in list(state.segments) for item in part if item.number >= number)
            if first := next(kept, None):
                moments[name] = first.modified_us
        return moments

    def close(self) -> None:
        self._pass = None

    def _lanes(self, partitions: Collection[str]) -> dict[str, LaneState]:
        log = self._log
        if log is None:
            return {}
        return {
            name: log.lanes[lane] for name, lane in log.partitions.items() if name in partitions
        }

    def _taken(self) -> tuple[QueueLog, Seen]:
        """Return the queue under this task's epoch, and the seen objects; reread after an error."""
        if self._log is None or self._seen is None:
            self._pass, self._new, self._new_names = None, [], set()
            source, task = self._source, self._task
            log = self._around.take(
                self._store,
                task.flow,
                task.epoch,
                source.lanes,
                rules=f"order {source.order}, rewritten {source.rewritten}",
                seen_in=source.seen_location,
                weigh=weigh(source),
            )
            self._seen = seen(
                source.order,
                rewritten=source.rewritten == "read",
                window_seconds=max(WINDOW_SECONDS, source.settle_seconds),
                buckets=log.seen(),
                sizes=LARGE if source.seen_location else SMALL,
            )
            self._log = log
        return self._log, self._seen

    def _clear(self, log: QueueLog, failed: Collection[str]) -> bool:
        """Process and remove acked segments. Returns whether the time sufficed."""
        cleanup, left = self._around.cleanup(self._source), []
        until, in_time = self._clock() + SEARCH_SECONDS, True
        for lane, state in log.lanes.items():
            cleared = []
            for part in state.done():
                in_time = self._clock() < until
                if not in_time:
                    break
                done = [item for item in part if f"{lane}.{item.number}" not in failed]
                if why := cleanup.clear(done):
                    left.append(why)
                    break
                cleared.append(part)
            log.remove({lane: cleared})
        self._cleanup_troubles = tuple(left[:NAMED])
        return in_time

    def _list(self, log: QueueLog, seen: Seen) -> bool:
        """Append new objects while there is room. Returns whether to continue at once."""
        until = self._clock() + SEARCH_SECONDS
        while self._clock() < until:
            room = self._most_waiting - log.kept_items
            if len(self._new) >= min(room, APPENDED_AT_ONCE):
                if room <= 0:
                    return False
                self._append(log, seen)
                continue
            if self._pass is None:
                if self._clock() < self._next_pass:
                    break
                self._pass = _Pass(self._pages(seen))
            page = next(self._pass.pages, None)
            if page is None:
                self._append(log, seen)
                self._end_pass(log, seen)
                return False
            self._take(*page, seen)
        self._append(log, seen)
        return self._pass is not None

    def _pages(self, seen: Seen) -> Iterator[tuple[str, list[Listed]]]:
        in_order = self._source.order == "name"
        for path, location in zip(self._source.paths, self._source.locations, strict=True):
            run = self._pass
            assert run is not None
            try:
                listing = self._lister(location).listing(seen.after(path), strict=in_order)
                for page in listing:
                    run.listed += len(page)
                    yield path, page
                    if path in run.held:
                        break
            except FlumengError as error:
                run.troubles.append(f"{path}: {error}")
                continue
            run.unnamed += listing.unnamed
            run.unnamed_example = run.unnamed_example or listing.unnamed_example

    def _take(self, path: str, page: list[Listed], seen: Seen) -> None:
        now_us, now = self._around.now_us(), self._clock()
        in_order = self._source.order == "name"
        new = seen.new(path, [listed for listed in page if self._source.wants(listed.modified_us)])
        settled = self._settling.settled(new, now_us, now, in_order=in_order)
        if len(settled) < len(new) and self._pass is not None:
            self._pass.young = True
            if in_order:
                self._pass.held.add(path)
        for listed in settled:
            if (name := listed.name) not in self._new_names:
                self._new_names.add(name)
                self._new.append((path, listed))

    def _append(self, log: QueueLog, seen: Seen) -> None:
        while (most := min(self._most_waiting - log.kept_items, _fitting(self._new))) > 0:
            taken, self._new = self._new[:most], self._new[most:]
            lanes = spread((listed for _, listed in taken), log.waiting_weights, log.weigh)
            appended: defaultdict[str, list[Item]] = defaultdict(list)
            by_path: defaultdict[str, list[Listed]] = defaultdict(list)
            for (path, listed), lane in zip(taken, lanes, strict=True):
                appended[lane].append(Item(log.lanes[lane].next + len(appended[lane]), *listed))
                by_path[path].append(listed)
            for path, objects in by_path.items():
                seen.add(path, objects)
            log.append(appended, seen.changed())
            self._new_names.difference_update(listed.name for _, listed in taken)

    def _end_pass(self, log: QueueLog, seen: Seen) -> None:
        run, self._pass = self._pass, None
        assert run is not None
        self._next_pass = self._clock() + self._source.discovery_seconds
        self._settling.passed()
        complete = not (run.troubles or run.held or self._new)
        if complete and run.listed:  # an unmounted directory is empty: do not forget its objects
            seen.passed(self._source.paths, self._around.now_us())
            if changed := seen.changed():
                log.forget(changed)
        if complete and not run.young and self._source.written_before is not None:
            log.end()
        troubles = run.troubles[:NAMED]
        if len(run.troubles) > NAMED:
            troubles.append(f"{len(run.troubles) - NAMED} more paths cannot be listed")
        if run.unnamed:
            objects = "1 object has" if run.unnamed == 1 else f"{run.unnamed} objects have"
            example = f"such as {run.unnamed_example}, and are skipped: rename to read"
            troubles.append(f"{objects} an unsupported name, {example}")
        self._troubles = tuple(troubles)


def _fitting(new: Sequence[tuple[str, Listed]]) -> int:
    sizes = accumulate(len(listed.location.encode()) + len(listed.tag) for _, listed in new)
    return bisect_right(list(islice(sizes, APPENDED_AT_ONCE)), APPENDED_BYTES)
