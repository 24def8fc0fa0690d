"""Certificates for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flumeng.platform.security.authority import Authority, new_authority
from flumeng.platform.security.credentials import Keystore
from flumeng.platform.security.expiry import utc_now
from flumeng.platform.security.identity import Identity
from flumeng.platform.security.roles import Role

CLUSTER = "tests"
HOSTS = ("localhost", "127.0.0.1", "::1")


class Certificates:
    """An authority whose certificates are valid for loopback, and directories with issued ones."""

    def __init__(self, top: Path, cluster: str = CLUSTER) -> None:
        self.top, self.cluster = top, cluster
        self.authority: Authority = new_authority(cluster, utc_now())

    def folder(
        self, *roles: Role, name: str = "n1", hosts: Sequence[str] = HOSTS, days: float = 1
    ) -> Path:
        """The credentials of ``name`` in these roles, as ``FLUMENG_IDENTITY`` names them."""
        folder = self.top / name
        folder.mkdir(parents=True, exist_ok=True)
        for role in roles:
            keystore = Keystore(folder, role)
            if not keystore.ca.exists():  # servers with this folder would begin again
                keystore.ca.write_bytes(self.authority.pem)
            identity = Identity(self.cluster, role, name)
            issued = self.authority.issue(identity, hosts, days=days, now=utc_now())
            keystore.certificate.write_bytes(issued.certificate)
            keystore.key.touch(mode=0o600)
            keystore.key.write_bytes(issued.key)
        return folder
