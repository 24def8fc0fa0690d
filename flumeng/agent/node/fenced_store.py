"""A node's access to ZooKeeper, whose writes fail once another process has the node's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from flumeng.control.zookeeper import (
    Check,
    Expected,
    Found,
    Path,
    Put,
    Store,
    Unreadable,
    Version,
    Write,
)
from zkschema.records import Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)


class FencedStore:
    """Writes to ZooKeeper if ``fence`` holds: that ``/nodes/N`` is unchanged. Raises ConflictError
    if not or after a lost race, UnavailableError without ZooKeeper. ``problems``: why a path cannot
    be read. ``on_progress`` is called after each ``write``, since a node may make very many."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.fence: tuple[Check, ...] = ()
        self.problems: dict[str, str] = {}
        self.on_progress: Callable[[], None] = lambda: None

    def write(self, path: Path, value: Record, expect: Expected) -> Version:
        version = self.commit([Put(path, value, expect)])[0]
        self.on_progress()
        return version

    def commit(self, writes: Sequence[Write]) -> Sequence[Version]:
        return self.store.commit([*self.fence, *writes])

    def read_each(self, paths: Sequence[ZPath[R]]) -> list[Found[R]]:
        records = self.store.read_each(paths)
        for path, record in zip(paths, records, strict=True):
            if isinstance(record, Unreadable):
                self.problems[str(path)] = record.why
            else:
                self.problems.pop(str(path), None)
        return records
