"""What access lists the znodes of a secured cluster are to have."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from flumeng.security.roles import Role, subject_of
from flumeng.store import AccessList
from zkschema import access
from zkschema.access import Secured

SCHEME = "x509"


def wanted(path: str, secured: Secured) -> AccessList:
    """The list of the znode at ``path``, relative to the chroot."""
    return _named(access.acl(path, secured), secured.cluster)


@lru_cache(maxsize=4096)
def _named(entries: tuple[access.Entry, ...], cluster: str) -> AccessList:
    return tuple(sorted((f"{SCHEME}:{_subject(one, cluster)}", may) for one, may in entries))


def _subject(member: str, cluster: str) -> str:
    role, _, name = member.partition(":")
    return subject_of(cluster, cast(Role, role), name)
