"""The identity of this process. Changed certificates are read again."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from flumeng.platform.security import roles
from flumeng.platform.security.credentials import Credentials, Keystore, keystore_of
from flumeng.platform.security.roles import PEOPLE, Role

_roles: tuple[Role, ...] = PEOPLE


def serve_as(*candidates: Role) -> None:
    """Use the first of these roles with a certificate, instead of the roles of people."""
    global _roles  # noqa: PLW0603  # process-wide
    _roles = candidates


def keystore() -> Keystore | None:
    """Return the credential files of this process; None in an open cluster. Raises UserError."""
    return keystore_of(*_roles)


def member(*candidates: Role) -> str:
    """Return the first certified role's member name; "" in an open cluster. Raises UserError."""
    keystore = keystore_of(*candidates)
    return keystore.load().identity.member if keystore else ""


def operators() -> list[str]:
    """Return the member names of operators that have a certificate on this host."""
    return [member("operator")] if _has("operator") else []


def administered_cluster() -> str | None:
    """Return the cluster of the administrator's certificate, if any. Raises UserError."""
    keystore = keystore_of("admin") if _has("admin") else None
    return keystore.load().identity.cluster if keystore else None


def _has(role: Role) -> bool:
    folder = roles.folder()
    return folder is not None and Keystore(folder, role).certificate.exists()


@dataclass(frozen=True)
class _Kept:
    changed: tuple[int, ...]
    credentials: Credentials


class Loaded:
    """Caches credentials until their files change. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Keystore, _Kept] = {}

    def of(self, keystore: Keystore) -> Credentials:
        """Return the credentials, read again after a change. Raises UserError."""
        changed = keystore.changed
        with self._lock:
            kept = self._kept.get(keystore)
        if kept is None or kept.changed != changed:
            kept = _Kept(changed, keystore.load())
            with self._lock:
                self._kept[keystore] = kept
        return kept.credentials


loaded = Loaded()
