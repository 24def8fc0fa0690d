"""The acks of one task, fenced: whoever claimed last is the only one that can move them.

Claiming rewrites every ack with the owner's epoch, even when nothing else changes, so its version
grows. Every later write names the version that this owner has seen, so an older owner, whatever it
believes, loses with ConflictError. Versions are the authority; sessions and epochs are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flumeng.collector.publisher import Publisher
from flumeng.collector.ranges import Range
from flumeng.errors import ConflictError
from flumeng.store import ABSENT, Expected, Put, Store, Version, Write
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Ack
from zkschema.table import ZPath

CLAIM_AT_ONCE = 1000


class SupersededError(ConflictError):
    """The partition has an owner under a higher epoch: this one's time is over."""


class Acks:
    """``offsets``: partition -> everything below is acked. Useless once a call has raised: claim
    again, since the outcome of the write may be unknown."""

    def __init__(self, store: Store, publisher: Publisher, flow: str, epoch: int) -> None:
        self._store = store
        self._publisher = publisher
        self._flow = flow
        self._paths: dict[str, ZPath[Ack]] = {}
        self._versions: dict[str, Version] = {}
        self.epoch = epoch
        self.offsets: dict[str, int] = {}
        self.inherited: set[str] = set()
        """Partitions that someone has acked, or at least claimed, before."""

    @classmethod
    def claim(
        cls,
        store: Store,
        publisher: Publisher,
        flow: str,
        epoch: int,
        partitions: Iterable[str],
    ) -> Acks:
        """Take all ``partitions``; those never acked start at 0.

        Raises SupersededError when one has a higher epoch. ConflictError: an ack was written in
        between, by a twin of this owner or by a write of its own that came late; claim again.
        """
        acks = cls(store, publisher, flow, epoch)
        names = sorted(partitions)
        for start in range(0, len(names), CLAIM_AT_ONCE):
            acks._claim(names[start : start + CLAIM_AT_ONCE])
        return acks

    def _claim(self, names: Sequence[str]) -> None:
        self._paths |= {name: paths.ack(self._flow, CURSOR_MAIN, name) for name in names}
        found = self._store.read_many([self._paths[name] for name in names])
        writes = []
        for name, ack in zip(names, found, strict=True):
            offset = ack.value.offset if ack else 0
            if ack is not None:
                if ack.value.epoch > self.epoch:
                    raise SupersededError(
                        f"{name} is owned under epoch {ack.value.epoch}, ours is {self.epoch}"
                    )
                self.inherited.add(name)
            writes.append(self._put(name, offset, ack.version if ack else ABSENT))
            self.offsets[name] = offset
        self._versions.update(zip(names, self._store.commit(writes), strict=True))

    def advance(self, ranges: Sequence[Range], also: Sequence[Write] = ()) -> None:
        """Move the acks to the ends of ``ranges``, together with ``also``: all or nothing.

        Each range begins where its partition's ack is, and is not empty. Raises ConflictError when
        someone else has claimed, UnavailableError when nobody knows whether it was written.
        """
        writes = []
        for piece in ranges:
            ack = self.offsets[piece.journal]
            assert piece.start == ack < piece.end, f"{piece} does not follow the ack {ack}"
            writes.append(self._put(piece.journal, piece.end, self._versions[piece.journal]))
        versions = self._publisher.commit(writes, also)
        for piece, version in zip(ranges, versions, strict=True):
            self._versions[piece.journal] = version
            self.offsets[piece.journal] = piece.end

    def require_ours(self, partitions: Iterable[str]) -> None:
        """Raises ConflictError when somebody else has written one of them, UnavailableError."""
        names = sorted(partitions)
        found = self._store.read_many([self._paths[name] for name in names])
        for name, ack in zip(names, found, strict=True):
            if ack is None or ack.version != self._versions[name]:
                raise ConflictError(f"the ack of {name} was written by somebody else")

    def _put(self, partition: str, offset: int, expect: Expected) -> Put:
        return Put(self._paths[partition], Ack(epoch=self.epoch, offset=offset), expect)
