"""Client credentials for journal servers. Light to import: executors have it."""

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
    """PEM. ``ca``: the authorities of servers. ``signer``: appended to tokens, see ``tokens``."""

    ca: bytes
    certificate: bytes
    key: Secret = field(repr=False)
    signer: str = ""

    @classmethod
    def of(cls, credentials: Credentials, signer: str = "") -> Proof:
        key = Secret(credentials.key.decode())
        return cls(credentials.ca, credentials.certificate, key, signer)


def of_process(*roles: Role) -> Proof | None:
    """The proof of the process or of the first of these roles that it has; None in an open cluster.
    Raises UserError."""
    keystore = keystore_of(*roles) if roles else process.keystore()
    return Proof.of(process.loaded.of(keystore)) if keystore else None
