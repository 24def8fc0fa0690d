"""Secures an open cluster, admits and expels members. Writes in this order: members' records, the
groups in the schema (new znodes then get access lists), existing access lists. Idempotent."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from flumeng.control.commands import membership
from flumeng.control.commands.live_processes import live_processes
from flumeng.control.commands.lookup import readable_by_name
from flumeng.control.commands.membership import Change
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import (
    ANY,
    AccessList,
    AccessStore,
    Put,
    Store,
    Versioned,
    access_lists,
    tree,
)
from flumeng.platform.errors import ConflictError, UserError
from flumeng.platform.options.patterns import check_name
from flumeng.platform.security.roles import NAMED
from zkschema import paths, records, table
from zkschema.access import SECURED, Member, Secured
from zkschema.table import NAME
from zkschema.verify import Problem

EXPELLED = 1000
PASSES = 20
"""The most passes over znodes that processes create during the command."""


@dataclass(frozen=True)
class AclMismatch:
    """A znode whose access list differs from that of the schema."""

    path: str
    actual: AccessList
    expected: AccessList

    @property
    def problem(self) -> Problem:
        may = dict(self.expected)
        looser = [
            f"{who} may {rights}"
            for who, rights in self.actual
            if set(rights) - set(may.get(who, ""))
        ]
        fault = f"is looser: {', '.join(looser)}" if looser else "lacks rights of the schema"
        return Problem(self.path, f"its access list {fault}", "set as in the schema")


def secure_cluster(
    operator: Operator, *, cluster: str, admit: Sequence[str] = (), expel: Sequence[str] = ()
) -> int:
    """Admit and expel members and set access lists; return how many lists changed. Members are
    given as ``ROLE:NAME`` or ``operator:NAME@FLOW,FLOW``. Raises UserError for an invalid member,
    ConflictError when a live process would be locked out, ForbiddenError."""
    store = operator.store
    admitted = _by_name(admit)
    for name in expel:
        _require_name(name)
    schema = tree.require_versioned(store)
    if schema.value.certificates not in ("", cluster):
        named = schema.value.certificates
        raise UserError(f"certificates name this cluster {named}, not {cluster}")
    only_admits = bool(admitted) and not expel and SECURED in schema.value.features
    among = admitted if only_admits else None
    before = membership.members(store, schema.value, among)
    members = {n: member for n, member in {**before, **admitted}.items() if n not in expel}
    if not only_admits:  # else no live process loses a right
        _require_none_locked_out(store, members, expel)
    options = [f"--member {name}" for name in admit] + [f"--without {name}" for name in expel]
    command = " ".join(["schema secure", *options])
    secured = replace(
        schema.value,
        features=tuple(sorted({*schema.value.features, SECURED})),
        certificates=cluster,
        members=tuple(sorted(map(str, members.values()))),
    )
    change = Change.of(before, members, schema.value.groups)
    count = _change_members(operator, schema, secured, change, command)
    for member in expel:
        role, _, name = member.partition(":")
        if role == "node":
            with contextlib.suppress(ConflictError):  # it is not live
                store.remove(paths.live_node(name), ANY)
    return count


def _change_members(
    operator: Operator,
    schema: Versioned[records.Schema],
    after: records.Schema,
    change: Change,
    command: str,
) -> int:
    """Write the members, and the access lists when needed; return how many lists changed."""
    store = operator.store
    identities = membership.renew(store, schema.value, change)
    operators = tuple(name for name in after.members if name.startswith("operator:"))
    changed = bool(change.written or change.gone)
    expelled = [name for name in schema.value.expelled if name not in change.after]
    expelled += [name for name in change.gone if name not in expelled]
    after = replace(
        after,
        members=operators,
        groups=identities,
        expelled=tuple(expelled[-EXPELLED:]),
        admissions=schema.value.admissions + changed,
    )
    membership.revoke(store, change)
    if after != schema.value:
        operator.commit([Put(paths.schema(), after, schema.version)], command)
    membership.expel(store, change)
    old, new = Secured.of(schema.value), Secured.of(after)
    same = old is not None and new is not None and old.names_as(new)
    returned = {*change.written}.intersection(schema.value.expelled)
    if same and changed and not change.renewed and not returned:
        return 0
    return set_access(store)


def acl_mismatches(store: Store, znodes: Collection[str]) -> list[AclMismatch]:
    """Return the mismatches of these znodes; none in an open cluster."""
    schema = store.read(paths.schema())
    secured = Secured.of(schema.value if schema else None)
    if secured is None or not isinstance(store, AccessStore):
        return []
    named, mismatches = sorted(znodes), []
    journals = _journals(store, named)
    for path, actual in zip(named, store.access_lists(named), strict=True):
        expected = access_lists.expected(path, secured, journals.get(path))
        if actual is not None and not access_lists.same(actual, expected):
            mismatches.append(AclMismatch(path, actual, expected))
    return mismatches


def _journals(store: Store, znodes: Sequence[str]) -> dict[str, records.Journal]:
    """Return the journal's record by path; the access lists of its znodes depend on it."""
    named = {}
    for path in znodes:
        names = table.journal.matches(path) or table.ack.matches(path)
        if names and NAME.fullmatch(names[-1]):
            named[path] = names[-1]
    journals = readable_by_name(store, paths.journal, sorted({*named.values()}))
    return {path: journals[name].value for path, name in named.items() if name in journals}


