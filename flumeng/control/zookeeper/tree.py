"""Creates an empty cluster, and checks one against the schema."""

from __future__ import annotations

import uuid

from flumeng.control.zookeeper import ABSENT, ReadableStore, Store, Versioned
from flumeng.platform.errors import ConflictError, UserError
from zkschema import bootstrap, paths, table
from zkschema.records import Schema
from zkschema.verify import Problem
from zkschema.verify import verify as verify_tree


def init(store: Store) -> list[str]:
    """Creates an empty cluster; returns the missing paths. Safe to repeat."""
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
    return verify_tree(store.dump())


def require(store: ReadableStore) -> Schema:
    """The cluster's schema. Raises UserError when it is absent or of an unsupported version."""
    return require_versioned(store).value


def require_versioned(store: ReadableStore) -> Versioned[Schema]:
    """As ``require``, for a write that depends on the version."""
    found = store.read(paths.schema())
    if found is None:
        raise UserError("this chroot holds no flumeng cluster: run `flumeng schema init`")
    if not table.OLDEST <= found.value.version <= table.VERSION:
        raise UserError(
            f"the cluster has schema version {found.value.version}, this flumeng knows versions "
            f"up to {table.VERSION}: use a flumeng that matches"
        )
    return found
