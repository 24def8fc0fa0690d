"""Directories of certificates: the authority's, and those made for hosts and people. The
authority's directory has ``ca.pem``, ``ca.key`` and ``cluster``, the cluster name in every
certificate. Filling a directory again, even in use, rotates its certificates."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from flumeng.platform.errors import UserError
from flumeng.platform.security.authority import (
    Authority,
    load_authority,
    new_authority,
    private_pem,
)
from flumeng.platform.security.credentials import CA_FILE, Keystore
from flumeng.platform.security.identity import Identity
from flumeng.platform.security.roles import Role

KEY_FILE = "ca.key"
CLUSTER_FILE = "cluster"
HOST_ROLES: tuple[Role, ...] = ("node", "discovery", "collector", "executor")
"""The roles of a host whose node collects; each of its processes proves only its own role."""
OF_NODE_ROLES: Mapping[str, tuple[Role, ...]] = {
    "ingest": ("node",),
    "collect": HOST_ROLES,
    "replica": ("node",),
    "gateway": ("node", "gateway"),
}
"""The roles of certificates that a node needs for each of its own roles."""
SERVERS: frozenset[Role] = frozenset({"node", "discovery", "collector", "gateway", "zookeeper"})
"""Roles to which others connect, by a name that has to be in the certificate."""


@dataclass(frozen=True)
class ClusterAuthority:
    """An authority with the name of its cluster."""

    authority: Authority
    cluster: str

    def fill(
        self,
        folder: Path,
        roles: Sequence[Role],
        name: str,
        hosts: Sequence[str],
        *,
        days: float,
        now: datetime,
    ) -> None:
        """Write certificates and keys to ``folder``, each file atomically. Raises UserError."""
        if not hosts and (servers := [role for role in roles if role in SERVERS]):
            raise UserError(
                f"hosts connect to a {servers[0]}: give its host names and addresses with --host"
            )
        identities = [Identity(self.cluster, role, name) for role in roles]
        issued = [
            (
                Keystore(folder, identity.role),
                self.authority.issue(identity, hosts, days=days, now=now),
            )
            for identity in identities
        ]
        _make_folder(folder)
        _write(folder / CA_FILE, self.authority.pem + self.authority.chain)
        for keystore, pair in issued:
            _write(keystore.key, pair.key)
            _write(keystore.certificate, pair.certificate)


def create_authority(
    folder: Path, cluster: str, authority: Authority | None, now: datetime
) -> ClusterAuthority:
    """Create an authority's directory, with a new authority or the given one. Raises UserError,
    also when the directory has an authority already."""
    Identity(cluster, "admin", "name")
    if (folder / KEY_FILE).exists():
        raise UserError(f"{folder} already has an authority: use it, or name another directory")
    issuer = ClusterAuthority(authority or new_authority(cluster, now), cluster)
    _make_folder(folder)
    _write(folder / CLUSTER_FILE, f"{cluster}\n".encode())
    _write(folder / CA_FILE, issuer.authority.pem + issuer.authority.chain)
    _write(folder / KEY_FILE, private_pem(issuer.authority.key))
    return issuer


def open_authority(folder: Path) -> ClusterAuthority:
    """Read the authority in a directory. Raises UserError when there is none, or it is damaged."""
    try:
        cluster = (folder / CLUSTER_FILE).read_text().strip()
        certificates = (folder / CA_FILE).read_bytes()
        key = (folder / KEY_FILE).read_bytes()
    except FileNotFoundError as error:
        raise UserError(
            f"{folder} has no authority: `flumeng cluster secure init` makes one"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the authority in {folder}: {error}") from error
    return ClusterAuthority(load_authority(certificates, key), cluster)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror}") from error


def _write(file: Path, content: bytes) -> None:
    draft = file.with_name(f".{file.name}.new")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        draft.rename(file)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error
