"""How far Kafka's partitions can be read now: one thread and one client for all tasks of a process
that read the same brokers in the same way.

The brokers are asked again and again, for all partitions together: for the ids of their topics, for
their ends, and now and then for their beginnings. What they do not answer is not known; brokers
that are away cost the flows of others nothing.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass

from flumeng.connectors.kafka.brokers import Brokers, Described, Place
from flumeng.connectors.kafka.names import ID_CHARACTERS, KafkaPartition, parse
from flumeng.platform import vital
from flumeng.platform.errors import FlumengError, UnavailableError

log = logging.getLogger(__name__)

POLL_SECONDS = 0.3
QUIET_SECONDS = 1.0
"""Between two looks while nothing comes."""
QUIET_AFTER_SECONDS = 10.0
BEGINNINGS_SECONDS = 10.0
ABSENT_LOOKS = 3
"""Brokers that have just started may not know a topic yet."""
BACKOFF_MOST_SECONDS = 10.0


@dataclass(frozen=True)
class Extent:
    """A partition holds offsets from ``floor`` up to ``safe``. ``topic_id`` is the whole id.
    ``trouble``: the brokers say something else instead. Where the topic was ``remade``, ``safe`` is
    the last known end of the old one, or 0. ``leader_epoch`` is of the leader that said ``safe``.
    """

    topic_id: str = ""
    floor: int = 0
    safe: int = 0
    trouble: str = ""
    remade: bool = False
    leader_epoch: int | None = None


@dataclass(frozen=True)
class _Owner:
    partitions: frozenset[str]
    on_change: Callable[[], None]


class ExtentWatcher:
    """Its methods may be called from any thread, and none but ``compare`` blocks. The thread runs
    while somebody watches. ``clock`` gives seconds that only grow."""

    def __init__(self, brokers: Brokers, clock: Callable[[], float] = time.monotonic) -> None:
        self._brokers = brokers
        self._clock = clock
        self._lock = threading.Lock()
        self._owners: dict[Hashable, _Owner] = {}
        self._extents: dict[str, Extent] = {}
        self._looks = itertools.count(1)
        self._not_before: dict[str, int] = {}
        self._wake = threading.Event()
        self._runs = False
        # Of the thread alone:
        self._floors: dict[Place, int] = {}
        self._floors_at = float("-inf")
        self._absent: dict[str, int] = {}
        self._last: dict[str, Extent] = {}
        """Of each partition what the brokers said last; its topic may be made anew."""
        self._changed_at = float("-inf")
        self._failures = 0

    def watch(
        self, owner: Hashable, partitions: Iterable[str], on_change: Callable[[], None]
    ) -> None:
        """From now on ``on_change``, which only enqueues, is called after each change of what
        ``of`` says of these, instead of those that this owner watched before."""
        with self._lock:
            self._owners[owner] = _Owner(frozenset(partitions), on_change)
            if not self._runs:
                self._runs = True
                vital.start("kafka positions", self._run)
        self._wake.set()

    def forget(self, owner: Hashable) -> None:
        with self._lock:
            self._owners.pop(owner, None)
        self._wake.set()

    def of(self, partitions: Iterable[str]) -> dict[str, Extent]:
        """Lacks those of which the brokers say nothing now."""
        found = ((name, self._extents.get(name)) for name in partitions)
        return {name: extent for name, extent in found if extent is not None}

    def compare(self, partition: str, offset: int, leader_epoch: int) -> None:
        """See ``Brokers``. This one waits for them."""
        place = parse(partition)
        self._brokers.compare((place.topic, place.number), offset, leader_epoch)

    def refresh(self, partitions: Collection[str]) -> None:
        """What ``of`` says of these next is from after this call."""
        with self._lock:
            number = next(self._looks)
            self._not_before.update(dict.fromkeys(partitions, number))
            for name in partitions:
                self._extents.pop(name, None)
        self._wake.set()

    # From here on everything happens in the watcher's thread.

    def _run(self) -> None:
        while True:
            self._wake.clear()
            with self._lock:
                wanted = frozenset[str]().union(*(o.partitions for o in self._owners.values()))
                number = next(self._looks)
                if not self._owners:
                    self._runs = False
                    self._extents, self._not_before = {}, {}
                    return
            self._look(wanted, number)
            self._wake.wait(self._pause())

    def _pause(self) -> float:
        if self._failures:
            return float(min(POLL_SECONDS * 2**self._failures, BACKOFF_MOST_SECONDS))
        quiet = self._clock() - self._changed_at > QUIET_AFTER_SECONDS
        return QUIET_SECONDS if quiet else POLL_SECONDS

    def _look(self, wanted: frozenset[str], number: int) -> None:
        try:
            found = self._ask({name: parse(name) for name in wanted})
        except UnavailableError as error:
            self._fail(logging.WARNING, error)
            found = {}
        except FlumengError as error:
            self._fail(logging.ERROR, error)
            found = dict.fromkeys(wanted, Extent(trouble=str(error)))
        except Exception as error:
            log.exception("a fault while the brokers were asked")
            self._failures = min(self._failures + 1, 10)
            found = dict.fromkeys(wanted, Extent(trouble=f"a fault of flumeng: {error!r}"))
        else:
            if self._failures:
                log.info("brokers answer again")
            self._failures = 0
        self._learn(found, number)

    def _fail(self, level: int, error: FlumengError) -> None:
        if not self._failures:
            log.log(level, "partitions wait: %s", error)
        self._failures = min(self._failures + 1, 10)

    def _ask(self, partitions: Mapping[str, KafkaPartition]) -> dict[str, Extent]:
        described = self._brokers.describe({one.topic for one in partitions.values()})
        troubles = self._troubles(partitions, described)
        places = {
            (one.topic, one.number): name
            for name, one in partitions.items()
            if name not in troubles and one.topic in described.topics
        }
        latest = self._brokers.offsets(places, "latest")
        ends = latest.found
        self._find_floors(places)
        found = {
            name: self._ended(name, partitions[name], described, why)
            for name, why in troubles.items()
        }
        for place, name in places.items():
            if place in ends and place in self._floors:
                topic_id = described.topics[place[0]].id
                floor = min(self._floors[place], ends[place])
                epoch = latest.epochs.get(place)
                found[name] = Extent(topic_id, floor, ends[place], leader_epoch=epoch)
        sound = {name: extent for name, extent in found.items() if not extent.trouble}
        self._last = {n: one for n, one in self._last.items() if n in partitions} | sound
        return found

    def _ended(self, name: str, one: KafkaPartition, described: Described, why: str) -> Extent:
        topic = described.topics.get(one.topic)
        if topic is None or topic.id[:ID_CHARACTERS] == one.topic_id:
            return Extent(trouble=why)
        last = self._last.get(name, Extent())
        return Extent(last.topic_id, safe=last.safe, trouble=why, remade=True)

    def _troubles(
        self, partitions: Mapping[str, KafkaPartition], described: Described
    ) -> dict[str, str]:
        """The partitions of topics that are not there, or not the same any more."""
        self._absent = {topic: self._absent.get(topic, 0) + 1 for topic in described.absent}
        troubles: dict[str, str] = {}
        for name, one in partitions.items():
            topic = described.topics.get(one.topic)
            if topic is not None and topic.id[:ID_CHARACTERS] != one.topic_id:
                troubles[name] = f"the topic {one.topic} was deleted and made anew"
            elif topic is not None and one.number not in topic.partitions:
                troubles[name] = f"the topic {one.topic} has no partition {one.number}"
            elif self._absent.get(one.topic, 0) >= ABSENT_LOOKS:
                troubles[name] = f"the topic {one.topic} was deleted"
            elif one.topic in described.refused:
                troubles[name] = described.refused[one.topic]
        return troubles

    def _find_floors(self, places: Collection[Place]) -> None:
        """They move seldom, and a range that is gone is noticed when it is read."""
        now = self._clock()
        due = now - self._floors_at >= BEGINNINGS_SECONDS
        wanted = [place for place in places if due or place not in self._floors]
        if wanted:
            found = self._brokers.offsets(wanted, "earliest").found
            self._floors = {**(self._floors if not due else {}), **found}
        if due:
            self._floors_at = now

    def _learn(self, told: Mapping[str, Extent], number: int) -> None:
        with self._lock:
            told = {n: one for n, one in told.items() if number > self._not_before.get(n, 0)}
            changed = {
                name
                for name in told.keys() | self._extents.keys()
                if told.get(name) != self._extents.get(name)
            }
            self._extents = dict(told)
            self._not_before = {n: at for n, at in self._not_before.items() if n not in told}
            calls = [o.on_change for o in self._owners.values() if o.partitions & changed]
        if changed:
            self._changed_at = self._clock()
        for call in calls:
            call()
