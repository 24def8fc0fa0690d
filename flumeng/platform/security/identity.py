"""Who a process is: its role and its name in one cluster, as its certificate says.

A certificate says it twice. The subject is what ZooKeeper's provider ``x509`` compares with access
lists, which cannot hold a pattern: so all processes whose rights are equal have one subject, and
only of those roles that differ by name is the name in it. The alternative name ``flumeng://...``
always has role and name, and is what flumeng itself reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flumeng.platform.errors import UserError
from flumeng.platform.security.roles import ROLES, Role, member_of, subject_of

if TYPE_CHECKING:
    from cryptography import x509

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_URI = re.compile(r"flumeng://([^/]+)/([^/]+)/([^/]+)")


@dataclass(frozen=True)
class Identity:
    """``name`` is that of the node, the master or the person."""

    cluster: str
    role: Role
    name: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UserError(f"there is no role {self.role}: expected one of {', '.join(ROLES)}")
        for what, text in (("cluster", self.cluster), (self.role, self.name)):
            if not NAME.fullmatch(text):
                raise UserError(
                    f"{text!r} cannot be the name of a {what} in a certificate: expected at most "
                    "63 letters, digits, dots, dashes and underscores"
                )

    @property
    def subject(self) -> str:
        """As ZooKeeper has it of the certificate (RFC 2253)."""
        return subject_of(self.cluster, self.role, self.name)

    @property
    def member(self) -> str:
        """As access lists and the tree name it."""
        return member_of(self.role, self.name)

    @property
    def uri(self) -> str:
        return f"flumeng://{self.cluster}/{self.role}/{self.name}"

    def __str__(self) -> str:
        return f"{self.role} {self.name}"


def parse_uri(uri: str) -> Identity:
    """Raises UserError."""
    found = _URI.fullmatch(uri)
    if found is None or found[2] not in ROLES:
        raise UserError(f"{uri!r} names nobody of a cluster: expected flumeng://CLUSTER/ROLE/NAME")
    return Identity(found[1], found[2], found[3])


def identity_of(certificate: x509.Certificate) -> Identity:
    """Whom a certificate is for; whether it is genuine has been seen before. Raises UserError."""
    from cryptography import x509  # noqa: PLC0415  20 MB that an open cluster does not need

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        uris = []
    ours = [uri for uri in uris if uri.startswith("flumeng://")]
    if len(ours) != 1:
        raise UserError("this certificate names nobody of a cluster: it was not made by flumeng")
    identity = parse_uri(ours[0])
    subject = certificate.subject.rfc4514_string()
    if subject != identity.subject:
        raise UserError(f"this certificate is for {subject} and for {identity.uri} at once")
    return identity
