"""One flow's discovery: reads its sources and updates the record of partitions. The first run
fences writes of a former owner; a higher epoch in the record ends this task."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from flumeng.connectors.api.finding import Before, Bounds, Finder, Findings
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot import discovered
from flumeng.control.snapshot.partitions import FLOW, POLLS, SITE, ack_path, input_of, step_of
from flumeng.control.snapshot.task_map import read_plans
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Check,
    Put,
    Remove,
    Store,
    Version,
    Versioned,
    readable,
)
from flumeng.control.zookeeper.transaction import singly
from flumeng.journal.serving.account import Account
from flumeng.platform.errors import ConflictError, UnavailableError
from flumeng.platform.metrics.table import Reading
from zkschema import paths
from zkschema.records import Partition, Partitions

log = logging.getLogger(__name__)

TRIES = 5
"""Attempts to write the result of a run when the record has changed."""
SOON_SECONDS = 2.0
"""Pause between runs while a change is due soon."""
GONE_LOOKS = 3
"""Runs without a partition before it counts as gone: a new server may not know it yet."""
FORGET_SECONDS = 600.0
"""Acks of gone partitions are deleted after this time: the partition may return."""
OWN_CLOCKS = (FLOW, POLLS, SITE)
"""Inputs with times by this cluster's clocks: their lag grows also without new events."""
AUTHOR = "flumeng"
NAMED = 3


@runtime_checkable
class Measured(Protocol):
    """A finder with metrics of its own."""

    def readings(self) -> Iterator[Reading]: ...


class SupersededError(ConflictError):
    def __init__(self, seen: int) -> None:
        super().__init__(f"another discovery task, of epoch {seen}, has taken over the partitions")
        self.seen = seen


@dataclass(frozen=True)
class Outcome:
    """``trouble``: obstacles found. ``more``: look again at once; ``soon``: look again soon;
    ``due_seconds``: time until the next look at the latest."""

    trouble: str = ""
    soon: bool = False
    more: bool = False
    due_seconds: float | None = None


