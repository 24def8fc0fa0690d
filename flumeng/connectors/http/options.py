"""The options of the source ``http``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.config.component import Guarantee, SourceOptions
from flumeng.connectors.api.line_options import max_line_bytes
from flumeng.connectors.network.options import LISTEN_DOC, PER_PEER_DOC, TLS_DOC, claim, listening
from flumeng.connectors.network.senders import NO_LIMITS, PeerLimits, SenderAuth
from flumeng.connectors.network.server_tls import Tls
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.quantities import check_address


@dataclass(frozen=True)
class Http(SourceOptions):
    """Receives events in the bodies of POST requests, and answers 200 once they are durable, or as
    `ack` says.

    JSON arrays (`application/json`), lines of JSON (`application/x-ndjson`), batches of Arrow or,
    with any other content type, lines; plain or packed with gzip or zstd. Attributes: `source`,
    `peer`, `client`, `path`, and `content_type` but of Arrow.
    """

    implementation: ClassVar[str] = "flumeng.connectors.http.source:HttpSource"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"acknowledging"})

    listen: str = option(doc=LISTEN_DOC, check=check_address, example='"0.0.0.0:8080"')
    max_body_bytes: int = option(
        doc="A body larger than this, before or after decompression, is refused with 413.",
        between=(1024, 2**26),
        default=2**22,
    )
    max_line_bytes: int = max_line_bytes()
    ack: Literal["received", "journaled", "delivered"] = option(
        doc="When to answer 200: once the request is read (`received`), once its events are as "
        "durable as the flow says (`journaled`), or once each of them is in all sinks of the "
        "flow, was dropped by a filter, or is in the dead letters (`delivered`).",
        default="journaled",
    )
    ack_timeout_seconds: float = option(
        doc="With `delivered`: a request whose events are journaled but not delivered within "
        "this time is answered with 504. They will be delivered; a retry duplicates them.",
        between=(0.1, 3600),
        default=30.0,
    )
    auth: SenderAuth | None = option(doc="Authorized senders; by default all.", default=None)
    per_peer: PeerLimits = option(doc=PER_PEER_DOC, default=NO_LIMITS)
    tls: Tls | None = option(doc=TLS_DOC, default=None)

    @property
    def delivered_within_seconds(self) -> float | None:
        """Time limit of waiting for delivery; None when ``ack`` does not wait for delivery."""
        return self.ack_timeout_seconds if self.ack == "delivered" else None

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.auth is not None:
            for name, message in self.auth.problems_with(self.tls):
                yield f"auth.{name}".rstrip("."), message

    def claims(self) -> Iterator[tuple[str, str]]:
        return claim("tcp", self.listen)

    def needs(self) -> Iterator[Need]:
        return listening(self.listen, self.tls)

    def arrival(self) -> str:
        if self.ack == "received":
            return (
                "senders are answered 200 before their events are journaled: those not journaled "
                "when the worker fails are lost"
            )
        when = ", once the sinks have the events," if self.ack == "delivered" else ""
        return (
            f"senders that retry until they are answered 200{when} lose nothing; a retry may "
            "duplicate events"
        )
