"""Fenced acks of one task: only the last claimant can move them.

A claim rewrites every ack, which raises the ack's znode version, so writes of an older owner fail.
These versions are the authority, not sessions and epochs. A new ack requires a registered
partition, whose name is never reused: a recreated ack would restart at version 0.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence

from flumeng.agent.collector.publisher import Publisher
from flumeng.connectors.api.ranged import Progress, Range
from flumeng.control.snapshot import partitions as partition_registry
from flumeng.control.snapshot.partitions import Registered
from flumeng.control.zookeeper import ABSENT, Check, Expected, Put, Store, Version, Write
from flumeng.control.zookeeper.transaction import portions
from flumeng.platform.errors import ConflictError
from zkschema.records import Ack, Joined
from zkschema.table import ZPath

log = logging.getLogger(__name__)

CLAIM_AT_ONCE = 500


class SupersededError(ConflictError):
    """An ack or the intent of the task has a higher ``epoch``, so another owner may work."""

    def __init__(self, text: str, epoch: int) -> None:
        super().__init__(text)
        self.epoch = epoch


class Acks:
    """The acks of one task's partitions under one claim. ``offsets``: partition -> offset below
    which everything is acked. ``emitted``: all events that begin below it are in the sinks; differs
    from ``offsets`` only where ``rules`` join lines. ``sure``: see ``Progress``. After an error the
    outcome of a write may be unknown: claim again."""

    def __init__(
        self, store: Store, publisher: Publisher, flow: str, epoch: int, rules: str = ""
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._flow = flow
        self._paths: dict[str, ZPath[Ack]] = {}
        self._versions: dict[str, Version] = {}
        self._moving = threading.Lock()
        """Held while acks are written: until the new version is known, our ack looks foreign."""
        self._rules = rules
        self.epoch = epoch
        self.offsets: dict[str, int] = {}
        self.emitted: dict[str, int] = {}
        self.sure: dict[str, int] = {}
        self.leader_epochs: dict[str, int | None] = {}
        """Leader epoch of each partition as of its ack, see ``Ack``."""
        self.inherited: set[str] = set()

    @classmethod
    def claim(
        cls,
        store: Store,
        publisher: Publisher,
        flow: str,
        epoch: int,
        partitions: Iterable[str],
        *,
        rules: str = "",
    ) -> Acks:
        """Claim ``partitions`` and return their acks. Without an ack, a registered one begins at
        its start, and an unregistered one is left out. Raises SupersededError when a partition has
        a higher epoch, ConflictError when an ack was written in the meantime: claim again."""
        acks = cls(store, publisher, flow, epoch, rules)
        names = sorted(partitions)
        for start in range(0, len(names), CLAIM_AT_ONCE):
            acks._claim(names[start : start + CLAIM_AT_ONCE])
        return acks

    def _claim(self, names: Sequence[str]) -> None:
        self._paths |= {name: partition_registry.ack_path(self._flow, name) for name in names}
        acks = self._store.read_many([self._paths[name] for name in names])
        fresh = [name for name, ack in zip(names, acks, strict=True) if ack is None]
        registered = self._registered(fresh) if fresh else {}
        claims: dict[str, list[Write]] = {}
        for name, ack in zip(names, acks, strict=True):
            if ack is not None:
                if ack.value.epoch > self.epoch:
                    raise SupersededError(
                        f"partition {name} has epoch {ack.value.epoch}, this task {self.epoch}",
                        ack.value.epoch,
                    )
                self.inherited.add(name)
                progress = self._progress(ack.value)
                self.leader_epochs[name] = ack.value.leader_epoch
            elif name not in registered:
                log.info("partition %s is no longer registered, so it is not read", name)
                continue
            else:
                progress = Progress(registered[name].start, registered[name].start)
                claims[name] = [registered[name].check]
            leader_epoch = self.leader_epochs.setdefault(name, None)
            put = self._put(name, progress, leader_epoch, ack.version if ack else ABSENT)
            claims[name] = [*claims.get(name, ()), put]
            self._know(name, progress)
        for part in portions(self._store.scale, claims, claims.__getitem__):
            writes = [write for name in part for write in claims[name]]
            checks = dict.fromkeys(write for write in writes if isinstance(write, Check))
            puts = [write for write in writes if not isinstance(write, Check)]
            self._versions.update(zip(part, self._store.commit([*checks, *puts]), strict=True))

    def _registered(self, names: Sequence[str]) -> dict[str, Registered]:
        registered = partition_registry.registered(self._store, self._flow, names)
        unseen = [name for name in names if name not in registered]
        if unseen:
            self._see_newest(unseen[0])
            registered = partition_registry.registered(self._store, self._flow, names)
        return registered

    def _see_newest(self, name: str) -> None:
        """Make new registrations visible: even a refused transaction waits for earlier writes."""
        path = partition_registry.registration(self._flow, name)
        with contextlib.suppress(ConflictError):
            self._store.commit([Check(path, Version(0))])

    def advance(
        self,
        ranges: Sequence[Range],
        also: Sequence[Write] = (),
        joined: Mapping[str, Progress] | None = None,
    ) -> None:
        """Move the acks to the ends of ``ranges``, or to the positions in ``joined``, in one
        transaction with the writes ``also``. Each range begins at its ack; an empty range only
        records its leader's epoch. Raises ConflictError after another claim, UnavailableError when
        the outcome is unknown."""
        moved: dict[str, Progress] = {}
        epochs = {piece.partition: piece.leader_epoch for piece in ranges}
        for piece in ranges:
            name = piece.partition
            ack, emitted = self.offsets[name], self.emitted[name]
            assert piece.start == ack <= piece.end, f"{piece} does not follow the ack {ack}"
            at = Progress(piece.end, max(emitted, piece.end)) if joined is None else joined[name]
            assert ack <= at.offset <= at.emitted >= emitted, f"{at} of {name} goes back"
            if (
                at != Progress(ack, emitted, self.sure[name])
                or epochs[name] != self.leader_epochs[name]
            ):
                moved[name] = at
        if not moved:
            if also:
                self._store.commit([self.check(ranges[0].partition), *also])
            return
        writes = [
            self._put(name, at, epochs[name], self._versions[name]) for name, at in moved.items()
        ]
        with self._moving:
            versions = self._publisher.commit(writes, also)
            for (name, at), version in zip(moved.items(), versions, strict=True):
                self._versions[name] = version
                self._know(name, at)
                self.leader_epochs[name] = epochs[name]

    def check(self, partition: str) -> Check:
        """Return a check that fails once another owner has claimed or moved ``partition``'s ack."""
        with self._moving:
            return Check(self._paths[partition], self._versions[partition])

    def require_ours(self, partitions: Iterable[str]) -> None:
        """Raise ConflictError when an ack was written by another owner or an operator, and
        UnavailableError when the acks cannot be read."""
        names = sorted(partitions)
        with self._moving:
            acks = self._store.read_many([self._paths[name] for name in names])
            for name, ack in zip(names, acks, strict=True):
                if ack is None or ack.version != self._versions[name]:
                    raise ConflictError(f"another owner of partition {name} has written its ack")

    def _know(self, partition: str, at: Progress) -> None:
        self.offsets[partition], self.emitted[partition] = at.offset, at.emitted
        self.sure[partition] = at.sure

    def _progress(self, ack: Ack) -> Progress:
        if ack.joined is not None and ack.joined.rules == self._rules:
            same_offset = ack.joined.offset == ack.offset
            return Progress(ack.offset, ack.emitted, ack.joined.sure if same_offset else 0)
        return Progress(ack.emitted, ack.emitted)

    def _put(self, partition: str, at: Progress, leader_epoch: int | None, expect: Expected) -> Put:
        joined = None
        if at.emitted > at.offset:
            joined = Joined(offset=at.offset, emitted=at.emitted, rules=self._rules, sure=at.sure)
        ack = Ack(epoch=self.epoch, offset=at.offset, joined=joined, leader_epoch=leader_epoch)
        return Put(self._paths[partition], ack, expect)
