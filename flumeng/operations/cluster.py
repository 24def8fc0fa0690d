"""Whole-tree work of operators: everything out, everything in, to the next version, and repair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flumeng.errors import ConflictError, UserError
from flumeng.operations import audit
from flumeng.operations.documents import at, documents, in_transactions
from flumeng.store import ABSENT, ANY, Put, Remove, Store, Write, tree
from zkschema import codec, migrations, paths, records, references, table
from zkschema.migrations import MIGRATIONS, Delete, Migration
from zkschema.verify import Problem, verify

SCHEMA = str(paths.schema())


def init_cluster(store: Store, *, author: str, reason: str, now: float) -> list[str]:
    """Create what an empty cluster has; gives the paths that were missing. Safe to repeat."""
    created = tree.init(store)
    if created:
        entry = records.Audit(who=author, command="schema init", reason=reason, time=now)
        audit.commit(store, [], entry)
    return created


def export_cluster(store: Store) -> dict[str, Any]:
    """Everything but ephemerals as one document, for ``import_cluster``; of any schema version.

    Raises ``UserError`` without a cluster, ``CorruptError`` for a znode that is no document.
    """
    found = documents(store.dump())
    version = _version(found)
    return {"schema": version, "znodes": dict(sorted(found.items()))}


def import_cluster(store: Store, exported: object, *, author: str, reason: str, now: float) -> int:
    """Write an exported document into an empty chroot; gives how many znodes it has.

    The schema's znode comes last, so that nothing takes half an import for a cluster; one that was
    interrupted can be repeated. Raises ``UserError`` when the document is none, is of another
    version, or the chroot is not empty.
    """
    wanted = _exported(exported)
    data = {path: b"" if doc is None else _bytes(doc) for path, doc in wanted.items()}
    problems = verify(data)
    if problems:
        said = "\n".join(f"{problem.path}: {problem.what}" for problem in problems)
        raise UserError(f"the document does not keep to the schema:\n{said}")
    store.make_root()
    there = store.dump()
    if SCHEMA in there or any(data.get(path) != found for path, found in there.items()):
        raise UserError(
            "the chroot is not empty: an import makes a new cluster, and merges nothing"
        )
    missing = [path for path in sorted(wanted) if path != SCHEMA and path not in there]
    writes = ((Put(*at(path, wanted[path]), ABSENT), len(data[path])) for path in missing)
    for part in in_transactions(writes):
        store.commit(part)
    entry = records.Audit(who=author, command="schema import", reason=reason, time=now)
    audit.commit(store, [Put(*at(SCHEMA, wanted[SCHEMA]), ABSENT)], entry)
    return len(wanted)


def pending_migrations(
    store: Store, target: int = table.VERSION, known: Sequence[Migration] = MIGRATIONS
) -> list[Migration]:
    """What ``migrate_cluster`` would do. Raises ``UserError`` when it cannot get to ``target``."""
    schema = store.read(paths.schema())
    if schema is None:
        raise UserError("this chroot holds no flumeng cluster: run `flumeng schema init`")
    try:
        return migrations.path_to(schema.value.version, target, known)
    except LookupError as error:
        raise UserError(f"{error}: use the flumeng that matches") from error


def migrate_cluster(
    store: Store, migration: Migration, *, author: str, reason: str, now: float
) -> int:
    """Bring the tree to the version after ``migration.before``; gives how many znodes it wrote.

    No master may be live. Every write expects the version that the migration saw; the schema's
    znode is raised with the last of them. Interrupted, it is gone on with by calling it again.
    Raises ``ConflictError``, ``UnavailableError``, ``CorruptError``.
    """
    masters = store.children(paths.live_masters())
    if masters:
        raise ConflictError(f"master {masters[0]} is live: stop all masters, then migrate")
    schema = store.read(paths.schema())
    if schema is None or schema.value.version != migration.before:
        raise ConflictError(f"the cluster does not have schema version {migration.before} any more")
    named = [path for path, data in store.dump().items() if data]
    seen = store.read_many([at(path, {})[0] for path in named])
    versions = {path: found.version for path, found in zip(named, seen, strict=True) if found}
    found = documents(store.dump())  # after the versions, so that none is newer than what is seen
    changes = migration.changes({p: doc for p, doc in found.items() if p != SCHEMA})
    writes: list[tuple[Write, int]] = []
    for change in changes:
        assert change.path != SCHEMA, "the schema's znode is not a migration's to write"
        folder_or_new = ANY if change.path in found else ABSENT
        expect = versions.get(change.path, folder_or_new)
        if isinstance(change, Delete):
            writes.append((Remove(at(change.path, None)[0], expect), 0))
        else:
            path, value = at(change.path, change.document)
            size = len(_bytes(change.document)) if change.document else 0
            writes.append((Put(path, value, expect), size))
    raised = records.Schema(
        version=migration.before + 1, features=schema.value.features, extra=schema.value.extra
    )
    *parts, last = [*in_transactions(writes)] or [[]]
    for part in parts:
        store.commit(part)
    command = f"schema migrate {migration.before} -> {migration.before + 1}"
    entry = records.Audit(who=author, command=command, reason=reason, time=now)
    audit.commit(store, [*last, Put(paths.schema(), raised, schema.version)], entry)
    return len(changes)


def verify_cluster(store: Store) -> list[Problem]:
    """Everything that does not keep to the schema, and whatever belongs to nothing."""
    dump = store.dump()
    found = [*verify(dump), *references.dangling(dump), *orphans(store)]
    return sorted(found, key=lambda problem: problem.path)


def orphans(store: Store) -> list[Problem]:
    """What ``remove_orphans`` removes."""
    return [*references.orphans(store.dump()), *_without_session(store)]


def remove_orphans(
    store: Store, found: Sequence[Problem], *, author: str, reason: str, now: float
) -> None:
    """Remove those of ``found`` that are orphans still, each at the version at which it is one.

    Raises ``ConflictError`` when one of them changes meanwhile.
    """
    named = [at(problem.path, {})[0] for problem in found]
    seen = store.read_many(named)
    still = {problem.path for problem in orphans(store)}
    writes: list[tuple[Write, int]] = [
        (Remove(path, znode.version), 0)
        for path, znode in zip(named, seen, strict=True)
        if znode and str(path) in still
    ]
    for part in in_transactions(writes):
        command = f"schema verify --fix: removed {', '.join(str(write.path) for write in part)}"
        entry = records.Audit(who=author, command=command[:8192], reason=reason, time=now)
        audit.commit(store, part, entry)


def _without_session(store: Store) -> list[Problem]:
    """Znodes that say that a process is live, and that no session holds."""
    live = [
        *(paths.live_node(name) for name in store.children(paths.live_nodes())),
        *(paths.live_master(name) for name in store.children(paths.live_masters())),
    ]
    return [
        Problem(str(path), "orphan: not ephemeral, so it says of a dead process that it is live")
        for path, found in zip(live, store.read_many(live), strict=True)
        if found and not found.session
    ]


def _version(found: Mapping[str, Mapping[str, Any] | None]) -> int:
    schema = found.get(SCHEMA)
    if schema is None:
        raise UserError("this chroot holds no flumeng cluster: run `flumeng schema init`")
    return int(schema["version"])


def _bytes(document: Mapping[str, Any]) -> bytes:
    value = at("/", document)[1]
    assert value is not None
    return codec.encode(value)


def _exported(exported: object) -> dict[str, dict[str, Any] | None]:
    """The znodes of a document that has the shape of an export. Raises ``UserError``."""
    znodes = exported.get("znodes") if isinstance(exported, dict) else None
    if not isinstance(znodes, dict) or not all(
        doc is None or (isinstance(doc, dict) and "v" in doc) for doc in znodes.values()
    ):
        raise UserError("this is no document of `flumeng schema export`")
    live = [path for path in znodes if (row := table.find(path)) and row.lifetime == "ephemeral"]
    if live:
        raise UserError(f"the document holds {live[0]}, which only a live process may write")
    return znodes
