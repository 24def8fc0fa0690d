"""The tree to the next schema version, while processes that know both versions run.

A new flumeng uses the tree of the one before it as that one does, so hosts are upgraded one by one.
Once no process of the older version is left, the tree is raised: from then on rows of the new
version may be written, and older processes refuse to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flumeng.control.commands import audit
from flumeng.control.commands.documents import at, documents
from flumeng.control.commands.live_processes import live_processes
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY, Put, Remove, Store, Versioned, Write
from flumeng.control.zookeeper.transaction import singly
from flumeng.platform.errors import ConflictError, UserError
from zkschema import migrations, paths, table
from zkschema.migrations import MIGRATIONS, Delete, Migration
from zkschema.records import Schema

ATTEMPTS = 20
"""Nodes and masters write meanwhile; what they change is looked at again so often at most."""


def pending_migrations(
    store: Store, target: int = table.VERSION, known: Sequence[Migration] = MIGRATIONS
) -> list[Migration]:
    """What ``migrate_cluster`` would do. Raises ``UserError`` when it cannot get to ``target``."""
    try:
        return migrations.path_to(_schema(store).value.version, target, known)
    except LookupError as error:
        raise UserError(f"{error}: use the flumeng that matches") from error


def migrate_cluster(operator: Operator, migration: Migration) -> int:
    """Bring the tree to the version after ``migration.before``; gives how many znodes it wrote.

    Every write expects the version that the migration saw, and what changed meanwhile is looked at
    again; the schema's znode is raised with the last of them. Interrupted, it is gone on with by
    calling it again. Raises ``ConflictError``, also while a process of an older version is live,
    ``UnavailableError``, ``CorruptError``.
    """
    store = operator.store
    target = migration.before + 1
    older = [str(process) for process in live_processes(store) if process.schema < target]
    if older:
        raise ConflictError(
            f"{', '.join(older)} cannot use schema version {target}: upgrade and restart all "
            "processes first"
        )
    schema = _schema(store)
    if schema.value.version != migration.before:
        raise ConflictError(f"the cluster does not have schema version {migration.before} any more")
    raised = Put(paths.schema(), replace(schema.value, version=target), schema.version)
    command = f"schema migrate {migration.before} -> {target}"

    def end(last: list[Write]) -> None:
        operator.commit([*last, raised], command)

    count = _carry_out(store, migration, raised, end)
    # What was written just before the tree was raised may be what the migration did not see.
    return count + _carry_out(store, migration, raised, lambda last: last and store.commit(last))


def _carry_out(
    store: Store, migration: Migration, schema: Write, end: Callable[[list[Write]], object]
) -> int:
    """The migration's writes in parts, the last one by ``end`` with ``schema``; gives how many."""
    for attempt in range(1, ATTEMPTS + 1):
        writes = _writes(store, migration)
        room_bytes = store.scale.weigh(schema) + audit.room_bytes(store.scale)
        *parts, last = [*singly(store.scale, writes, room_bytes=room_bytes)] or [[]]
        try:
            for part in parts:
                store.commit(part)
            end(last)
        except ConflictError:
            if attempt == ATTEMPTS:
                raise
        else:
            return len(writes)
    raise AssertionError("the last attempt returns or raises")


def _writes(store: Store, migration: Migration) -> list[Write]:
    """The writes that are left. Each expects the version that the migration read."""
    named = [path for path, data in store.dump().items() if data]
    seen = store.read_many([at(path, {})[0] for path in named])
    versions = {path: found.version for path, found in zip(named, seen, strict=True) if found}
    found = documents(store.dump())  # after the versions, so that none is newer than what is seen
    schema = str(paths.schema())
    writes: list[Write] = []
    for change in migration.changes({p: doc for p, doc in found.items() if p != schema}):
        assert change.path != schema, "the schema's znode is not a migration's to write"
        folder_or_new = ANY if change.path in found else ABSENT
        expect = versions.get(change.path, folder_or_new)
        if isinstance(change, Delete):
            writes.append(Remove(at(change.path, None)[0], expect))
        else:
            path, value = at(change.path, change.document)
            writes.append(Put(path, value, expect))
    return writes


def _schema(store: Store) -> Versioned[Schema]:
    schema = store.read(paths.schema())
    if schema is None:
        raise UserError("this chroot holds no flumeng cluster: run `flumeng schema init`")
    return schema
