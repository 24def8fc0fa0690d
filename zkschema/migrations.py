"""From one version of the tree to the next. Pure: ``tree -> writes``.

A migration sees every persistent znode as a document (``None`` for a folder) and says what to
write. It never sees the schema's own znode, which is raised last and by others. Its writes may be
carried out in parts and be begun anew after a crash, so one law holds for each and is tested: from
any prefix of its writes it leads to the same tree, and on that tree it writes nothing more.
Processes of the version after it run meanwhile, and write as the version before it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]
Tree = Mapping[str, Document | None]


@dataclass(frozen=True)
class Set:
    """Create or overwrite; a document holds its format version ``"v"``."""

    path: str
    document: Document | None


@dataclass(frozen=True)
class Delete:
    """Remove a znode without children."""

    path: str


Change = Set | Delete


@dataclass(frozen=True)
class Migration:
    """From ``before`` to the version after it."""

    before: int
    doc: str
    changes: Callable[[Tree], Sequence[Change]]


MIGRATIONS: tuple[Migration, ...] = ()
"""All of them, in order. Version 1 is the first."""


def path_to(version: int, target: int) -> list[Migration]:
    """The migrations from ``version`` to ``target``, in order. LookupError when one is missing."""
    known = {migration.before: migration for migration in MIGRATIONS}
    missing = [number for number in range(version, target) if number not in known]
    if missing or version > target:
        raise LookupError(f"there is no migration from schema version {version} to {target}")
    return [known[number] for number in range(version, target)]
