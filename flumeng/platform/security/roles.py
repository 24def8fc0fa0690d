"""Roles of certificates, and their subjects. Loads no cryptography: every process imports it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

DIRECTORY = "FLUMENG_IDENTITY"
Role = Literal[
    "admin",
    "operator",
    "viewer",
    "master",
    "node",
    "discovery",
    "collector",
    "executor",
    "gateway",
    "subscriber",
    "zookeeper",
]
ROLES: tuple[Role, ...] = get_args(Role)
PEOPLE: tuple[Role, ...] = ("admin", "operator", "viewer")
NAMED: frozenset[Role] = frozenset({"node", "operator", "subscriber"})
"""Roles whose rights differ by the name in the certificate."""


def folder() -> Path | None:
    """Return the identity directory of this process; None in an open cluster."""
    path = os.environ.get(DIRECTORY)
    return Path(path) if path else None


def member_of(role: Role, name: str = "") -> str:
    """Return the name of a role in access lists and znodes, with ``name`` for NAMED roles."""
    return f"{role}:{name}" if role in NAMED else role


def subject_of(cluster: str, role: Role, name: str = "") -> str:
    """Return the subject of the role's certificates."""
    return f"CN={member_of(role, name)},O={cluster}"
