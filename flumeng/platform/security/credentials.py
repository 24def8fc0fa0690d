"""The certificates and keys of one host or person, in one directory, and the choice among them.

``DIR/ca.pem`` holds the authorities of the cluster, ``DIR/ROLE.pem`` a certificate with its chain,
``DIR/ROLE.key`` its key. ``FLUMENG_IDENTITY`` names the directory to a process and its children;
without it, in an *open cluster*, connections are neither authenticated nor encrypted. Replacing the
files rotates a certificate.
"""

from __future__ import annotations

import stat
import time
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from flumeng.platform.errors import UserError
from flumeng.platform.security.identity import Identity, identity_of
from flumeng.platform.security.roles import DIRECTORY, Role, folder

if TYPE_CHECKING:
    from cryptography import x509

CA_FILE = "ca.pem"
ROTATION_SECONDS = 1.0
"""Seconds during which certificate and key may differ: a rotation replaces them one by one."""


@dataclass(frozen=True)
class Credentials:
    """The certificates and key of a process in PEM, as of the last reading."""

    ca: bytes
    certificate: bytes
    key: bytes

    @cached_property
    def leaf(self) -> x509.Certificate:
        from cryptography import x509  # noqa: PLC0415  20 MB that an open cluster does not need

        return x509.load_pem_x509_certificate(self.certificate)

    @cached_property
    def identity(self) -> Identity:
        return identity_of(self.leaf)

    @property
    def expires(self) -> datetime:
        return self.leaf.not_valid_after_utc

    def __repr__(self) -> str:
        return f"Credentials({self.identity})"


@dataclass(frozen=True)
class Keystore:
    """The files of one role's credentials."""

    folder: Path
    role: Role

    @property
    def ca(self) -> Path:
        return self.folder / CA_FILE

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.role}.pem"

    @property
    def key(self) -> Path:
        return self.folder / f"{self.role}.key"

    @property
    def changed(self) -> tuple[int, ...]:
        """The modification times of the files, 0 for missing ones: different after a change."""
        return tuple(map(_changed, (self.ca, self.certificate, self.key)))

    def load(self, rotation_seconds: float = ROTATION_SECONDS) -> Credentials:
        """Read the files, for up to ``rotation_seconds`` until the key fits the certificate. Raises
        UserError: one sentence that names the file."""
        deadline = time.monotonic() + rotation_seconds
        while True:
            credentials = self._read()
            if _belong_together(credentials):
                return credentials
            if time.monotonic() > deadline:
                raise UserError(f"{self.key} is not the key of {self.certificate}")
            time.sleep(0.02)

    def _read(self) -> Credentials:
        _require_closed(self.key)
        credentials = Credentials(*map(_content, (self.ca, self.certificate, self.key)))
        try:
            identity = credentials.identity
        except ValueError as error:
            raise UserError(f"{self.certificate} is no certificate in PEM: {error}") from error
        except UserError as error:
            raise UserError(f"{self.certificate}: {error}") from error
        if identity.role != self.role:
            raise UserError(f"{self.certificate} belongs to {identity}, not to a {self.role}")
        return credentials


def keystore_of(*roles: Role) -> Keystore | None:
    """Return the files of the first of these roles with a certificate; None in an open cluster.
    Raises UserError when the directory has none of them."""
    where = folder()
    if where is None:
        return None
    for role in roles:
        keystore = Keystore(where, role)
        if keystore.certificate.exists():
            return keystore
    any_of = (f"{'an' if role[0] in 'aeo' else 'a'} {role} ({role}.pem)" for role in roles)
    why = f"has no certificate of {' or '.join(any_of)}"
    raise UserError(f"{where}, which {DIRECTORY} names, {why}")


def load(*roles: Role) -> Credentials | None:
    keystore = keystore_of(*roles)
    return keystore.load() if keystore else None


def _belong_together(credentials: Credentials) -> bool:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415  as above

    try:
        key = load_pem_private_key(credentials.key, None)
    except (ValueError, TypeError):
        return False
    return key.public_key() == credentials.leaf.public_key()


def _changed(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error


def _require_closed(key: Path) -> None:
    try:
        mode = key.stat().st_mode
    except OSError as error:
        raise UserError(f"cannot read {key}: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(f"{key} is open to others: chmod 600 {key}")
