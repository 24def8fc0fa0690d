"""A master's copy of the cluster: what is read again is compared with what was known."""

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
"""Whether a node's live znode says that this node is live."""


class Mirror(ClusterCopy):
    """What is absent is not kept. A live znode of which ``is_live`` says that it does not count is
    as if it were not there."""

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
        """Read these, and what lies in buckets below them; gives those that have changed."""
        changed = self._refresh_these(wanted)
        missing = [path for path in self.rest_of(wanted) if str(path) not in self.znodes]
        return [*changed, *self._refresh_these(missing)]

    def _refresh_these(self, wanted: list[Path]) -> list[Path]:
        """Gives those that are not as they were."""
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
    """The same mapping when nothing changed, else a sorted copy; None stands for gone."""
    if not changed and isinstance(known, dict):
        return known
    together = {**known, **changed}
    return {name: value for name in sorted(together) if (value := together[name]) is not None}


def _same(known: Found[Any], found: Found[Any]) -> bool:
    if known is None or found is None:
        return known is found
    return (known.version, known.created) == (found.version, found.created)
