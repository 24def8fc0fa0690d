"""The operator of a change: on which cluster, in whose name, why and when."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flumeng.control.commands import audit
from flumeng.control.zookeeper import Put, Remove, Store, Versioned, Write
from flumeng.control.zookeeper.transaction import singly
from flumeng.platform.errors import ForbiddenError, UnavailableError
from zkschema import records
from zkschema.records import Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)

SETTLE_SECONDS = 8.0
LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Operator:
    """A person or program that changes the cluster of ``store``. ``now``: seconds since the epoch,
    for display only."""

    store: Store
    author: str
    reason: str
    now: float

    def entry(self, command: str) -> records.Audit:
        return records.Audit(who=self.author, command=command, reason=self.reason, time=self.now)

    def commit(self, writes: Sequence[Write], command: str) -> None:
        """Commit ``writes`` with an audit entry. Without an answer, the entry shows whether it was
        done. Raises ConflictError, TooLargeError, and UnavailableError when the outcome is unknown.
        """
        with contextlib.suppress(ForbiddenError):  # in a secured cluster only masters may
            audit.trim(self.store)
        own = audit.put(self.entry(command))
        try:
            self.store.commit([*writes, own])
        except ForbiddenError:
            raise
        except UnavailableError as error:
            if not self._appears(own):
                raise UnavailableError(
                    f"{error}: it is not known whether it was done; look, and repeat the command"
                ) from error

    def change(self, path: ZPath[R], found: Versioned[R], wanted: R, command: str) -> bool:
        """Write another record than was found; returns whether it is another one."""
        if wanted == found.value:
            return False
        self.commit([Put(path, wanted, found.version)], command)
        return True

    def commit_each(
        self,
        writes: Iterable[Put | Remove],
        command: Callable[[str], str],
        *,
        each: Sequence[Write] = (),
    ) -> None:
        """Independent writes in as few transactions as fit, ``each`` in all. ``command`` is given
        the names of the written znodes."""
        room_bytes = audit.room_bytes(self.store.scale)
        for part in singly(self.store.scale, writes, each=each, room_bytes=room_bytes):
            self.commit([*each, *part], command(" ".join(write.path.name for write in part)))

    def _appears(self, own: Put) -> bool:
        """A server may lag: not to see the entry proves nothing."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(UnavailableError):
                if self.store.exists(own.path):
                    return True
            time.sleep(LOOK_SECONDS)
        return False
