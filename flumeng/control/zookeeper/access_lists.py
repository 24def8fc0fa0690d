"""Access lists of a secured cluster in ZooKeeper's form, and explanations of refusals."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, cast

from flumeng.control.zookeeper import AccessList
from flumeng.platform.security.roles import Role, subject_of
from zkschema import access
from zkschema.access import PERMISSIONS, Secured
from zkschema.records import Journal

SCHEME = "x509"
DIGEST = "digest"
BITS = {letter: 1 << number for number, letter in enumerate(PERMISSIONS)}
HIDDEN = ":x"
REFUSED = "ZooKeeper refuses it (NoAuthError)"
OTHER_CREDENTIAL = f"{REFUSED}: the ACL requires another credential"


def refusal(member: str, secured: Secured | None) -> str:
    """Return why ZooKeeper refuses a change by ``member``, and the remedy."""
    if secured is None or not member:
        return OTHER_CREDENTIAL
    role = member.partition(":")[0]
    admitted = secured.admitted.get(member)
    if admitted is not None and admitted.flows is not None:
        flows = ", ".join(admitted.flows)
        return f"{REFUSED}: {member} may change only the flows {flows}, and create or delete none"
    if role == "operator" and admitted is None:
        return (
            f"{REFUSED}: {member} is not admitted to this cluster; "
            f"an administrator admits it with `flumeng schema secure --member {member}`"
        )
    return f"{REFUSED}: {_may(role)}"


def _may(role: str) -> str:
    if role == "viewer":
        return (
            "a viewer may read everything and tap flows, but change nothing; "
            "use the certificate of an operator or an administrator"
        )
    if role == "operator":
        return "an operator may not change this; use the certificate of an administrator"
    return f"the role {role} may not change this, or its ACL is old: `flumeng schema verify --fix`"


def expected(path: str, secured: Secured, journal: Journal | None = None) -> AccessList:
    """Return the access list that the znode at ``path`` should have; see ``access.acl``."""
    return _named(access.acl(path, secured, journal), secured)


def identity(group: str, secret: str) -> str:
    """Return the identity of a group's secret in ZooKeeper's ``digest`` scheme."""
    digest = hashlib.sha1(credential(group, secret).encode(), usedforsecurity=False).digest()
    return f"{group}:{base64.b64encode(digest).decode()}"


def credential(group: str, secret: str) -> str:
    return f"{group}:{secret}"


def same(actual: AccessList, expected: AccessList) -> bool:
    """Return whether the lists are equal; a digest that ZooKeeper hides (``:x``) equals any."""
    if actual == expected:
        return True
    hidden = tuple(sorted((_hidden(who), may) for who, may in expected))
    return any(who.endswith(HIDDEN) for who, _ in actual) and actual == hidden


def _hidden(who: str) -> str:
    return f"{who.rpartition(':')[0]}{HIDDEN}" if who.startswith(f"{DIGEST}:") else who


@lru_cache(maxsize=4096)
def _named(entries: tuple[access.Entry, ...], secured: Secured) -> AccessList:
    return tuple(sorted((_identity(member, secured), may) for member, may in entries))


def _identity(member: str, secured: Secured) -> str:
    if member.startswith(access.MEMBERS):
        return f"{DIGEST}:{secured.identities[member.removeprefix(access.MEMBERS)]}"
    return f"{SCHEME}:{_subject(member, secured.cluster)}"


def _subject(member: str, cluster: str) -> str:
    role, _, name = member.partition(":")
    return subject_of(cluster, cast(Role, role), name)


@lru_cache(maxsize=4096)
def to_kazoo(entries: AccessList) -> list[Any]:
    from kazoo.security import ACL, Id  # noqa: PLC0415  executors have no kazoo

    return [
        ACL(sum(BITS[letter] for letter in may), Id(*who.split(":", 1))) for who, may in entries
    ]


def of_kazoo(acls: Iterable[Any]) -> AccessList:
    return tuple(sorted((f"{acl.id.scheme}:{acl.id.id}", _letters(acl.perms)) for acl in acls))


def _letters(permissions: int) -> str:
    return "".join(letter for letter in PERMISSIONS if permissions & BITS[letter])
