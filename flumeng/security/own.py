"""As whom this process acts. In an open cluster nothing of cryptography is loaded for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flumeng.security import roles
from flumeng.security.roles import Role

if TYPE_CHECKING:
    from flumeng.security.credentials import Place


def place(*wanted: Role) -> Place | None:
    """See ``credentials.place_of``."""
    if roles.folder() is None:
        return None
    from flumeng.security.credentials import place_of  # noqa: PLC0415  loads cryptography

    return place_of(*wanted)


def member(*wanted: Role) -> str:
    """As access lists and the tree name the first of these roles whose certificate is here; empty
    in an open cluster. Raises UserError."""
    found = place(*wanted)
    return found.load().identity.member if found else ""


def people() -> list[str]:
    """The operators whose certificate is here, as members."""
    folder = roles.folder()
    return [member("operator")] if folder and (folder / "operator.pem").exists() else []


def cluster() -> str | None:
    """The cluster that an administrator's certificate here is for; None without one. Raises
    UserError."""
    folder = roles.folder()
    found = place("admin") if folder and (folder / "admin.pem").exists() else None
    return found.load().identity.cluster if found else None
