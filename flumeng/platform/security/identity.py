"""The identity of a process: its role and its name in one cluster, from its certificate.

ZooKeeper's provider ``x509`` compares the certificate's subject with access lists, which cannot
hold a pattern. So processes with equal rights share one subject; the subject contains the name only
for roles whose rights differ by name. The alternative name ``flumeng://...`` always contains role
and name; flumeng reads only that.
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
    """An identity; ``name`` is that of the node, the master or the person."""

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
        """The certificate's subject in ZooKeeper's form (RFC 2253)."""
        return subject_of(self.cluster, self.role, self.name)

    @property
    def member(self) -> str:
        """The role, perhaps with the name, in access lists and znodes."""
        return member_of(self.role, self.name)

    @property
    def uri(self) -> str:
        return f"flumeng://{self.cluster}/{self.role}/{self.name}"

    def __str__(self) -> str:
        return f"{self.role} {self.name}"


def parse_uri(uri: str) -> Identity:
    match = _URI.fullmatch(uri)
    if match is None or match[2] not in ROLES:
        raise UserError(f"{uri!r} is no identity: expected flumeng://CLUSTER/ROLE/NAME")
    return Identity(match[1], match[2], match[3])


def identity_of(certificate: x509.Certificate) -> Identity:
    """Return the identity of a certificate that was already verified. Raises UserError."""
    from cryptography import x509  # noqa: PLC0415  20 MB that an open cluster does not need

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        uris = []
    ours = [uri for uri in uris if uri.startswith("flumeng://")]
    if len(ours) != 1:
        raise UserError("this certificate has no identity in a cluster: flumeng did not make it")
    identity = parse_uri(ours[0])
    subject = certificate.subject.rfc4514_string()
    if subject != identity.subject:
        raise UserError(f"this certificate is for {subject} and for {identity.uri} at once")
    return identity
