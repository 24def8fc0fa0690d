"""Detects that another tree took the place of this one: a wiped ZooKeeper, or an import.

Epochs and offsets may repeat there, so an owner claims again in another tree, and nothing where
there is none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from flumeng.control.zookeeper import Store
from zkschema import paths


class TreeIdentity(NamedTuple):
    """``created``: the transaction that made the tree."""

    cluster: str
    generation: int
    created: int


class TreeWatch:
    """Thread-safe. ``changed`` is called when it may be another tree; it may only enqueue."""

    def __init__(self, store: Store, changed: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._changed = changed
        self._lock = threading.Lock()
        self._looks = self._looked = 0
        """How often a look was asked for, and which of these was carried out last."""
        self._known: TreeIdentity | None = None
        self._look_soon()
        store.watch(paths.schema(), lambda _: self._look_soon())
        store.on_session(lambda _: self._look_soon())

    def identity(self) -> TreeIdentity | None:
        """None without a cluster. Reads once after each change. Raises UnavailableError,
        CorruptError."""
        with self._lock:
            looks = self._looks
            if self._looked != looks:
                found = self._store.read(paths.schema())
                self._known = None
                if found is not None:
                    schema = found.value
                    self._known = TreeIdentity(schema.cluster, schema.generation, found.created)
                self._looked = looks
            return self._known

    def _look_soon(self) -> None:
        self._looks += 1
        self._changed()
