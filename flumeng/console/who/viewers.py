"""A viewer: the proven name and the rights of who asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flumeng.platform.errors import NotAllowedError
from zkschema.access import Member

Role = Literal["viewer", "operator", "admin"]
Proof = Literal["loopback", "certificate", "oidc", "token"]


@dataclass(frozen=True)
class Viewer:
    """``name``: as in the audit. ``flows``: patterns of the flows that an operator may change; None
    means all. ``csrf``: what the forms of a session carry; empty without a session."""

    name: str
    role: Role = "viewer"
    proof: Proof = "loopback"
    flows: tuple[str, ...] | None = None
    csrf: str = ""

    def may_change(self, flow: str | None = None) -> bool:
        """Return whether the viewer may change ``flow``; without one, the cluster."""
        if self.role == "viewer":
            return False
        if flow is None:
            return self.flows is None
        return Member(self.name, self.flows).is_for(flow)

    def require(self, flow: str | None = None) -> None:
        """Raises NotAllowedError unless the viewer may change ``flow``, or the cluster."""
        if not self.may_change(flow):
            what = f"flow {flow}" if flow is not None else "the cluster"
            raise NotAllowedError(
                f"{self.name} may not change {what}: ask an administrator for the role operator"
            )
