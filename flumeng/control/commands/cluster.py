"""Export, import, repair and migration of the whole tree. In a rolling upgrade a newer flumeng uses
the older tree until no older process is live. After the migration older processes refuse to run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from flumeng.control.commands import membership
from flumeng.control.commands.live_processes import live_processes
from flumeng.control.commands.operator import Operator, room_bytes
from flumeng.control.commands.securing import acl_mismatches
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    WIRE_LIMIT_BYTES,
    Expected,
    Put,
    ReadableStore,
    Remove,
    Store,
    Version,
    Versioned,
    Write,
    tree,
)
from flumeng.control.zookeeper.transaction import singly
from flumeng.journal.replication.membership import node_of
from flumeng.platform.errors import ConflictError, CorruptError, UserError
from zkschema import codec, migrations, paths, records, repair, table
from zkschema.immutable import dataclass
from zkschema.migrations import Delete, Migration, Set
from zkschema.records import REPLICA, Record, Schema
from zkschema.repair import Repair
from zkschema.table import Row, ZPath
from zkschema.verify import Problem, verify

SCHEMA = str(paths.schema())
NO_CLUSTER = "this chroot holds no flumeng cluster: run `flumeng schema init`"
ATTEMPTS = 20
"""Attempts of a migration while nodes and masters write concurrently."""


def init_cluster(operator: Operator) -> list[str]:
    """Create the znodes of an empty cluster; return the paths that were missing."""
    created = tree.init(operator.store)
    if created:
        operator.commit([], "schema init")
    return created


def export_cluster(store: Store) -> dict[str, Any]:
    """Return all persistent znodes without secrets. Raises ``UserError``, ``CorruptError``."""
    exported = documents(store.dump())
    schema = exported.get(SCHEMA)
    if schema is None:
        raise UserError(NO_CLUSTER)
    return {
        "schema": int(schema["version"]),
        "znodes": dict(sorted(membership.without_secrets(exported).items())),
    }


def import_cluster(operator: Operator, exported: object) -> int:
    """Import a document into an empty chroot; return the number of znodes. Raises ``UserError`` for
    an invalid document or a chroot with other content. The schema is written last, with a higher
    generation, so that an interrupted import can be repeated. Intents are left out: targets may
    have accepted later batches. Only primaries are in sync: other replicas may lack events."""
    store = operator.store
    znodes = {p: doc for p, doc in _exported(exported).items() if not table.intent.matches(p)}
    schema_document = znodes.get(SCHEMA)
    if schema_document and schema_document.get("version") == table.UNRELEASED:
        znodes = {path: _renamed(path, document) for path, document in znodes.items()}
        znodes[SCHEMA] = {**schema_document, "version": table.VERSION}
    problems = verify({path: encoded(doc) for path, doc in znodes.items()})
    if problems:
        lines = "\n".join(f"{problem.path}: {problem.what}" for problem in problems)
        raise UserError(f"the document violates the schema:\n{lines}")
    led = {p: doc for p, doc in znodes.items() if table.journal.matches(p) and doc is not None}
    znodes |= {path: _primary_alone_in_sync(doc) for path, doc in led.items()}
    store.make_root()
    znodes = membership.with_fresh_secrets(store, znodes)
    data = {path: encoded(doc) for path, doc in znodes.items()}
    there = store.dump()
    if SCHEMA in there or any(data.get(path) != data_there for path, data_there in there.items()):
        raise UserError(
            "the chroot is not empty: an import creates a new cluster and merges nothing"
        )
    missing = [path for path in sorted(znodes) if path != SCHEMA and path not in there]
    for part in singly(store.scale, (Put(*at(path, znodes[path]), ABSENT) for path in missing)):
        store.commit(part)
    schema = codec.decode(records.Schema, data[SCHEMA])
    begun = replace(schema, generation=max(schema.generation + 1, int(operator.now)))
    operator.commit([Put(paths.schema(), begun, ABSENT)], "schema import")
    return len(znodes)


def _renamed(path: str, document: Any) -> Any:
    """Rename the fields of a document of the unreleased version to those of version 1."""
    if document is None or not (table.journal.matches(path) or table.node.matches(path)):
        return document
    new = {"copies": "replicas", "away_since": "down_since"}
    renamed = {new.get(name, name): value for name, value in document.items()}
    if "roles" in renamed:
        renamed["roles"] = [REPLICA if role == "copy" else role for role in renamed["roles"]]
    return renamed


def verify_cluster(store: Store) -> list[Problem]:
    """Return schema violations, orphaned znodes and wrong access lists, each with its repair."""
    dump = store.dump()
    kept = repair.problems(dump, _without_session(store, dump))
    loose = [mismatch.problem for mismatch in acl_mismatches(store, ["/", *dump])]
    return sorted([*kept, *loose], key=lambda problem: problem.path)


def repairs(store: Store) -> list[Repair]:
    dump = store.dump()
    return repair.repairs(dump, _without_session(store, dump))


def access_problems(store: Store) -> list[Problem]:
    """Return the access lists that ``set_access`` would correct."""
    return [mismatch.problem for mismatch in acl_mismatches(store, ["/", *store.dump()])]


def repair_cluster(operator: Operator, approved: Sequence[Repair]) -> list[Repair]:
    """Apply and return the ``approved`` repairs that are still needed as they are. Raises
    ``ConflictError`` for a znode that changes meanwhile."""
    store = operator.store
    before = store.dump()
    versions = _versions(store, {str(c.path) for r in approved for c in r.changes}, before)
    dump = store.dump()
    still = repair.repairs(dump, _without_session(store, dump))
    asked = {repair.path: repair for repair in approved}
    done = [needed for needed in still if asked.get(needed.path) == needed]
    changes = {change.path: change for needed in done for change in needed.changes}
    sets = [changes[path] for path in sorted(changes) if isinstance(changes[path], Set)]
    deletes = [changes[path] for path in sorted(changes, reverse=True)]
    writes: list[Write] = []
    for change in [*sets, *(change for change in deletes if isinstance(change, Delete))]:
        expect = versions.get(change.path, ANY if change.path in dump else ABSENT)
        writes.append(_write(change, expect))
    for part in singly(store.scale, writes, room_bytes=room_bytes(store.scale)):
        command = f"schema verify --fix: {', '.join(str(write.path) for write in part)}"
        operator.commit(part, command[:8192])
    return done


def _versions(
    store: Store, changed: Collection[str], dump: Mapping[str, bytes]
) -> dict[str, Version]:
    readable = [at(path, {})[0] for path in sorted(changed) if _is_document(dump.get(path, b""))]
    znodes = store.read_many(readable)
    return {str(path): znode.version for path, znode in zip(readable, znodes, strict=True) if znode}


def _is_document(data: bytes) -> bool:
    try:
        codec.decode(AnyRecord, data)
    except codec.DecodeError:
        return False
    return True


def _without_session(store: Store, dump: Mapping[str, bytes]) -> list[str]:
    """Return the paths of ephemeral znodes that have no session."""
    named = [
        at(path, {})[0]
        for path, data in dump.items()
        if (row := table.find(path)) and row.lifetime == "ephemeral" and _is_document(data)
    ]
    znodes = store.read_many(named)
    return [
        str(path) for path, znode in zip(named, znodes, strict=True) if znode and not znode.session
    ]


def _primary_alone_in_sync(journal: dict[str, Any]) -> dict[str, Any]:
    in_sync = [replica for replica in journal["in_sync"] if node_of(replica) == journal["primary"]]
    return {**journal, "in_sync": in_sync}


def _exported(exported: object) -> dict[str, dict[str, Any] | None]:
    znodes = exported.get("znodes") if isinstance(exported, dict) else None
    if not isinstance(znodes, dict) or not all(
        doc is None or (isinstance(doc, dict) and "v" in doc) for doc in znodes.values()
    ):
        raise UserError("this is not a document of `flumeng schema export`")
    live = [path for path in znodes if (row := table.find(path)) and row.lifetime == "ephemeral"]
    if live:
        raise UserError(f"the document holds {live[0]}, which only a live process may write")
    return znodes


def pending_migrations(store: ReadableStore) -> list[Migration]:
    """Return the migrations to ``table.VERSION`` in order. Raises ``UserError`` for no path."""
    try:
        return migrations.path_to(_schema(store).value.version, table.VERSION)
    except LookupError as error:
        raise UserError(f"{error}: use a flumeng of a matching version") from error


def migrate_cluster(operator: Operator, migration: Migration) -> int:
    """Migrate the tree by one version; return the number of writes. Repeatable if interrupted.
    Raises CorruptError, ``ConflictError`` for another version or a live process of an older one."""
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
    # A second pass: the first may have missed writes made just before the version was raised.
    return count + _carry_out(store, migration, raised, lambda last: last and store.commit(last))


def _carry_out(
    store: Store, migration: Migration, schema: Write, end: Callable[[list[Write]], object]
) -> int:
    """Write the migration in parts, the last one with ``end``; return the number of writes."""
    for attempt in range(1, ATTEMPTS + 1):
        writes = _writes(store, migration)
        room = store.scale.weigh(schema) + room_bytes(store.scale)
        *parts, last = [*singly(store.scale, writes, room_bytes=room)] or [[]]
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
    """Return the remaining writes, each conditional on the version that the migration read."""
    named = [path for path, data in store.dump().items() if data]
    seen = store.read_many([at(path, {})[0] for path in named])
    versions = {path: znode.version for path, znode in zip(named, seen, strict=True) if znode}
    current = documents(store.dump())  # after the versions: none may be newer than its document
    schema = str(paths.schema())
    writes: list[Write] = []
    for change in migration.changes({p: doc for p, doc in current.items() if p != schema}):
        assert change.path != schema, "a migration must not write the schema's znode"
        folder_or_new = ANY if change.path in current else ABSENT
        expect = versions.get(change.path, folder_or_new)
        writes.append(_write(change, expect))
    return writes


def _write(change: Set | Delete, expect: Expected) -> Write:
    path, value = at(change.path, None if isinstance(change, Delete) else change.document)
    return Remove(path, expect) if isinstance(change, Delete) else Put(path, value, expect)


def _schema(store: ReadableStore) -> Versioned[Schema]:
    schema = store.read(paths.schema())
    if schema is None:
        raise UserError(NO_CLUSTER)
    return schema


@dataclass(frozen=True, kw_only=True)
class AnyRecord(Record):
    """A record of unknown kind: all fields are in ``extra``, which must contain ``"v"``."""

    VERSION: ClassVar[int] = sys.maxsize


def documents(dump: Mapping[str, bytes]) -> dict[str, dict[str, Any] | None]:
    """Return all documents but ephemeral ones, None for folders. Raises ``CorruptError``."""
    by_path = {}
    for path, data in dump.items():
        row = table.find(path)
        if row is None or row.lifetime == "persistent":
            by_path[path] = _document(path, data)
    return by_path


def at(path: str, document: Mapping[str, Any] | None) -> tuple[ZPath[Record], Record | None]:
    kind = None if document is None else AnyRecord
    row: Row[Record] = Row(path, kind, "persistent", "", WIRE_LIMIT_BYTES, 0, "")
    return ZPath(path, row), None if document is None else AnyRecord(extra=document)


def encoded(document: Mapping[str, Any] | None) -> bytes:
    value = at("/", document)[1]
    return b"" if value is None else codec.encode(value)


def _document(path: str, data: bytes) -> dict[str, Any] | None:
    if not data:
        return None
    try:
        document = json.loads(codec.unpack(data))
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"znode {path} is not JSON: see `flumeng schema verify`") from error
    if not isinstance(document, dict):
        raise CorruptError(f"znode {path} is no JSON object: see `flumeng schema verify`")
    return document
