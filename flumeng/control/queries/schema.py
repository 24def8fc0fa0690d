"""The schema of the tree in ZooKeeper, and its migrations."""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.control.commands.cluster import pending_migrations
from flumeng.control.commands.live_processes import LiveProcess, live_processes
from flumeng.control.zookeeper import ReadableStore, tree
from zkschema import table
from zkschema.migrations import Migration


@dataclass(frozen=True)
class ZnodeRow:
    """A kind of znode. ``record``: the type of its content; None for a folder. ``size_bytes``: its
    limit. ``since``: the schema version that brought it."""

    znode: str
    record: str | None
    lifetime: str
    writer: str
    size_bytes: int
    since: int
    doc: str


@dataclass(frozen=True)
class Znodes:
    """Every kind of znode that this flumeng knows. ``version``: of its schema."""

    version: int
    znodes: tuple[ZnodeRow, ...]


@dataclass(frozen=True)
class Migrations:
    """``version``: of the tree. ``older``: live processes that cannot use the newest version."""

    version: int
    pending: tuple[str, ...]
    older: tuple[LiveProcess, ...]


def znodes() -> Znodes:
    return Znodes(
        table.VERSION,
        tuple(
            ZnodeRow(
                znode=row.pattern,
                record=row.record.__name__ if row.record else None,
                lifetime=row.lifetime,
                writer=row.writer,
                size_bytes=row.size_bytes,
                since=row.since,
                doc=row.doc,
            )
            for row in table.ROWS
        ),
    )


def older_processes(store: ReadableStore) -> list[LiveProcess]:
    """Return the live processes that cannot use a tree of the newest version."""
    return [process for process in live_processes(store) if process.schema < table.VERSION]


def migrations(store: ReadableStore) -> Migrations:
    """Raises UserError without a cluster of a known version."""
    pending = tuple(map(step, pending_migrations(store)))
    return Migrations(tree.require(store).version, pending, tuple(older_processes(store)))


def step(migration: Migration) -> str:
    """Describe a migration in one line."""
    return f"{migration.before} -> {migration.before + 1}: {migration.doc}"
