"""A query's copy of the cluster: each znode is read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from flumeng.control.snapshot.cluster_copy import ClusterCopy
from flumeng.control.zookeeper import Found, Path, ReadableStore, Unreadable, Versioned, tree
from zkschema import paths
from zkschema.records import Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)


class Reading(ClusterCopy):
    """Unreadable records are left out and listed in ``unreadable``."""

    def __init__(self, store: ReadableStore) -> None:
        super().__init__(store.scale)
        self._store = store

    @classmethod
    def of(cls, source: ReadableStore) -> Reading:
        """The reading itself, or a new one; raises as ``require``."""
        if isinstance(source, Reading):
            return source
        reading = cls(source)
        reading.require()
        return reading

    def require(self) -> None:
        """Raises UserError without a cluster of a known version; accepts an unreadable schema."""
        (schema,) = self.read_each([paths.schema()])
        if not isinstance(schema, Unreadable):
            tree.require(self)

    def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
        new = [path for path in wanted if str(path) not in self.znodes and not self.lacks(path)]
        if new:
            for path, found in zip(new, self._store.read_each(new), strict=True):
                self.keep(path, found)
        return super().read_each(wanted)

    def read_many(self, wanted: Sequence[ZPath[R]]) -> list[Versioned[R] | None]:
        """None also for an unreadable record."""
        return [one if isinstance(one, Versioned) else None for one in self.read_each(wanted)]

    def read(self, path: ZPath[R]) -> Versioned[R] | None:
        return self.read_many([path])[0]

    def children_many(self, wanted: Sequence[Path]) -> list[list[str]]:
        new = [path for path in wanted if str(path) not in self.folders]
        if new:
            self.folders |= zip(map(str, new), self._store.children_many(new), strict=True)
        return super().children_many(wanted)

    def why(self, *wanted: Path) -> str:
        """Why these cannot be read; empty when they can."""
        return "; ".join(map(str, self.unreadable_of(*wanted)))
