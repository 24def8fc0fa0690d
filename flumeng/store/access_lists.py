"""What access lists the znodes of a secured cluster are to have, and what is said of a refusal."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from flumeng.security.roles import Role, subject_of
from flumeng.store import AccessList
from zkschema import access
from zkschema.access import Secured
from zkschema.records import Journal

SCHEME = "x509"
REFUSED = "ZooKeeper refuses it (NoAuthError)"
OTHER_CREDENTIAL = f"{REFUSED}: an ACL wants another credential than is given"


def refusal(member: str, secured: Secured | None) -> str:
    """What is said when this one may not change something."""
    admitted = secured.admitted.get(member) if secured else None
    if admitted is None or admitted.flows is None:
        return OTHER_CREDENTIAL
    flows = ", ".join(admitted.flows)
    return f"{REFUSED}: {member} may change no flows but {flows}, and make or delete none"


def wanted(path: str, secured: Secured, journal: Journal | None = None) -> AccessList:
    """The list of the znode at ``path``, relative to the chroot; see ``access.acl``."""
    return _named(access.acl(path, secured, journal), secured.cluster)


@lru_cache(maxsize=4096)
def _named(entries: tuple[access.Entry, ...], cluster: str) -> AccessList:
    return tuple(sorted((f"{SCHEME}:{_subject(one, cluster)}", may) for one, may in entries))


def _subject(member: str, cluster: str) -> str:
    role, _, name = member.partition(":")
    return subject_of(cluster, cast(Role, role), name)
