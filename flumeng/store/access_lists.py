"""What access lists the znodes of a secured cluster are to have, and what is said of a refusal."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from flumeng.security.roles import NAMED, Role, subject_of
from flumeng.store import AccessList
from zkschema import access
from zkschema.access import Secured
from zkschema.records import Journal

SCHEME = "x509"
REFUSED = "ZooKeeper refuses it (NoAuthError)"
OTHER_CREDENTIAL = f"{REFUSED}: an ACL wants another credential than is given"


def refusal(member: str, secured: Secured | None) -> str:
    """Why ZooKeeper refuses a change of ``member``, what its role may do, and what helps."""
    if secured is None or not member:
        return OTHER_CREDENTIAL
    role = member.partition(":")[0]
    admitted = secured.admitted.get(member)
    if admitted is not None and admitted.flows is not None:
        flows = ", ".join(admitted.flows)
        return f"{REFUSED}: {member} may change no flows but {flows}, and make or delete none"
    if role in NAMED and admitted is None:
        return (
            f"{REFUSED}: {member} is not admitted to this cluster; "
            f"an administrator admits it with `flumeng schema secure --member {member}`"
        )
    return f"{REFUSED}: {_may(role)}"


def _may(role: str) -> str:
    if role == "viewer":
        return (
            "a viewer may read everything and tap flows, and change nothing; "
            "use the certificate of an operator or an administrator"
        )
    if role == "operator":
        return "an operator may not change this; use the certificate of an administrator"
    return f"the role {role} may not change this; use the certificate of an operator"


def wanted(path: str, secured: Secured, journal: Journal | None = None) -> AccessList:
    """The list of the znode at ``path``, relative to the chroot; see ``access.acl``."""
    return _named(access.acl(path, secured, journal), secured.cluster)


@lru_cache(maxsize=4096)
def _named(entries: tuple[access.Entry, ...], cluster: str) -> AccessList:
    return tuple(sorted((f"{SCHEME}:{_subject(one, cluster)}", may) for one, may in entries))


def _subject(member: str, cluster: str) -> str:
    role, _, name = member.partition(":")
    return subject_of(cluster, cast(Role, role), name)
