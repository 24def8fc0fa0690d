"""Authenticates senders by token, password, or TLS certificate. Secrets are reread within a minute;
only digests are kept, compared in constant time. A secret that disappears stays valid and is
reported: to exclude a sender, change the flow or the secret."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import re
from collections.abc import Callable, Mapping

from flumeng.connectors.http.body import RefusedError
from flumeng.connectors.network.peers import Client
from flumeng.connectors.network.senders import SenderAuth
from flumeng.platform import secrets
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.trouble_log import TroubleLog

log = logging.getLogger(__name__)

REFRESH_SECONDS = 20.0
"""Interval of rereading secrets. Command outputs are kept for 30 s: changes act in a minute."""

_BEARER, _BASIC = 'Bearer realm="flumeng"', 'Basic realm="flumeng", charset="UTF-8"'
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
_NOBODY = hashlib.sha256(b"").digest()


class Senders:
    """The senders of the source at ``address``. ``changed``: called when ``problem`` changes."""

    def __init__(self, options: SenderAuth, address: str, changed: Callable[[], None]) -> None:
        self._options = options
        self._address = address
        self._changed = changed
        self._tokens: Mapping[str, bytes] = {}
        self._passwords: Mapping[str, bytes] = {}
        self._paths = [
            (path.rstrip("/"), frozenset(map(options.name_of, senders)))
            for path, senders in sorted(options.paths.items(), reverse=True)
        ]
        """Allowed senders by path, longer paths first."""
        challenges = [_BEARER] * bool(options.tokens) + [_BASIC] * bool(options.users)
        self._challenge = ((b"www-authenticate", ", ".join(challenges).encode()),)
        self._trouble = TroubleLog(log)
        self.problem = ""

    async def start(self) -> None:
        """Read the secrets. Raises as ``secrets.resolve``; UserError for a malformed token."""
        self._tokens, self._passwords = await asyncio.to_thread(self._read)

    async def refresh(self) -> None:
        problem = ""
        try:
            self._tokens, self._passwords = await asyncio.to_thread(self._read)
        except (UnavailableError, UserError) as error:
            problem = (
                f"auth of the http source at {self._address} still uses all the old secrets, until "
                f"each can be read: {error}"
            )
            self._trouble.log(logging.WARNING, "%s", problem)
        else:
            text = "auth of the http source at %s: all secrets are read again"
            self._trouble.end(text, self._address)
        if problem != self.problem:
            self.problem = problem
            self._changed()

    def require(self, path: str, authorization: bytes, client: Client) -> str:
        """Return the name of the sender of a request. Raises RefusedError with 401 or 403."""
        name, names = client.name, client.let_in_by
        if self._options.tokens or self._options.users:
            name = self._proven(authorization)
            names = frozenset({name})
        if self._paths and not names & self.may_use(path):
            raise RefusedError(403, f"{name} may not send to this path")
        return name

    def _proven(self, authorization: bytes) -> str:
        name = self.of(authorization)
        if name is None:
            problem = "is invalid" if authorization else "is missing"
            raise RefusedError(401, f"the header Authorization {problem}", self._challenge)
        return name

    def of(self, authorization: bytes) -> str | None:
        """Return the sender with this token or password; None when unknown."""
        scheme, _, given = authorization.partition(b" ")
        given = given.strip()
        if scheme.lower() in (b"bearer", b"splunk"):
            return self._of_token(given)
        return self._of_user(given) if scheme.lower() == b"basic" else None

    def _of_token(self, given: bytes) -> str | None:
        """Return the sender with this token, comparing all tokens in constant time."""
        digest = hashlib.sha256(given).digest()
        same = [n for n, expected in self._tokens.items() if hmac.compare_digest(expected, digest)]
        return same[0] if same and given else None

    def _of_user(self, given: bytes) -> str | None:
        try:
            user, colon, password = base64.b64decode(given, validate=True).partition(b":")
            name = user.decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        expected = self._passwords.get(name, _NOBODY)
        same = hmac.compare_digest(expected, hashlib.sha256(password).digest())
        return name if same and colon and password and name in self._passwords else None

    def may_use(self, path: str) -> frozenset[str]:
        """Return the names that may send to ``path``, by ``auth.paths``."""
        if {".", ".."} & set(path.split("/")):  # its reader may resolve it to another path
            return frozenset()
        for prefix, senders in self._paths:
            if path == prefix or path.startswith(f"{prefix}/"):
                return senders
        return frozenset()

    def _read(self) -> tuple[Mapping[str, bytes], Mapping[str, bytes]]:
        tokens, passwords = {}, {}
        for name, reference in self._options.tokens.items():
            token = secrets.resolve(reference)
            if not _TOKEN.fullmatch(token):
                raise UserError(
                    f"the secret of auth.tokens.{name} is not a token: expected letters, digits "
                    "and any of ._~+/-, and = only at the end (RFC 6750)"
                )
            tokens[name] = hashlib.sha256(token.encode()).digest()
        for name, reference in self._options.users.items():
            password = secrets.resolve(reference)
            passwords[name] = hashlib.sha256(password.encode()).digest()
        return tokens, passwords
