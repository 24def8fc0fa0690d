"""Limits and authentication of senders to a listening source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flumeng.connectors.network.server_tls import Tls, canonical
from flumeng.platform.options.option import option

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}", re.ASCII)


def check_sender(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError("expected 1 to 63 letters, digits and any of _.@- after the first")


@dataclass(frozen=True, kw_only=True)
class PeerLimits:
    """Limits for one peer address (of IPv6: one /64 network) in each ingest worker.

    A faster sender is read more slowly; over `http` it is answered with 429 and `Retry-After`.
    Behind a proxy all senders have its address.
    """

    connections: int | None = option(
        doc="Further ones are closed and counted.", between=(1, 10**6), default=None
    )
    bytes_per_second: int | None = option(
        doc="Received bytes, with framing.", unit="bytes", between=(1024, 2**40), default=None
    )
    events_per_second: int | None = option(
        doc="Received events, including empty lines.",
        unit="events",
        between=(1, 10**9),
        default=None,
    )


NO_LIMITS = PeerLimits()


@dataclass(frozen=True, kw_only=True)
class SenderAuth:
    """The senders that may send events, with a token (`Authorization: Bearer`), as a user
    (`Basic`), or with a certificate that `tls` accepts.

    With `tokens` or `users` a certificate alone is not enough.
    """

    tokens: Mapping[str, str] = option(
        doc="Tokens by the events' `client`. A sender may have two names, one each for the old "
        "and the new token, while senders change over.",
        example='{shop: "${secret:shop-token}"}',
        check=check_sender,
        factory=dict,
        secret=True,
    )
    users: Mapping[str, str] = option(
        doc="Passwords by user.",
        example='{ann: "${secret:ann-password}"}',
        check=check_sender,
        factory=dict,
        secret=True,
    )
    paths: Mapping[str, tuple[str, ...]] = option(
        doc="The senders that may use a path and all below it: names of tokens and users, or, "
        "without these, names as in `tls.clients`. The longest path counts; other paths are "
        "forbidden. Without this option all senders may use all paths.",
        example="{/shop: [shop, ann]}",
        factory=dict,
        minimum=1,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        for name in self.tokens.keys() & self.users.keys():
            yield f"users.{name}", "a token has the same name: use another one"
        for path in self.paths:
            if not path.startswith("/") or (path.endswith("/") and path != "/"):
                yield f"paths.{path}", "expected a path like /shop, without a slash at its end"

    def problems_with(self, tls: Tls | None) -> Iterator[tuple[str, str]]:
        """Yield problems that depend on ``tls``: no authentication, or unknown senders."""
        names = {*self.tokens, *self.users}
        if not names:
            if tls is None or tls.client_ca is None:
                yield "", "expected tokens, users, or tls with client_ca"
                return
            names = {canonical(client) for client in tls.clients}
        for path, senders in self.paths.items():
            for name in senders:
                if self.name_of(name) not in names:
                    listed = ", ".join(sorted(names)) or "none: name them in tls.clients"
                    yield f"paths.{path}", f'unknown sender "{name}"; known here: {listed}'

    def name_of(self, sender: str) -> str:
        """Return the name in its normal form, for comparison."""
        if self.tokens or self.users:
            return sender
        try:
            return canonical(sender)
        except ValueError:
            return sender
