"""Migrations from one version of the tree to the next: pure functions from a tree to writes.

A migration sees every persistent znode but the schema's own as a document (``None`` for a folder).
Its writes may be interrupted and repeated. So a repetition after any part of them leads to the same
tree, and writes nothing on a migrated tree. Processes of the next version run meanwhile, and write
like those of the version before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]
Tree = Mapping[str, Document | None]


@dataclass(frozen=True)
class Set:
    """Creates or overwrites a znode; a document holds its format version ``"v"``."""

    path: str
    document: Document | None


@dataclass(frozen=True)
class Delete:
    path: str


Change = Set | Delete


@dataclass(frozen=True)
class Migration:
    before: int
    doc: str
    changes: Callable[[Tree], Sequence[Change]]


MIGRATIONS: tuple[Migration, ...] = ()
"""All migrations, in order. Version 1 is the first."""


def path_to(version: int, target: int) -> list[Migration]:
    """Return migrations from ``version`` up to ``target``. Raises LookupError without a path."""
    by_version = {migration.before: migration for migration in MIGRATIONS}
    missing = [number for number in range(version, target) if number not in by_version]
    if missing or version > target:
        raise LookupError(f"there is no migration from schema version {version} to {target}")
    return [by_version[number] for number in range(version, target)]
