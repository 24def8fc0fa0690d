"""From one version of the tree to the next. Pure: ``tree -> writes``.

A migration sees every persistent znode as a document (``None`` for a folder) and says what to
write. It never sees the schema's own znode, which is raised last and by others. Its writes may be
carried out in parts and be begun anew after a crash, so one law holds for each and is tested: from
any prefix of its writes it leads to the same tree, and on that tree it writes nothing more.
Processes of the version after it run meanwhile, and write as the version before it does.
"""

from __future__ import annotations

import re
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


def _add_intents_and_logs(tree: Tree) -> list[Change]:
    """Queues as sets were never used: what there is of them goes."""
    unused = [
        path
        for path, document in tree.items()
        if re.fullmatch("/queues/[^/]+/(items|claims|done)(/.+)?", path)
        or (re.fullmatch("/queues/[^/]+", path) and document is None)
    ]
    flows = [path.split("/")[2] for path in tree if re.fullmatch("/flows/[^/]+", path)]
    folders = ["/intents", *(f"/intents/{flow}" for flow in sorted(flows))]
    return [
        *(Delete(path) for path in sorted(unused, reverse=True)),
        *(Set(path, None) for path in folders if path not in tree),
    ]


def _nothing(_tree: Tree) -> list[Change]:
    """What the next version adds is only made when it is used."""
    return []


def _add_tombstones(tree: Tree) -> list[Change]:
    return [] if "/tombstones" in tree else [Set("/tombstones", None)]


def _add_leases(tree: Tree) -> list[Change]:
    return [] if "/leases" in tree else [Set("/leases", None)]


def _add_members_and_moves(tree: Tree) -> list[Change]:
    wanted = (Set("/members", None), Set("/moves", {"v": 1}))
    return [change for change in wanted if change.path not in tree]


MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        1, "queues become logs; intents of tasks and pushes get a place", _add_intents_and_logs
    ),
    Migration(2, "pushes keep what they change, to be undone", _nothing),
    Migration(3, "deleted flows leave their history", _add_tombstones),
    Migration(4, "readers that are no flows get a place", _add_leases),
    Migration(
        5,
        "flows run filters of the flows that they read; queues keep what could not be read",
        _nothing,
    ),
    Migration(6, "flows poll on a schedule; journals have copies on several nodes", _nothing),
    Migration(
        7,
        "members of a secured cluster have records, and access lists groups; throttles hold for "
        "all masters together",
        _add_members_and_moves,
    ),
)


def path_to(
    version: int, target: int, migrations: Sequence[Migration] = MIGRATIONS
) -> list[Migration]:
    """The migrations from ``version`` to ``target``, in order. LookupError when one is missing."""
    known = {migration.before: migration for migration in migrations}
    missing = [number for number in range(version, target) if number not in known]
    if missing or version > target:
        raise LookupError(f"there is no migration from schema version {version} to {target}")
    return [known[number] for number in range(version, target)]
