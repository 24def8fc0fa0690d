"""Reading for people: what cannot be read is left out, and kept to be told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from flumeng.control.zookeeper import Found, Path, ReadableStore, Unreadable, Versioned, tree
from zkschema import paths
from zkschema.records import Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)


class Reading:
    """Of one look at a cluster. ``unreadable`` has by path what was set aside so far."""

    def __init__(self, store: ReadableStore) -> None:
        self.store = store
        self.unreadable: dict[str, Unreadable] = {}

    @classmethod
    def of(cls, source: ReadableStore | Reading) -> Reading:
        """The reading itself, or a new one of a cluster; raises as ``require``."""
        if isinstance(source, Reading):
            return source
        reading = cls(source)
        reading.require()
        return reading

    def require(self) -> None:
        """Raises UserError without a cluster of a version that this code knows. Where that cannot
        be told, nothing may be written, but all can be looked at."""
        (schema,) = self.read_each([paths.schema()])
        if not isinstance(schema, Unreadable):
            tree.require(self.store)

    def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
        found = self.store.read_each(wanted)
        for one in found:
            if isinstance(one, Unreadable):
                self.unreadable[str(one.path)] = one
        return found

    def read_many(self, wanted: Sequence[ZPath[R]]) -> list[Versioned[R] | None]:
        """None also for what cannot be read."""
        return [one if isinstance(one, Versioned) else None for one in self.read_each(wanted)]

    def read(self, path: ZPath[R]) -> Versioned[R] | None:
        return self.read_many([path])[0]

    def children(self, path: Path) -> list[str]:
        return self.store.children(path)

    def children_many(self, wanted: Sequence[Path]) -> list[list[str]]:
        return self.store.children_many(wanted)

    def why(self, *wanted: Path) -> str:
        """Why those of them that were read cannot be; empty when they can."""
        return "; ".join(str(self.unreadable[str(p)]) for p in wanted if str(p) in self.unreadable)
