"""The roles that a certificate can give, and their subjects. Loads no cryptography: every process
imports this, also in an open cluster."""

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
    "subscriber",
    "zookeeper",
]
ROLES: tuple[Role, ...] = get_args(Role)
PEOPLE: tuple[Role, ...] = ("admin", "operator", "viewer")
NAMED: frozenset[Role] = frozenset({"node", "operator", "subscriber"})
"""Two of the same of these roles may do different things."""


def folder() -> Path | None:
    """The directory that this process was told; None in an open cluster."""
    told = os.environ.get(DIRECTORY)
    return Path(told) if told else None


def member_of(role: Role, name: str = "") -> str:
    """As access lists and the tree name whoever has that role, and that name where the role needs
    one."""
    return f"{role}:{name}" if role in NAMED else role


def subject_of(cluster: str, role: Role, name: str = "") -> str:
    """The subject of the certificate of such a one."""
    return f"CN={member_of(role, name)},O={cluster}"
