"""Whole-tree work on a store: make an empty cluster, and check one against the schema."""

from __future__ import annotations

import uuid

from flumeng.control.zookeeper import ABSENT, ReadableStore, Store, Versioned
from flumeng.platform.errors import ConflictError, UserError
from zkschema import bootstrap, paths, table
from zkschema.records import Schema
from zkschema.verify import Problem
from zkschema.verify import verify as verify_tree


def init(store: Store) -> list[str]:
    """Create what an empty cluster has; gives the paths that were missing. Safe to repeat."""
    store.make_root()
    created = []
    for path, record in bootstrap.initial(uuid.uuid4().hex):
        try:
            store.write(path, record, ABSENT)
        except ConflictError:
            continue
        created.append(str(path))
    return created


def verify(store: Store) -> list[Problem]:
    """Everything in the cluster that does not keep to the schema."""
    return verify_tree(store.dump())


def require(store: ReadableStore) -> Schema:
    """The cluster's schema; UserError unless it is there, of a version that this code can use."""
    return require_versioned(store).value


def require_versioned(store: ReadableStore) -> Versioned[Schema]:
    """As ``require``, for a write that holds only while the version stays what it is."""
    found = store.read(paths.schema())
    if found is None:
        raise UserError("this chroot holds no flumeng cluster: run `flumeng schema init`")
    if not table.OLDEST <= found.value.version <= table.VERSION:
        raise UserError(
            f"the cluster has schema version {found.value.version}, this flumeng knows versions "
            f"up to {table.VERSION}: use a flumeng that matches"
        )
    return found
