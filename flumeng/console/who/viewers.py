"""Viewers: their proven names and their rights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flumeng.platform.errors import NotAllowedError
from zkschema.access import Member

Role = Literal["viewer", "operator", "admin"]
Proof = Literal["loopback", "certificate", "oidc", "token"]


@dataclass(frozen=True)
class Rights:
    """``flows``: patterns of the flows that an operator may change; None means all."""

    role: Role = "viewer"
    flows: tuple[str, ...] | None = None

    def may_change(self, flow: str | None = None) -> bool:
        """Return whether these rights allow to change ``flow``; without one, the cluster."""
        if self.role == "viewer":
            return False
        return self.flows is None if flow is None else Member("", self.flows).is_for(flow)


EVERYTHING = Rights("admin")


@dataclass(frozen=True)
class Viewer:
    """``name``: as in the audit. ``flows``: as in ``Rights``. ``csrf``: the token in the forms of a
    session; empty without one. ``console``: the rights of the console's own certificate, which
    bound each viewer. ``can_leave``: whether a session of its own can be ended."""

    name: str
    role: Role = "viewer"
    proof: Proof = "loopback"
    flows: tuple[str, ...] | None = None
    csrf: str = ""
    console: Rights = EVERYTHING
    can_leave: bool = False

    def may_change(self, flow: str | None = None) -> bool:
        """Return whether the viewer may change ``flow``; without one, the cluster."""
        return Rights(self.role, self.flows).may_change(flow) and self.console.may_change(flow)

    def require(self, flow: str | None = None) -> None:
        """Raises NotAllowedError unless the viewer may change ``flow``, or the cluster."""
        if self.may_change(flow):
            return
        part = f"flow {flow}" if flow is not None else "the cluster"
        if Rights(self.role, self.flows).may_change(flow):
            raise NotAllowedError(
                f"{self.name} may not change {part} here: the console's own certificate does not "
                "allow it"
            )
        raise NotAllowedError(
            f"{self.name} may not change {part}: ask an administrator for the role operator"
        )
