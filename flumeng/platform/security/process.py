"""Who this process is to the others. Certificates are read again when their files change; in an
open cluster nothing of cryptography is loaded."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from flumeng.platform.security import roles
from flumeng.platform.security.credentials import Credentials, Keystore, keystore_of
from flumeng.platform.security.roles import PEOPLE, Role

_roles: tuple[Role, ...] = PEOPLE


def serve_as(*wanted: Role) -> None:
    """This process has the first of these roles whose certificate it has. A process that says
    nothing is a person's."""
    global _roles  # noqa: PLW0603  # one process is one
    _roles = wanted


def keystore() -> Keystore | None:
    """None in an open cluster. Raises UserError."""
    return keystore_of(*_roles)


def member(*wanted: Role) -> str:
    """As access lists and the tree name the first of these roles whose certificate is here; empty
    in an open cluster. Raises UserError."""
    found = keystore_of(*wanted)
    return found.load().identity.member if found else ""


def operators() -> list[str]:
    """The operators whose certificate is here, as members."""
    return [member("operator")] if _has("operator") else []


def administered_cluster() -> str | None:
    """The cluster that an administrator's certificate here is for; None without one. Raises
    UserError."""
    found = keystore_of("admin") if _has("admin") else None
    return found.load().identity.cluster if found else None


def _has(role: Role) -> bool:
    folder = roles.folder()
    return folder is not None and Keystore(folder, role).certificate.exists()


@dataclass(frozen=True)
class _Kept:
    changed: tuple[int, ...]
    credentials: Credentials


class Loaded:
    """The credentials of places, loaded again when their files have changed. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Keystore, _Kept] = {}

    def of(self, keystore: Keystore) -> Credentials:
        """Raises UserError."""
        changed = keystore.changed
        with self._lock:
            kept = self._kept.get(keystore)
        if kept is None or kept.changed != changed:
            kept = _Kept(changed, keystore.load())
            with self._lock:
                self._kept[keystore] = kept
        return kept.credentials


loaded = Loaded()
