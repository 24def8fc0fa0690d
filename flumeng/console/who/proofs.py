"""Finds the viewer of a request: by token, session, certificate, loopback address, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from starlette.requests import Request

from flumeng.console.who.members import Members
from flumeng.console.who.oidc import Oidc
from flumeng.console.who.rates import Rates
from flumeng.console.who.refusals import LogInError, TooManyError
from flumeng.console.who.sessions import Session, Sessions
from flumeng.console.who.tokens import Tokens
from flumeng.console.who.viewers import Rights, Viewer

SAFE = ("GET", "HEAD", "OPTIONS")
CERTIFICATE = "certificate"
"""The name of the client's certificate (DER) in the state of a request; TLS has verified it."""


@dataclass(frozen=True)
class Bounds:
    """The rates of requests. ``logins`` counts also wrong tokens. Proxies and hosts send for many
    people, so addresses may send more than names."""

    address: Rates
    name: Rates
    changes: Rates
    logins: Rates

    @classmethod
    def usual(cls, monotonic: Callable[[], float]) -> Bounds:
        return cls(
            address=Rates(200, 1000, monotonic),
            name=Rates(50, 300, monotonic),
            changes=Rates(2, 20, monotonic),
            logins=Rates(0.5, 10, monotonic),
        )


@dataclass(frozen=True)
class Who:
    """The ways to prove a name. ``anonymous``: the rights without a proof, None for none.
    ``certificates``: whether TLS asks for them. ``url``: the console's, for people, or empty.
    ``hosts``: the DNS names under which browsers may ask."""

    members: Members
    sessions: Sessions
    bounds: Bounds
    anonymous: Rights | None = None
    certificates: bool = False
    tokens: Tokens | None = None
    oidc: Oidc | None = None
    url: str = ""
    hosts: frozenset[str] = field(default_factory=frozenset)

    def is_secure(self, request: Request) -> bool:
        """Whether the browser uses TLS, perhaps with a proxy before this console."""
        return request.url.scheme == "https" or self.url.startswith("https:")

    def cookie_name(self, request: Request) -> str:
        """Return the session cookie's name. Browsers send plain cookies to all ports of a host."""
        if self.is_secure(request):
            return "__Host-flumeng"
        return f"flumeng-{request.url.port or 80}"

    def origins(self, request: Request) -> set[str]:
        """Return the origins of this console's own pages, as browsers send them."""
        own = {f"{request.url.scheme}://{request.headers.get('host', '').lower()}"}
        if self.url:
            parts = urlsplit(self.url)
            own.add(f"{parts.scheme}://{parts.netloc.lower()}")
        return own

    def admit(self, request: Request) -> Viewer:
        """Return the viewer. Blocks to read ZooKeeper, a file. Raises LogInError, TooManyError,
        NotAllowedError; UnavailableError when a proof cannot be checked now."""
        viewer = self.viewer(request)
        wait = self.bounds.name.take(viewer.name)
        if not wait and request.method not in SAFE:
            wait = self.bounds.changes.take(viewer.name)
        if wait:
            raise TooManyError(f"{viewer.name} asks too often", wait)
        return viewer

    def viewer(self, request: Request) -> Viewer:
        """Return the viewer, as ``admit`` does, without counting the request."""
        session: Session = request.state.session
        viewer = self._proven(request, session)
        console = self.members.console_rights
        return replace(viewer, console=console, csrf=self.sessions.csrf(session))

    def _proven(self, request: Request, session: Session) -> Viewer:
        authorization = request.headers.get("authorization")
        if authorization is not None:
            return self._by_token(request, authorization)
        if session.proof:
            return self._by_session(session)
        certificate = getattr(request.state, CERTIFICATE, None)
        if self.certificates and certificate:
            name, rights = self.members.viewer(certificate)
            return Viewer(name, rights.role, "certificate", rights.flows)
        if self.anonymous is not None:
            return Viewer("anonymous", self.anonymous.role, "loopback", self.anonymous.flows)
        raise LogInError("log in first")

    def _by_token(self, request: Request, authorization: str) -> Viewer:
        scheme, _, text = authorization.partition(" ")
        found = None
        if self.tokens is not None and scheme.lower() == "bearer":
            found = self.tokens.of(text.strip())
        if found is None:
            self.count_login(request)
            raise LogInError("the token in the header Authorization is not valid here, or expired")
        name, token = found
        return Viewer(f"token:{name}", token.role, "token", token.flows)

    def _by_session(self, session: Session) -> Viewer:
        if session.proof == "oidc" and self.oidc is not None:
            rights = self.oidc.rights(session.groups)
            if rights is not None:
                return Viewer(session.name, rights.role, "oidc", rights.flows, can_leave=True)
        if session.proof == "token" and self.tokens is not None:
            found = self.tokens.by_digest(session.digest)
            if found is not None:
                name, token = found
                return Viewer(f"token:{name}", token.role, "token", token.flows, can_leave=True)
        raise LogInError("your session has ended: log in again")

    def count_login(self, request: Request) -> None:
        """Count a login, or a wrong proof. Raises TooManyError."""
        wait = self.bounds.logins.take(address(request))
        if wait:
            raise TooManyError("too many logins from your address", wait)


def address(request: Request) -> str:
    return request.client.host if request.client is not None else "unknown"
