"""Access lists of a secured cluster: the permissions of each member on each znode. Pure.

ZooKeeper compares certificate subjects with list entries. Rights of all nodes, operators or
subscribers are those of a *group*: a ``digest`` identity whose secret only its members can read,
each in its own record. So lists do not grow with members; they name single ones only where a path
or a record does. Before its admission a member has no secret, so no group's rights. Expelling a
member renews the secrets of its groups.

An operator of some flows (patterns of names) has its rights where a path names such a flow, or a
part of it, and reads elsewhere. A cursor belongs to the flow that reads with it. Creating and
deleting are rights on the parent. Lists are not inherited.

Lists of a journal with replicas and of its acks also depend on its record; masters update them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache

from zkschema import table
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Journal, Record, Schema

SECURED = "acl"
"""The feature of a tree whose znodes have access lists."""
PERMISSIONS = "rwcda"
"""Read, write; create and delete children; change the list itself."""
GROUPS = ("master", "discovery", "collector", "executor", "gateway", "viewer")
"""Roles that lists name as such: all processes of one have the same rights, without admission."""
NAMED = ("node", "operator", "subscriber")
ANY_OPERATOR = "any-operator"
MEMBERS = "@"
"""Prefix of a group's entry: ``@node`` are all nodes."""
Entry = tuple[str, str]
"""An entry of an access list: ``ROLE``, ``ROLE:NAME`` or ``@GROUP``, and its permissions in the
order of PERMISSIONS."""
Owner = tuple[str, str]
"""A role of ``Access`` that depends on the znode; the ``ROLE:NAME`` or ``@operator`` with it."""


@dataclass(frozen=True)
class Member:
    """An admitted ``ROLE:NAME``. ``flows`` are an operator's, names with ``*``; None means all."""

    name: str
    flows: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, text: str) -> Member:
        name, limited, flows = text.partition("@")
        return cls(name, tuple(sorted(set(flows.split(",")))) if limited else None)

    def __str__(self) -> str:
        return self.name if self.flows is None else f"{self.name}@{','.join(self.flows)}"

    def is_for(self, flow: str) -> bool:
        """Whether the member may use the flow; of an isolated part the whole flow counts."""
        whole = flow.partition("~")[0]
        return self.flows is None or any(fnmatchcase(whole, like) for like in self.flows)


@dataclass(frozen=True)
class Secured:
    """The inputs of access lists besides the path: the cluster's name in certificates, its members,
    the identity of each group, and the ``expelled`` members, which no list names."""

    cluster: str
    members: tuple[str, ...] = ()
    groups: tuple[tuple[str, str], ...] = ()
    expelled: frozenset[str] = frozenset()

    @classmethod
    def of(cls, schema: Schema | None) -> Secured | None:
        """Return the inputs of a secured cluster; None for an open one."""
        if schema is None or SECURED not in schema.features:
            return None
        groups = tuple(sorted(schema.groups.items()))
        return cls(schema.certificates, schema.members, groups, frozenset(schema.expelled))

    def names_as(self, other: Secured) -> bool:
        """Whether the lists of both differ in nothing but expelled members."""
        return (self.cluster, self.groups, self.limited_operators) == (
            other.cluster,
            other.groups,
            other.limited_operators,
        )

    @cached_property
    def identities(self) -> dict[str, str]:
        return dict(self.groups)

    @cached_property
    def admitted(self) -> dict[str, Member]:
        return {member.name: member for member in map(Member.parse, self.members)}

    @cached_property
    def limited_operators(self) -> tuple[Member, ...]:
        return tuple(member for member in self.admitted.values() if member.flows is not None)


def groups_of(member: Member) -> tuple[str, ...]:
    """Return the groups of a member. An operator of some flows is not in the group ``operator``."""
    role = member.name.partition(":")[0]
    if role != "operator":
        return (role,)
    return (ANY_OPERATOR,) if member.flows is not None else ("operator", ANY_OPERATOR)


def acl(path: str, secured: Secured, journal: Journal | None = None) -> tuple[Entry, ...]:
    """Return the access list of the znode at ``path``; only an administrator may change an unknown
    one. ``journal`` is the record of the journal that the path names. ``/`` is the chroot."""
    row = table.find(path)
    names = row.matches(path) if row else None
    access = row.access if row else table.ROOT if path == "/" else table.Access()
    owners = list(_owners(row, names, secured)) if row and names else []
    if journal is not None:
        owners += _holders(journal, secured)
    return _acl(access, tuple(owners))


@lru_cache(maxsize=4096)
def _acl(access: table.Access, owners: tuple[Owner, ...]) -> tuple[Entry, ...]:
    allowed: dict[str, set[str]] = {"admin": set(PERMISSIONS)}
    rights = (
        ("r", access.read),
        ("w", access.write),
        ("c", access.create),
        ("d", access.delete),
        ("a", access.admin),
    )
    for permission, roles in rights:
        for principal in _principals(roles.split(), owners):
            allowed.setdefault(principal, set("r")).add(permission)
    return tuple(
        (who, "".join(p for p in PERMISSIONS if p in allowed[who])) for who in sorted(allowed)
    )


def _principals(roles: Sequence[str], owners: Collection[Owner]) -> Iterable[str]:
    for role in roles:
        if role in GROUPS:
            yield role
        elif role in (*NAMED, ANY_OPERATOR):
            yield MEMBERS + role
        else:
            yield from (owner for kind, owner in owners if kind == role)


def _owners(row: table.Row[Record], names: Sequence[str], secured: Secured) -> Iterable[Owner]:
    """Yield the owners by the path: its node, member and subscriber, and the flow's operators."""
    named = dict(zip(table.PLACEHOLDER.findall(row.pattern), names, strict=True))
    nodes = [named["{node}"]] if "{node}" in named else []
    for journal in (named.get("{journal}"), named.get("{partition}")):
        if journal is not None and journal.count(".") > 2:
            nodes.append(journal.rsplit(".", 2)[0].partition(".")[2])
    yield from _not_expelled("own-node", nodes, secured)
    if "{member}" in named and named["{member}"] not in secured.expelled:
        yield "own-member", named["{member}"]
    if "{cursor}" in named:
        yield from _not_expelled("own-subscriber", [named["{cursor}"]], secured)
        if ":" in named["{cursor}"]:
            yield "site-gateway", "gateway"
    cursor = named.get("{cursor}", CURSOR_MAIN)
    flow = named.get("{flow}") if cursor == CURSOR_MAIN else cursor
    if "{journal}" in named:
        flow = named["{journal}"].partition(".")[0]
    if flow is None:
        return
    yield "own-operator", f"{MEMBERS}operator"
    for member in secured.limited_operators:
        if member.is_for(flow):
            yield "own-operator", member.name


def _holders(journal: Journal, secured: Secured) -> Iterable[Owner]:
    if journal.lineage:
        yield from _not_expelled("primary-node", [journal.primary], secured)
        yield from _not_expelled("replica-node", sorted({*journal.replicas}), secured)


def _not_expelled(kind: str, names: Iterable[str], secured: Secured) -> Iterable[Owner]:
    """Return ``names`` as members of the role at the end of ``kind``, without expelled ones. Names
    that were never admitted do no harm."""
    members = ((kind, f"{kind.rpartition('-')[2]}:{name}") for name in names)
    return (owner for owner in members if owner[1] not in secured.expelled)
