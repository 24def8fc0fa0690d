"""Creates a cluster's tree, checks its version, and detects its replacement."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import NamedTuple

from flumeng.control.zookeeper import ABSENT, ReadableStore, Store, Versioned
from flumeng.platform.errors import ConflictError, UserError
from zkschema import bootstrap, paths, table
from zkschema.records import Schema


def init(store: Store) -> list[str]:
    """Create an empty cluster; return the paths that were missing. Idempotent."""
    store.make_root()
    created = []
    for path, record in bootstrap.initial(uuid.uuid4().hex):
        try:
            store.write(path, record, ABSENT)
        except ConflictError:
            continue
        created.append(str(path))
    return created


def require(store: ReadableStore) -> Schema:
    """Return the schema. Raises as ``read``, and UserError without one of a supported version."""
    return require_versioned(store).value


def require_versioned(store: ReadableStore) -> Versioned[Schema]:
    """Return the schema as ``require`` does, for a write that depends on its version."""
    schema = store.read(paths.schema())
    if schema is None:
        raise UserError("this chroot holds no flumeng cluster: run `flumeng schema init`")
    if not table.OLDEST <= schema.value.version <= table.VERSION:
        raise UserError(
            f"the cluster has schema version {schema.value.version}, this flumeng knows versions "
            f"up to {table.VERSION}: use a flumeng of a matching version"
        )
    return schema


class TreeIdentity(NamedTuple):
    """Identifies a cluster's tree. ``created``: the transaction that created its schema."""

    cluster: str
    generation: int
    created: int


class TreeWatch:
    """Identifies the current tree: epochs and offsets may repeat in another one. Calls ``changed``
    when the identity may have changed; that must only enqueue. Thread-safe."""

    def __init__(self, store: Store, changed: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._changed = changed
        self._lock = threading.Lock()
        self._looks = self._looked = 0
        """Number of requested reads of the schema, and the number of the last one done."""
        self._known: TreeIdentity | None = None
        self._look_soon()
        store.watch(paths.schema(), lambda _: self._look_soon())
        store.on_session(lambda _: self._look_soon())

    def identity(self) -> TreeIdentity | None:
        """Return the current identity, None without a cluster. Raises as ``Store.read``."""
        with self._lock:
            looks = self._looks
            if self._looked != looks:
                current = self._store.read(paths.schema())
                self._known = None
                if current is not None:
                    schema = current.value
                    self._known = TreeIdentity(schema.cluster, schema.generation, current.created)
                self._looked = looks
            return self._known

    def _look_soon(self) -> None:
        self._looks += 1
        self._changed()
