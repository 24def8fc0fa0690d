"""A master's copy of the cluster, which reports what changed when it is read again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, TypeVar

from flumeng.control.snapshot.cluster_copy import ClusterCopy
from flumeng.control.zookeeper import (
    ABSENT,
    Expected,
    Found,
    Path,
    ReadableStore,
    Unreadable,
    Versioned,
)
from zkschema import paths

V = TypeVar("V")
IsLive = Callable[[Path, Versioned[Any] | Unreadable], bool]
"""Whether a node's live znode proves that the node is live."""


class Mirror(ClusterCopy):
    """Absent znodes are not kept, nor live znodes that ``is_live`` rejects."""

    def __init__(self, store: ReadableStore, is_live: IsLive) -> None:
        super().__init__(store.scale)
        self._store = store
        self._is_live = is_live

    @property
    def paths(self) -> Set[str]:
        return self.znodes.keys()

    def forget(self) -> None:
        self.znodes, self.unreadable = {}, {}

    def refresh(self, wanted: list[Path]) -> list[Path]:
        """Reads these and their buckets; returns what changed."""
        changed = self._refresh_these(wanted)
        missing = [path for path in self.rest_of(wanted) if str(path) not in self.znodes]
        return [*changed, *self._refresh_these(missing)]

    def _refresh_these(self, wanted: list[Path]) -> list[Path]:
        changed = []
        for path, read in zip(wanted, self._store.read_each(wanted), strict=True):
            found = read
            if read and path.row is paths.live_node and not self._is_live(path, read):
                found = None
            if _same(self.get(path), found):
                continue
            changed.append(path)
            self.keep(path, found)
            if found is None:
                del self.znodes[str(path)]
        return changed

    def get(self, path: Path) -> Found[Any]:
        return self.znodes.get(str(path))

    def version(self, path: Path) -> Expected:
        found = self.get(path)
        return found.version if found else ABSENT


def changed_in(known: Mapping[str, V], changed: Mapping[str, V | None]) -> dict[str, V]:
    """The same mapping when nothing changed, else a sorted copy; None removes."""
    if not changed and isinstance(known, dict):
        return known
    together = {**known, **changed}
    return {name: value for name in sorted(together) if (value := together[name]) is not None}


def _same(known: Found[Any], found: Found[Any]) -> bool:
    if known is None or found is None:
        return known is found
    return (known.version, known.created) == (found.version, found.created)
