"""The znodes as they were when they were last read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
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
)
from zkschema import paths
from zkschema.records import Assignment

V = TypeVar("V")
IsLive = Callable[[Path, Versioned[Any] | Unreadable], bool]
"""Whether a node's live znode says that this node is live."""


class Mirror:
    """``unreadable`` are those that are there and cannot be read. A live znode of which ``is_live``
    says that it does not count is as if it were not there."""

    def __init__(self, store: ReadableStore, is_live: IsLive) -> None:
        self._store = store
        self._is_live = is_live
        self._znodes: dict[str, Versioned[Any] | Unreadable] = {}
        self._unreadable: dict[str, Unreadable] = {}

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        return tuple(self._unreadable.values())

    @property
    def paths(self) -> Set[str]:
        return self._znodes.keys()

    def forget(self) -> None:
        self._znodes, self._unreadable = {}, {}

    def read(self, wanted: list[Path]) -> list[Path]:
        """Read these, and what lies in buckets below them; gives those that have changed."""
        changed = self._read_these(wanted)
        missing: list[Path] = []
        for path in wanted:
            known = self._znodes.get(str(path))
            if isinstance(known, Versioned) and path.row is paths.plan:
                flow = first_name(path)
                buckets = (paths.plan_bucket(flow, str(n)) for n in range(known.value.buckets))
                missing += (bucket for bucket in buckets if str(bucket) not in self._znodes)
            elif isinstance(known, Versioned) and path.row is paths.partitions:
                shares = discovered.buckets_of(first_name(path), known.value)
                missing += (share for share in shares if str(share) not in self._znodes)
            elif isinstance(known, Versioned) and path.row is paths.assignment:
                pages = pages_of(first_name(path), known.value)
                missing += (page for page in pages if str(page) not in self._znodes)
        return [*changed, *self._read_these(missing)]

    def _read_these(self, wanted: list[Path]) -> list[Path]:
        """Gives those that are not as they were."""
        changed = []
        for path, read in zip(wanted, self._store.read_each(wanted), strict=True):
            found = read
            if read and path.row is paths.live_node and not self._is_live(path, read):
                found = None
            known = self._znodes.get(str(path))
            if _same(known, found):
                continue
            changed.append(path)
            self._unreadable.pop(str(path), None)
            if isinstance(found, Unreadable):
                self._unreadable[str(path)] = found
            if found is None:
                self._znodes.pop(str(path), None)
            else:
                self._znodes[str(path)] = found
        return changed

    def get(self, path: Path) -> Found[Any]:
        return self._znodes.get(str(path))

    def found(self, path: Path) -> Versioned[Any] | None:
        found = self._znodes.get(str(path))
        return found if isinstance(found, Versioned) else None

    def unreadable_of(self, *wanted: Path) -> tuple[Unreadable, ...]:
        """Those of these paths that are there and cannot be read."""
        if not self._unreadable:
            return ()
        found = (self._unreadable.get(str(path)) for path in wanted)
        return tuple(one for one in found if one is not None)

    def version(self, path: Path) -> Expected:
        found = self._znodes.get(str(path))
        return found.version if found else ABSENT


def changed_in(known: Mapping[str, V], changed: Mapping[str, V | None]) -> dict[str, V]:
    """The same mapping when nothing changed, else a sorted copy; None stands for gone."""
    if not changed and isinstance(known, dict):
        return known
    together = {**known, **changed}
    return {name: value for name in sorted(together) if (value := together[name]) is not None}


def pages_of(node: str, assignment: Assignment) -> list[Path]:
    return [paths.assignment_page(node, str(number)) for number in range(assignment.pages)]


def first_name(path: Path) -> str:
    """The flow, node or journal that a path belongs to; empty when it has no name in it."""
    names = path.row.matches(str(path))
    return names[0] if names else ""


def _same(known: Found[Any], found: Found[Any]) -> bool:
    if known is None or found is None:
        return known is found
    return (known.version, known.created) == (found.version, found.created)
