"""Secures an open cluster, admits and expels members. In order: members' records, then the groups
in the schema (new znodes get access lists), then existing access lists. Idempotent."""

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
"""Passes over znodes that processes create meanwhile."""


@dataclass(frozen=True)
class AclMismatch:
    """A znode whose access list differs from that of the schema."""

    path: str
    found: AccessList
    wanted: AccessList

    @property
    def problem(self) -> Problem:
        may = dict(self.wanted)
        looser = [
            f"{who} may {said}" for who, said in self.found if set(said) - set(may.get(who, ""))
        ]
        what = f"its access list is looser: {', '.join(looser)}" if looser else "its access list"
        missing = "" if looser else " lacks what the schema gives"
        return Problem(self.path, what + missing, "set as the schema says")


def secure_cluster(
    operator: Operator, *, cluster: str, admit: Sequence[str] = (), expel: Sequence[str] = ()
) -> int:
    """Admit and expel members and set access lists; returns how many changed. Members:
    ``ROLE:NAME`` or ``operator:NAME@FLOW,FLOW``. Raises UserError for an invalid member,
    ConflictError when a live process would be locked out, ForbiddenError."""
    store = operator.store
    admitted = _by_name(admit)
    for name in expel:
        _require_name(name)
    schema = tree.require_versioned(store)
    if schema.value.certificates not in ("", cluster):
        named = schema.value.certificates
        raise UserError(f"this cluster is {named} in certificates, not {cluster}")
    only_admits = bool(admitted) and not expel and SECURED in schema.value.features
    among = admitted if only_admits else None
    before = membership.members(store, schema.value, among)
    wanted = {n: member for n, member in {**before, **admitted}.items() if n not in expel}
    if not only_admits:  # else no live process loses a right
        _require_none_locked_out(store, wanted, expel)
    said = [f"--member {one}" for one in admit] + [f"--without {one}" for one in expel]
    command = " ".join(["schema secure", *said])
    secured = replace(
        schema.value,
        features=tuple(sorted({*schema.value.features, SECURED})),
        certificates=cluster,
        members=tuple(sorted(map(str, wanted.values()))),
    )
    change = Change.of(before, wanted, schema.value.groups)
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
    """Access lists change only when a member is expelled or readmitted."""
    store = operator.store
    identities = membership.renew(store, schema.value, change)
    operators = tuple(one for one in after.members if one.startswith("operator:"))
    changed = bool(change.written or change.gone)
    expelled = [one for one in schema.value.expelled if one not in change.after]
    expelled += [one for one in change.gone if one not in expelled]
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
    known, wanted = Secured.of(schema.value), Secured.of(after)
    same = known is not None and wanted is not None and known.names_as(wanted)
    returned = {*change.written}.intersection(schema.value.expelled)
    if same and changed and not change.renewed and not returned:
        return 0
    return set_access(store)


def acl_mismatches(store: Store, znodes: Collection[str]) -> list[AclMismatch]:
    """Mismatches of these znodes; none in an open cluster."""
    schema = store.read(paths.schema())
    secured = Secured.of(schema.value if schema else None)
    if secured is None or not isinstance(store, AccessStore):
        return []
    named, found = sorted(znodes), []
    journals = _journals(store, named)
    for path, known in zip(named, store.access_lists(named), strict=True):
        wanted = access_lists.wanted(path, secured, journals.get(path))
        if known is not None and not access_lists.same(known, wanted):
            found.append(AclMismatch(path, known, wanted))
    return found


def _journals(store: Store, znodes: Sequence[str]) -> dict[str, records.Journal]:
    """Path -> record of its journal, on which the access list depends."""
    named = {}
    for path in znodes:
        names = table.journal.matches(path) or table.ack.matches(path)
        if names and NAME.fullmatch(names[-1]):
            named[path] = names[-1]
    known = readable_by_name(store, paths.journal, sorted({*named.values()}))
    return {path: known[name].value for path, name in named.items() if name in known}


def set_access(store: Store) -> int:
    """Set every access list once; returns how many changed. Only administrators change lists."""
    assert isinstance(store, AccessStore)
    count, seen = 0, set[str]()
    for _ in range(PASSES):
        new = [path for path in ("/", *store.znodes()) if path not in seen]
        wrong = {one.path: one.wanted for one in acl_mismatches(store, new)}
        if not wrong:
            return count
        count += store.set_access_lists(wrong)
        seen.update(new)
    raise ConflictError(
        f"{next(iter(wrong))} and others are created with other access lists all the time: a "
        "process does not know that the cluster is secured"
    )


def _by_name(members: Sequence[str]) -> dict[str, Member]:
    found: dict[str, Member] = {}
    for member in map(Member.parse, members):
        _require_name(member.name)
        _require_flows(member)
        if found.setdefault(member.name, member) != member:
            raise UserError(
                f"{member.name} is admitted twice, as {found[member.name]} and as {member}: name "
                "all its flows at once"
            )
    return found


def _require_name(member: str) -> None:
    role, _, name = member.partition(":")
    if "@" in member:
        whole = member.partition("@")[0]
        raise UserError(
            f"{member!r} is no name: expel {whole}, or admit it anew with the flows that it keeps"
        )
    if role not in NAMED or not NAME.fullmatch(name):
        roles = ", ".join(sorted(f"{one}:NAME" for one in NAMED))
        raise UserError(
            f"{member!r} is no member: expected one of {roles}, or operator:NAME@FLOW,FLOW. All "
            "other certificates of the cluster have the rights of their role"
        )


def _require_flows(member: Member) -> None:
    if member.flows is None:
        return
    if not member.name.startswith("operator:"):
        raise UserError(f"'{member}' is no member: only an operator is admitted for some flows")
    for flow in member.flows:
        try:
            check_name(flow.replace("*", "x"))
        except ValueError as error:
            raise UserError(
                f"'{member}' is no member: {flow!r} can be no flow: {error}; * stands for anything"
            ) from error


def _require_none_locked_out(
    store: Store, admitted: Collection[str], expelled: Collection[str]
) -> None:
    live = [one for one in live_processes(store) if one.identity not in expelled]
    unknown = [str(one) for one in live if not one.identity]
    if unknown:
        raise ConflictError(
            f"{', '.join(unknown)} would be locked out: without an identity. Give each a directory "
            "of certificates (FLUMENG_IDENTITY) and the secure port of ZooKeeper, and restart it"
        )
    named = {one.identity for one in live if one.identity.partition(":")[0] in NAMED}
    left = sorted(named.difference(admitted))
    if left:
        options = " ".join(f"--member {one}" for one in left)
        raise ConflictError(f"{', '.join(left)} would be locked out: add {options}")
