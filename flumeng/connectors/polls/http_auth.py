"""The headers that say who asks over HTTP. Tokens of OAuth 2 are kept until they expire."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import quote_plus, urlencode

from urllib3.util import make_headers

from flumeng.config.client_tls import ClientTls
from flumeng.connectors.polls import json_paths
from flumeng.connectors.polls.http_client import HttpClient, Request
from flumeng.connectors.polls.http_options import HttpAuth, OAuth2
from flumeng.connectors.polls.http_records import scalar, value_at
from flumeng.platform import secrets
from flumeng.platform.errors import UserError

EARLY_SECONDS = 60.0
"""A token is not used so shortly before it expires."""
TOKEN, EXPIRES = "access_token", "expires_in"
DEFAULT_SECONDS = 300.0
MOST_TOKEN_BYTES = 16 * 1024
MOST_HAD = 10
"""A page may name the token with which one before it was asked for."""


class Auth(Protocol):
    @property
    def tokens(self) -> frozenset[str]:
        """That were sent lately, and that no state may have."""

    def headers(self) -> Mapping[str, str]:
        """Raises UnavailableError, UserError, CorruptError."""

    def forget(self) -> bool:
        """The server did not take them; whether there may be others now."""

    def close(self) -> None: ...


class Given:
    """Headers that do not change."""

    def __init__(self, headers: Mapping[str, str], token: str = "") -> None:
        self._headers = headers
        self.tokens = frozenset({token} - {""})

    def headers(self) -> Mapping[str, str]:
        return self._headers

    def forget(self) -> bool:
        return False

    def close(self) -> None:
        """It has nothing open."""


class Tokens:
    """Of one client of OAuth 2; asked by one thread."""

    def __init__(self, options: OAuth2, tls: ClientTls | None, timeout_seconds: float) -> None:
        """Raises UserError."""
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
        self._token = ""
        self._until = 0.0
        self._had: deque[str] = deque(maxlen=MOST_HAD)

    @property
    def tokens(self) -> frozenset[str]:
        return frozenset(self._had)

    def headers(self) -> Mapping[str, str]:
        if not self._token or time.monotonic() >= self._until:
            self._renew()
        return {"Authorization": f"Bearer {self._token}"}

    def forget(self) -> bool:
        had, self._token = self._token, ""
        return bool(had)

    def close(self) -> None:
        self._client.close()

    def _renew(self) -> None:
        asked = time.monotonic()
        try:
            body = self._client.ask(self._request).body
        finally:
            self._client.rest()
        values = (value_at(body, json_paths.parse(name)) for name in (TOKEN, EXPIRES))
        token, seconds = (scalar(value) if value is not None else None for value in values)
        if not token or not _is_token(token):
            raise UserError(f"{self._request}: the answer is no JSON with an access_token")
        try:
            lasts = float(seconds) if seconds is not None else DEFAULT_SECONDS
        except ValueError:
            lasts = DEFAULT_SECONDS
        self._token = token
        self._had.append(token)
        self._until = asked + max(lasts - EARLY_SECONDS, lasts / 2)


def auth_of(options: HttpAuth | None, tls: ClientTls | None, timeout_seconds: float) -> Auth:
    """Raises UserError."""
    if options is None:
        return Given({})
    if options.oauth2 is not None:
        return Tokens(options.oauth2, tls, timeout_seconds)
    if options.bearer is not None:
        token = secrets.resolve(options.bearer)
        if not _is_token(token):
            raise UserError("http_poll: the secret of auth.bearer is not printable ASCII")
        return Given({"Authorization": f"Bearer {token}"}, token)
    assert options.username is not None
    assert options.password is not None
    pair = f"{options.username}:{secrets.resolve(options.password)}"
    encoded = make_headers(basic_auth=pair.encode().decode("latin-1"))
    return Given({"Authorization": encoded["authorization"]})


def _is_token(text: str) -> bool:
    return text.isascii() and text.isprintable() and len(text) <= MOST_TOKEN_BYTES
