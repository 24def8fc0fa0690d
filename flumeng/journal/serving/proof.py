"""Client credentials for journal servers. Imports little, since executors load it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flumeng.platform.scrubbing import Secret
from flumeng.platform.security import process
from flumeng.platform.security.credentials import keystore_of

if TYPE_CHECKING:
    from flumeng.platform.security.credentials import Credentials
    from flumeng.platform.security.roles import Role


@dataclass(frozen=True)
class Proof:
    """Credentials in PEM. ``ca``: the servers' authorities. ``signer``: ``Signer.certificates``."""

    ca: bytes
    certificate: bytes
    key: Secret = field(repr=False)
    signer: str = ""

    @classmethod
    def of(cls, credentials: Credentials, signer: str = "") -> Proof:
        key = Secret(credentials.key.decode())
        return cls(credentials.ca, credentials.certificate, key, signer)


def of_process(*roles: Role) -> Proof | None:
    """Return the proof of this process, or of the first of these roles with a certificate; None in
    an open cluster. Raises UserError."""
    keystore = keystore_of(*roles) if roles else process.keystore()
    return Proof.of(process.loaded.of(keystore)) if keystore else None
