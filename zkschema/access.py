"""Who may do what to which znode of a secured cluster. Pure: paths to access lists.

ZooKeeper compares the subject of a certificate with the entries of a list, and knows no patterns
and no groups. So those of a role that differ by name (nodes, operators, subscribers) are listed,
each by its name, once they were admitted: who was not has no rights, whatever certificate it has,
and who is expelled loses them at once. Lists are not inherited: every znode has its own. Nothing is
for everybody, and reading is for all of the cluster.

Creating and deleting are rights on the parent, over all its children alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from zkschema import table
from zkschema.records import Record, Schema

SECURED = "acl"
"""The feature of a tree whose znodes have access lists."""
PERMISSIONS = "rwcda"
"""Read, write; create and delete children; change the list itself."""
GROUPS = ("master", "discovery", "collector", "executor", "viewer")
"""All processes of such a role have the same rights."""
NAMED = ("node", "operator", "subscriber")
Entry = tuple[str, str]
"""``ROLE`` or ``ROLE:NAME``, and its permissions in the order of PERMISSIONS."""


@dataclass(frozen=True)
class Secured:
    """What access lists depend on besides the path: the cluster's name in certificates, and who
    was admitted (``ROLE:NAME``)."""

    cluster: str
    members: tuple[str, ...] = ()

    @classmethod
    def of(cls, schema: Schema | None) -> Secured | None:
        """None for an open cluster."""
        if schema is None or SECURED not in schema.features:
            return None
        return cls(schema.certificates, schema.members)


def acl(path: str, secured: Secured) -> tuple[Entry, ...]:
    """The list of the znode at ``path``; of one that no row knows, all may read it and only an
    administrator do more. ``/`` is the chroot itself."""
    row = table.find(path)
    names = row.matches(path) if row else None
    access = row.access if row else table.ROOT if path == "/" else table.Access()
    own = _owners(row, names) if row and names else ()
    return _acl(access, own, secured)


@lru_cache(maxsize=4096)
def _acl(access: table.Access, own: tuple[str, ...], secured: Secured) -> tuple[Entry, ...]:
    allowed: dict[str, set[str]] = {"admin": set(PERMISSIONS)}
    rights = (
        ("r", access.read),
        ("w", access.write),
        ("c", access.create),
        ("d", access.delete),
    )
    for permission, roles in rights:
        for one in _principals(roles.split(), own, secured.members):
            allowed.setdefault(one, set("r")).add(permission)
    return tuple(
        (one, "".join(p for p in PERMISSIONS if p in allowed[one])) for one in sorted(allowed)
    )


def _principals(roles: Sequence[str], own: Sequence[str], members: Sequence[str]) -> Iterable[str]:
    for role in roles:
        if role.startswith("own-"):
            yield from (one for one in own if one in members and one.startswith(role[4:] + ":"))
        elif role in NAMED:
            yield from (one for one in members if one.startswith(role + ":"))
        else:
            yield role


def _owners(row: table.Row[Record], names: Sequence[str]) -> tuple[str, ...]:
    """Whom the path names: the node of a node's znodes and of a journal, and the subscriber whose
    name a cursor has."""
    named = dict(zip(table.PLACEHOLDER.findall(row.pattern), names, strict=True))
    owners = []
    if "{node}" in named:
        owners.append(f"node:{named['{node}']}")
    for journal in (named.get("{journal}"), named.get("{partition}")):
        if journal is not None and journal.count(".") > 2:
            owners.append(f"node:{journal.rsplit('.', 2)[0].partition('.')[2]}")
    if "{cursor}" in named:
        owners.append(f"subscriber:{named['{cursor}']}")
    return tuple(owners)
