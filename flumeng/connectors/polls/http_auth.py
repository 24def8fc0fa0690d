"""Authentication headers: basic, bearer, or an OAuth 2 token."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from urllib.parse import quote_plus, urlencode

from urllib3.util import make_headers

from flumeng.config.client_tls import ClientTls
from flumeng.connectors.polls.http_client import HttpClient, Request
from flumeng.connectors.polls.http_options import HttpAuth, OAuth2
from flumeng.connectors.polls.json_paths import parse, scalar, value_at
from flumeng.platform import secrets
from flumeng.platform.errors import UserError

EARLY_SECONDS = 60.0
"""Tokens are renewed this long before they expire, but not before half of their life."""
DEFAULT_SECONDS = 300.0
MOST_TOKEN_BYTES = 16 * 1024
MOST_KEPT = 10


class Auth:
    """Constant headers that may contain ``token``."""

    def __init__(self, headers: Mapping[str, str], token: str = "") -> None:
        self._headers = headers
        self._tokens = deque([token] if token else [], maxlen=MOST_KEPT)

    @property
    def tokens(self) -> frozenset[str]:
        """The latest tokens, forbidden in poll states: a page may contain the previous one."""
        return frozenset(self._tokens)

    def headers(self) -> Mapping[str, str]:
        """Return the current headers. Raises UnavailableError, UserError, CorruptError."""
        return self._headers

    def forget(self) -> bool:
        """Forget the token after HTTP 401. Returns whether the next headers may differ."""
        return False

    def close(self) -> None:
        """Do nothing: nothing is open."""


class OAuthTokens(Auth):
    """OAuth 2 tokens by the grant ``client_credentials``. Not thread-safe."""

    def __init__(self, options: OAuth2, tls: ClientTls | None, timeout_seconds: float) -> None:
        """Resolve the client's secret. Raises UserError when it is missing."""
        super().__init__({})
        secret = secrets.resolve(options.client_secret)
        form = {"grant_type": "client_credentials", **options.parameters}
        own = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        if options.credentials_in == "body":
            form |= {"client_id": options.client_id, "client_secret": secret}
        else:
            pair = f"{quote_plus(options.client_id)}:{quote_plus(secret)}"
            own["Authorization"] = make_headers(basic_auth=pair)["authorization"]
        self._request = Request("POST", options.token_url, own, urlencode(form).encode())
        self._client = HttpClient(options.token_url, (), tls, timeout_seconds)
        self._until = 0.0

    def headers(self) -> Mapping[str, str]:
        if not self._headers or time.monotonic() >= self._until:
            self._renew()
        return self._headers

    def forget(self) -> bool:
        had, self._headers = self._headers, {}
        return bool(had)

    def close(self) -> None:
        self._client.close()

    def _renew(self) -> None:
        requested_at = time.monotonic()
        try:
            body = self._client.ask(self._request).body
        finally:
            self._client.rest()
        values = (value_at(body, parse(name)) for name in ("access_token", "expires_in"))
        token, seconds = (scalar(value) if value is not None else None for value in values)
        if not token or not _is_token(token):
            raise UserError(f"{self._request}: the answer is not JSON with an access_token")
        try:
            lasts = float(seconds) if seconds is not None else DEFAULT_SECONDS
        except ValueError:
            lasts = DEFAULT_SECONDS
        self._headers = {"Authorization": f"Bearer {token}"}
        self._tokens.append(token)
        self._until = requested_at + max(lasts - EARLY_SECONDS, lasts / 2)


def auth_of(options: HttpAuth | None, tls: ClientTls | None, timeout_seconds: float) -> Auth:
    """Return the configured authentication. Raises UserError for a missing or invalid secret."""
    if options is None:
        return Auth({})
    if options.oauth2 is not None:
        return OAuthTokens(options.oauth2, tls, timeout_seconds)
    if options.bearer is not None:
        token = secrets.resolve(options.bearer)
        if not _is_token(token):
            raise UserError("http_poll: the secret of auth.bearer is not printable ASCII")
        return Auth({"Authorization": f"Bearer {token}"}, token)
    assert options.username is not None
    assert options.password is not None
    pair = f"{options.username}:{secrets.resolve(options.password)}"
    encoded = make_headers(basic_auth=pair.encode().decode("latin-1"))
    return Auth({"Authorization": encoded["authorization"]})


def _is_token(text: str) -> bool:
    return text.isascii() and text.isprintable() and len(text) <= MOST_TOKEN_BYTES