class DiscoveryTask:
    """Discovers the partitions of one flow. Used by one thread at a time."""

    def __init__(
        self,
        store: Store,
        flow: str,
        epoch: int,
        finders: Sequence[Finder],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        forget_seconds: float = FORGET_SECONDS,
    ) -> None:
        self._store = store
        self._flow = flow
        self._epoch = epoch
        self._finders = finders
        self._clock = clock
        self._wall = wall
        self._forget_seconds = forget_seconds
        self._looks: dict[str, int] = {}
        self._gone_at: dict[str, float] = {}
        self._logged: tuple[str, ...] = ()
        self.partitions: Mapping[str, Partition] = {}

    def discover(self) -> Outcome:
        """Find the partitions and update their record. Raises SupersededError, CorruptError,
        UserError, UnavailableError."""
        record = self._read()
        before = _known(record)
        findings = self._find(before)
        now = self._clock()
        self._looks = {name: self._looks.get(name, 0) + 1 for name in findings.gone}
        self._gone_at = {name: self._gone_at.get(name, now) for name in findings.gone}
        for _ in range(TRIES):
            try:
                return self._follow(record, findings)
            except SupersededError:
                raise
            except ConflictError:
                record = self._read()
                if _known(record) != before:  # another task, of a lower epoch, has found some
                    before = _known(record)
                    findings = self._find(before)
        raise UnavailableError(f"other writers keep changing {paths.partitions(self._flow)}")

    def accounts(self) -> dict[str, Account]:
        """Return known partitions' accounts. Raises CorruptError, UserError, UnavailableError."""
        partitions = self.partitions
        bounds: dict[str, Bounds] = {}
        for finder in self._finders:
            bounds |= finder.bounds(partitions)
        acks = self._acks(list(bounds))
        accounts = {n: _account(n, partitions[n], bounds[n], acks.get(n)) for n in bounds}
        behind = {name: account for name, account in accounts.items() if account.unacked > 0}
        oldest = self._times({name: max(lag.acked, lag.floor) for name, lag in behind.items()})
        newest = self._times(
            {
                name: account.safe - account.step
                for name, account in behind.items()
                if input_of(name) not in OWN_CLOCKS
            }
        )
        return {
            name: replace(account, oldest_unacked_us=oldest.get(name), newest_us=newest.get(name))
            for name, account in accounts.items()
        }

    def offsets(self, partitions: Collection[str], to: str) -> dict[str, int]:
        offsets: dict[str, int] = {}
        for finder in self._finders:
            offsets |= finder.offsets(partitions, to)
        return offsets

    def readings(self) -> Iterator[Reading]:
        """Yield the metrics of the finders. Thread-safe."""
        for finder in self._finders:
            if isinstance(finder, Measured):
                yield from finder.readings()

    def _times(self, at: Mapping[str, int]) -> dict[str, int]:
        times: dict[str, int] = {}
        for finder in self._finders if at else ():
            times |= finder.times(at)
        return times

    def close(self) -> None:
        for finder in self._finders:
            finder.close()

    def _read(self) -> Versioned[Partitions] | None:
        record = readable(discovered.read(self._store, [self._flow])[0])
        if record is not None and record.value.epoch > self._epoch:
            raise SupersededError(record.value.epoch)
        self.partitions = record.value.partitions if record else {}
        return record

    def _find(self, before: Before) -> Findings:
        """Merge the findings of all finders; a partition gone for one may be offered by another."""
        parts: list[Findings] = []
        troubles: list[str] = []
        for finder in self._finders:
            try:
                parts.append(finder.find(before))
            except UnavailableError as error:
                if len(self._finders) == 1:
                    raise
                troubles.append(str(error))
        offers = {name: offer for part in parts for name, offer in part.offers.items()}
        return Findings(
            offers,
            tuple(text for part in parts for text in part.scope),
            frozenset(name for part in parts for name in part.gone).difference(offers),
            frozenset(name for part in parts for name in part.kept),
            {key: why for part in parts for key, why in part.held.items()},
            tuple(note for part in parts for note in part.notes),
            bool(parts) and all(part.bounded for part in parts),
            any(part.more for part in parts),
            any(part.soon for part in parts),
            min((part.due_seconds for part in parts if part.due_seconds is not None), default=None),
            (*(text for part in parts for text in part.troubles), *troubles),
            tuple(text for part in parts for text in part.lacks),
            max((part.remember_seconds for part in parts), default=0.0),
        )

    def _follow(self, record: Versioned[Partitions] | None, findings: Findings) -> Outcome:
        before = record.value if record else Partitions()
        leaving = _leaving(before, findings)
        ending = [name for name in leaving if before.partitions[name].end is not None]
        names = [*leaving, *(before.partitions if findings.bounded else ())]
        now = self._clock()
        acks = self._acks(names)
        after, unneeded = _merged(
            before,
            findings,
            self._epoch,
            acks=acks,
            gone={name for name, looks in self._looks.items() if looks >= GONE_LOOKS},
            forgotten=self._forgotten(now, findings.remember_seconds),
            read=self._planned() if ending else (),
        )
        if record is None or after != before:
            if unneeded and record is not None:
                self._drop_acks(unneeded, record.version)
            expect = record.version if record else ABSENT
            for part in discovered.transactions(
                self._flow, before, after, expect, self._store.scale
            ):
                self._store.commit(part)
            self._log(before, after, findings.offers)
        elif findings.bounded and _is_read(after.partitions, acks):
            self._stop(record.version)
        self.partitions = after.partitions
        self._tell(findings.notes)
        texts = [*findings.held.values(), *findings.troubles, *findings.lacks]
        waits = leaving or findings.held or findings.troubles or findings.bounded
        soon = bool(waits) or findings.soon
        trouble = "; ".join(texts)
        return Outcome(trouble, soon, findings.more, findings.due_seconds)

    def _acks(self, names: Sequence[str]) -> dict[str, int]:
        records = self._store.read_each([ack_path(self._flow, name) for name in names])
        acks = zip(names, map(readable, records), strict=True)
        return {name: ack.value.offset for name, ack in acks if ack is not None}

    def _forgotten(self, now: float, remember_seconds: float) -> set[str]:
        """Return the partitions gone for so long that they count as new if they return."""
        names = [n for n, at in self._gone_at.items() if now - at >= self._forget_seconds]
        if not remember_seconds or not names:
            return set(names)
        acks = self._store.read_each([ack_path(self._flow, name) for name in names])
        since = self._wall() - remember_seconds
        return {
            name
            for name, ack in zip(names, acks, strict=True)
            if ack is None or (isinstance(ack, Versioned) and ack.written < since)
        }

    def _planned(self) -> frozenset[str]:
        plans = read_plans(self._store, [self._flow])
        tasks = plans[self._flow].value.tasks.values() if plans else ()
        return frozenset(name for task in tasks for name in task.partitions)

    def _drop_acks(self, partitions: Sequence[str], version: Version) -> None:
        """Delete acks before the record is written, so that an interrupted deletion is repeated."""
        cursors = self._store.children(paths.acks(self._flow))
        acks = [paths.ack(self._flow, cursor, name) for cursor in cursors for name in partitions]
        acks += [ack_path(self._flow, name) for name in partitions if input_of(name) == FLOW]
        there = [path for path, ack in zip(acks, self._store.read_each(acks), strict=True) if ack]
        still = Check(paths.partitions(self._flow), version)
        gone = (Remove(path, ANY) for path in there)
        for part in singly(self._store.scale, gone, each=[still]):
            self._store.commit([still, *part])

    def _stop(self, version: Version) -> None:
        record = self._store.read(paths.flow(self._flow))
        if record is None or record.value.state != "running":
            return
        for finder in self._finders:
            finder.finished()
        why = "it has read all its partitions up to their end offsets"
        stopped = replace(record.value, state="stopped")
        still = Check(paths.partitions(self._flow), version)
        change = Put(paths.flow(self._flow), stopped, record.version)
        operator = Operator(self._store, author=AUTHOR, reason=why, now=time.time())
        operator.commit([still, change], f"flow stop {self._flow}")
        log.info("flow %s is stopped: %s", self._flow, why)

    def _log(self, before: Partitions, after: Partitions, offered: Collection[str]) -> None:
        came = after.partitions.keys() - before.partitions.keys()
        went = before.partitions.keys() - after.partitions.keys()
        if came or went:
            log.info(
                "flow %s has %d partitions: %d are new, %d others are gone",
                *(self._flow, len(after.partitions), len(came), len(went)),
            )
        ended = [
            name
            for name, partition in before.partitions.items()
            if partition.end is None
            and name in after.partitions
            and name not in offered
            and after.partitions[name].end is not None
        ]
        if ended:
            log.warning(
                "flow %s: %d partitions are gone or unwanted, so reading ends at their acks: %s",
                *(self._flow, len(ended), ", ".join(ended[:NAMED])),
            )

    def _tell(self, notes: tuple[str, ...]) -> None:
        if notes != self._logged:
            for note in notes:
                log.warning("flow %s: %s", self._flow, note)
        self._logged = notes


