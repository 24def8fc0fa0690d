"""A read-through cache of one query: each znode is read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from flumeng.control.snapshot.cluster_copy import ClusterCopy
from flumeng.control.zookeeper import Found, Path, ReadableStore, Unreadable, Versioned, tree
from zkschema import paths
from zkschema.records import Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)


class ReadCache(ClusterCopy):
    """The cached znodes. ``unreadable`` lists unreadable ones, for which ``read`` returns None."""

    def __init__(self, store: ReadableStore) -> None:
        super().__init__(store.scale)
        self._store = store

    @classmethod
    def of(cls, source: ReadableStore) -> ReadCache:
        """Return ``source`` itself if it is a cache, else a new one; raises as ``require``."""
        if isinstance(source, ReadCache):
            return source
        cache = cls(source)
        cache.require()
        return cache

    def require(self) -> None:
        """Raises UserError without a cluster of a known version; accepts an unreadable schema."""
        (schema,) = self.read_each([paths.schema()])
        if not isinstance(schema, Unreadable):
            tree.require(self)

    def read_each(self, znodes: Sequence[ZPath[R]]) -> list[Found[R]]:
        new = [path for path in znodes if str(path) not in self.znodes and not self.lacks(path)]
        if new:
            for path, record in zip(new, self._store.read_each(new), strict=True):
                self.keep(path, record)
        return super().read_each(znodes)

    def read_many(self, znodes: Sequence[ZPath[R]]) -> list[Versioned[R] | None]:
        """Read many records; None for absent and unreadable ones."""
        return [read if isinstance(read, Versioned) else None for read in self.read_each(znodes)]

    def read(self, path: ZPath[R]) -> Versioned[R] | None:
        return self.read_many([path])[0]

    def children_many(self, folders: Sequence[Path]) -> list[list[str]]:
        new = [path for path in folders if str(path) not in self.folders]
        if new:
            listed = map(dict.fromkeys, self._store.children_many(new))
            self.folders |= zip(map(str, new), listed, strict=True)
        return super().children_many(folders)

    def why(self, *znodes: Path) -> str:
        """Return why these znodes cannot be read; empty when they can."""
        return "; ".join(map(str, self.unreadable_of(*znodes)))