def set_access(store: Store) -> int:
    """Correct every access list; return how many changed. Raises ``ForbiddenError`` without an
    administrator's rights, ``ConflictError`` while processes create wrong ones."""
    assert isinstance(store, AccessStore)
    count, seen = 0, set[str]()
    for _ in range(PASSES):
        new = [path for path in ("/", *store.znodes()) if path not in seen]
        wrong = {mismatch.path: mismatch.expected for mismatch in acl_mismatches(store, new)}
        if not wrong:
            return count
        count += store.set_access_lists(wrong)
        seen.update(new)
    raise ConflictError(
        f"{next(iter(wrong))} and others are created with wrong access lists all the time: a "
        "process does not know that the cluster is secured"
    )


def _by_name(members: Sequence[str]) -> dict[str, Member]:
    by_name: dict[str, Member] = {}
    for member in map(Member.parse, members):
        _require_name(member.name)
        _require_flows(member)
        if by_name.setdefault(member.name, member) != member:
            raise UserError(
                f"{member.name} is admitted twice, as {by_name[member.name]} and as {member}: name "
                "all its flows at once"
            )
    return by_name


def _require_name(member: str) -> None:
    role, _, name = member.partition(":")
    if "@" in member:
        whole = member.partition("@")[0]
        raise UserError(
            f"{member!r} is not a name: expel {whole}, or admit it again with the flows it keeps"
        )
    if role not in NAMED or not NAME.fullmatch(name):
        roles = ", ".join(sorted(f"{named_role}:NAME" for named_role in NAMED))
        raise UserError(
            f"{member!r} is not a member: expected one of {roles}, or operator:NAME@FLOW,FLOW. All "
            "other certificates of the cluster have the rights of their role"
        )


def _require_flows(member: Member) -> None:
    if member.flows is None:
        return
    if not member.name.startswith("operator:"):
        raise UserError(f"'{member}' is not a member: only an operator is admitted for some flows")
    for flow in member.flows:
        try:
            check_name(flow.replace("*", "x"))
        except ValueError as error:
            raise UserError(
                f"'{member}' is not a member: {flow!r} is not a flow: {error}; * matches anything"
            ) from error


def _require_none_locked_out(
    store: Store, admitted: Collection[str], expelled: Collection[str]
) -> None:
    live = [process for process in live_processes(store) if process.identity not in expelled]
    unknown = [str(process) for process in live if not process.identity]
    if unknown:
        raise ConflictError(
            f"{', '.join(unknown)} would be locked out for lack of an identity. Give each a "
            "directory of certificates (FLUMENG_IDENTITY) and ZooKeeper's secure port; restart it"
        )
    named = {process.identity for process in live if process.identity.partition(":")[0] in NAMED}
    left = sorted(named.difference(admitted))
    if left:
        options = " ".join(f"--member {name}" for name in left)
        raise ConflictError(f"{', '.join(left)} would be locked out: add {options}")
