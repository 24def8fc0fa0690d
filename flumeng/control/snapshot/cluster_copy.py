"""The cluster in memory: watches update a master's copy, and a query's copy is read on demand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

from flumeng.control.snapshot import discovered
from flumeng.control.zookeeper import (
    ABSENT,
    Expected,
    Found,
    Path,
    ReadableStore,
    Unreadable,
    Versioned,
    readable,
)
from flumeng.control.zookeeper.transaction import Scale
from zkschema import paths
from zkschema.records import Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)
V = TypeVar("V")
IsLive = Callable[[Path, Versioned[Any] | Unreadable], bool]
"""Returns whether a node's live znode proves that the node is live."""
SHARDED = frozenset(row.pattern for row in (paths.plan, paths.partitions, paths.assignment))
"""Patterns of the records that may have buckets or pages."""


class ClusterCopy:
    """A ``ReadableStore`` in memory. A path neither loaded nor known as absent is a KeyError."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.znodes: dict[str, Found[Any]] = {}
        self.folders: dict[str, Collection[str]] = {}
        self.unreadable: dict[str, Unreadable] = {}

    def keep(self, path: Path, znode: Found[Any]) -> None:
        key = str(path)
        self.znodes[key] = znode
        if isinstance(znode, Unreadable):
            self.unreadable[key] = znode
        elif self.unreadable:
            self.unreadable.pop(key, None)

    def read(self, path: ZPath[R]) -> Versioned[R] | None:
        return readable(self.read_each([path])[0])

    def read_many(self, requested: Sequence[ZPath[R]]) -> list[Versioned[R] | None]:
        return [readable(znode) for znode in self.read_each(requested)]

    def read_each(self, requested: Sequence[ZPath[R]]) -> list[Found[R]]:
        return [None if self.lacks(path) else self.znodes[str(path)] for path in requested]

    def children(self, path: Path) -> list[str]:
        return self.children_many([path])[0]

    def children_many(self, folders: Sequence[Path]) -> list[list[str]]:
        return [[] if self._is_unlisted(path) else [*self.folders[str(path)]] for path in folders]

    def exists(self, path: Path) -> bool:
        return self.read_each([path])[0] is not None

    def record(self, path: Path) -> Versioned[Any] | None:
        """Return the record; None when it is absent, unreadable or not loaded."""
        znode = self.znodes.get(str(path))
        return znode if isinstance(znode, Versioned) else None

    def unreadable_of(self, *requested: Path) -> tuple[Unreadable, ...]:
        if not self.unreadable:
            return ()
        return tuple(self.unreadable[key] for key in map(str, requested) if key in self.unreadable)

    def lacks(self, path: Path) -> bool:
        """Return whether the path is not loaded, but known to be absent from a listed folder."""
        return str(path) not in self.znodes and self._is_absent(str(path))

    def _is_unlisted(self, path: Path) -> bool:
        return str(path) not in self.folders and self._is_absent(str(path))

    def _is_absent(self, path: str) -> bool:
        while "/" in path[1:]:
            parent, _, name = path.rpartition("/")
            if parent in self.folders and name not in self.folders[parent]:
                return True
            path = parent
        return False

    def rest_of(self, records: Iterable[Path]) -> list[Path]:
        """Return the paths of the buckets and pages of these records, if the records are loaded."""
        return [
            rest for path in records if path.row.pattern in SHARDED for rest in self._rest_of(path)
        ]

    def _rest_of(self, path: Path) -> list[Path]:
        record = self.record(path)
        if record is None:
            return []
        if path.row is paths.plan:
            buckets = range(record.value.buckets)
            return [paths.plan_bucket(first_name(path), str(number)) for number in buckets]
        if path.row is paths.partitions:
            return discovered.buckets_of(first_name(path), record.value)
        pages = range(record.value.pages)
        return [paths.assignment_page(first_name(path), str(number)) for number in pages]


def first_name(path: Path) -> str:
    """Return the first name in a path, such as a flow or node; "" in a path without names."""
    names = path.row.matches(str(path))
    return names[0] if names else ""


class Mirror(ClusterCopy):
    """A master's copy. It keeps no absent znodes, and no live znodes that ``is_live`` rejects."""

    def __init__(self, store: ReadableStore, is_live: IsLive) -> None:
        super().__init__(store.scale)
        self._store = store
        self._is_live = is_live

    @property
    def paths(self) -> Set[str]:
        return self.znodes.keys()

    def forget(self) -> None:
        self.znodes, self.unreadable = {}, {}

    def refresh(self, requested: list[Path]) -> list[Path]:
        """Read these paths and their new buckets and pages; return the changed paths."""
        changed = self._refresh_these(requested)
        missing = [path for path in self.rest_of(requested) if str(path) not in self.znodes]
        return [*changed, *self._refresh_these(missing)]

    def _refresh_these(self, requested: list[Path]) -> list[Path]:
        changed = []
        for path, read in zip(requested, self._store.read_each(requested), strict=True):
            znode = read
            if read and path.row is paths.live_node and not self._is_live(path, read):
                znode = None
            if _same(self.get(path), znode):
                continue
            changed.append(path)
            self.keep(path, znode)
            if znode is None:
                del self.znodes[str(path)]
        return changed

    def get(self, path: Path) -> Found[Any]:
        return self.znodes.get(str(path))

    def version(self, path: Path) -> Expected:
        znode = self.get(path)
        return znode.version if znode else ABSENT


def changed_in(before: Mapping[str, V], changed: Mapping[str, V | None]) -> dict[str, V]:
    """Return ``before`` itself if ``changed`` is empty, else a sorted copy; None removes a name."""
    if not changed and isinstance(before, dict):
        return before
    together = {**before, **changed}
    return {name: value for name in sorted(together) if (value := together[name]) is not None}


def _same(before: Found[Any], after: Found[Any]) -> bool:
    if before is None or after is None:
        return before is after
    return (before.version, before.created) == (after.version, after.created)