def _known(record: Versioned[Partitions] | None) -> Before:
    if record is None:
        return Before()
    known = record.value
    return Before(frozenset(known.partitions), known.scope, known.accepted)


def _account(name: str, partition: Partition, bounds: Bounds, acked: int | None) -> Account:
    safe = bounds.safe if partition.end is None else min(bounds.safe, partition.end)
    offset = partition.start if acked is None else acked
    return Account(
        term=0,
        durability="",
        floor=bounds.floor,
        acked=min(offset, safe),
        safe=safe,
        bytes=0,
        max_bytes=0,
        lost=0,
        waits_at=None,
        closed=partition.end is not None,
        oldest_unacked_us=None,
        step=step_of(name),
        unacked_bytes=bounds.bytes_from(min(offset, safe)) if bounds.bytes_from else None,
    )


def _leaving(before: Partitions, findings: Findings) -> list[str]:
    if findings.troubles:
        return []
    stay = findings.offers.keys() | findings.kept
    return [name for name in before.partitions if name not in stay]


def _merged(
    before: Partitions,
    findings: Findings,
    epoch: int,
    *,
    acks: Mapping[str, int],
    gone: Collection[str],
    forgotten: Collection[str],
    read: Collection[str],
) -> tuple[Partitions, list[str]]:
    """Return the new record, and the partitions whose acks are to be deleted.

    1. A wanted partition is registered once; its start is decided then.
    2. An unwanted or missing partition gets an ``end``, its ack, until it is wanted again.
    3. A partition acked up to its end, and that no task reads, is removed, but its ack stays. If
       it is gone, it waits until it is forgotten, and its acks are then deleted.
    4. While some sources have not answered, no partition ends.

    ``acks``: of partitions that may end. ``gone``: partitions that are certainly gone.
    ``forgotten``: partitions gone for so long that their acks are deleted.
    """
    partitions: dict[str, Partition] = {}
    unneeded: list[str] = []
    left = set(_leaving(before, findings))
    for name, partition in before.partitions.items():
        acked = acks.get(name, partition.start)
        if name in findings.offers:
            after = replace(partition, end=findings.offers[name].end)
        elif name not in left:
            after = partition
        elif partition.end is None:
            uncertain = name in findings.gone and name not in gone
            after = partition if uncertain else replace(partition, end=acked)
        elif acked < partition.end or name in read:
            after = partition
        elif name not in findings.gone:
            continue
        elif name in forgotten:
            unneeded.append(name)
            continue
        else:
            after = partition
        partitions[name] = after
    for name, offer in findings.offers.items():
        if name not in partitions:
            partitions[name] = Partition(start=offer.start, end=offer.end)
    accepted = {key: to for key, to in before.accepted.items() if key in findings.held}
    after_all = replace(
        before,
        partitions=partitions,
        epoch=epoch,
        scope=before.scope if findings.troubles else tuple(sorted(findings.scope)),
        held=dict(findings.held),
        accepted=before.accepted if findings.troubles else accepted,
    )
    return after_all, unneeded


def _is_read(partitions: Mapping[str, Partition], acks: Mapping[str, int]) -> bool:
    return all(
        partition.end is not None and acks.get(name, partition.start) >= partition.end
        for name, partition in partitions.items()
    )
