"""Authorization of calls to a journal server, by the role in the peer's certificate. Roles that are
not in ``MAY`` may do nothing; in an open cluster everything is allowed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from flumeng.events.journal_names import flow_of
from flumeng.journal.log.errors import DeniedError
from flumeng.journal.serving import tokens, wire
from flumeng.journal.serving.replica_wire import REPLICA
from flumeng.journal.serving.wire import Ticket
from flumeng.platform.errors import UserError
from flumeng.platform.security.credentials import Credentials
from flumeng.platform.security.expiry import utc_now
from flumeng.platform.security.identity import Identity, parse_uri
from flumeng.platform.security.roles import Role

READ: Literal["read"] = "read"
TAP: Literal["tap"] = "tap"
_LOOK = frozenset({wire.POSITIONS, wire.ACCOUNTS, wire.REPLICAS, wire.COUNTERS, wire.OFFSETS, TAP})
MAY: Mapping[Role, frozenset[str]] = {
    "collector": frozenset({READ, wire.WATCH, wire.POSITIONS}),
    "discovery": frozenset({READ, wire.POSITIONS}),
    "executor": frozenset({READ}),
    "gateway": frozenset({READ, wire.WATCH, wire.POSITIONS, wire.ACCOUNTS}),
    "node": frozenset({REPLICA}),
    "subscriber": frozenset(
        {READ, wire.WATCH, wire.POSITIONS, wire.FLOW_POSITIONS, wire.LEASE, wire.FLOW_FILTERS}
    ),
    "viewer": _LOOK,
    "operator": _LOOK | {wire.CHECK_TARGETS},
    "admin": _LOOK | {wire.CHECK_TARGETS},
}
ALL_FLOWS = "*"
Granted = Callable[[str], Collection[str]]
"""Returns the flows that a subscriber, by name, may read; ``*`` for all."""


def granted_nothing(_name: str) -> Collection[str]:
    return ()


@dataclass(frozen=True)
class Peer:
    """The caller of a server; ``identity`` is None in an open cluster."""

    identity: Identity | None
    flows: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        return self.identity.uri if self.identity else ""

    def require(self, what: str) -> None:
        if self.identity is not None and what not in MAY.get(self.identity.role, ()):
            raise DeniedError(f"a certificate of {self.identity} does not allow {what} here")

    def sees(self, journal: str) -> bool:
        return self.may_read(flow_of(journal))

    def may_read(self, flow: str) -> bool:
        if self.identity is None or self.identity.role != "subscriber":
            return True
        return flow in self.flows or ALL_FLOWS in self.flows


OPEN = Peer(None)


class Access:
    """Authorizes calls to a server. ``own``: the server's credentials; None in an open cluster."""

    def __init__(
        self,
        own: Credentials | None,
        granted: Granted = granted_nothing,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._own = own
        self._granted = granted
        self._now = now

    def peer(self, context: Any) -> Peer:
        if self._own is None:
            return OPEN
        try:
            # The first alternative name of the certificate that was verified in the handshake.
            identity = parse_uri(context.peer_identity().decode())
        except (UserError, UnicodeDecodeError) as error:
            raise DeniedError(f"your certificate is not accepted: {error}") from error
        if identity.cluster != self._own.identity.cluster:
            raise DeniedError(
                f"your certificate is for the cluster {identity.cluster}, but this is "
                f"{self._own.identity.cluster}"
            )
        flows = self._granted(identity.name) if identity.role == "subscriber" else ()
        return Peer(identity, frozenset(flows))

    def require_read(self, peer: Peer, ticket: Ticket) -> None:
        peer.require(TAP if ticket.tapped else READ)
        if peer.identity is None or self._own is None:
            return
        if peer.identity.role == "executor":
            tokens.require(ticket, self._own.ca, self._own.identity.cluster, self._now())
        elif peer.identity.role == "discovery" and ticket.end - ticket.start > 1:
            raise DeniedError("discovery processes may read only one event, for its time")
        elif not peer.sees(ticket.journal):
            raise DeniedError(
                f"this node's policy file does not let {peer.identity} read the flow "
                f"{flow_of(ticket.journal)}: name it in `subscribers` there"
            )
