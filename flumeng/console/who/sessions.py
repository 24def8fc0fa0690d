"""Sessions in signed cookies (HMAC-SHA-256), and the CSRF token of each.

A cookie holds a name and how it was proven, never rights: these are looked up at each request. Each
kind of text has a key of its own, so a text of one kind is not accepted as another.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from flumeng.platform.errors import UserError

SECONDS = 8 * 3600.0
"""How long a session lasts, whether it is used or not."""
LEAST_KEY_BYTES = 32
MOST_ENDED = 10_000
Kind = Literal["session", "login", "csrf", "nonce", "verifier"]


@dataclass(frozen=True)
class Session:
    """``number``: random, new after each login. ``until``: seconds since the epoch. ``proof``:
    empty before a login. ``groups``: those of the provider's that give rights. ``digest``: of the
    token, in hexadecimal digits."""

    number: str
    until: float
    proof: Literal["", "oidc", "token"] = ""
    name: str = ""
    groups: tuple[str, ...] = ()
    digest: str = ""


class Seal:
    """Signs texts. ``key``: at least LEAST_KEY_BYTES."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def mac(self, kind: Kind, text: bytes) -> str:
        """Return a text of 43 characters that only holders of the key can compute."""
        own = hmac.digest(self._key, b"flumeng console 1 " + kind.encode(), hashlib.sha256)
        return _encoded(hmac.digest(own, text, hashlib.sha256))

    def sealed(self, kind: Kind, values: Mapping[str, Any]) -> str:
        text = _encoded(json.dumps(values).encode())
        return f"{text}.{self.mac(kind, text.encode())}"

    def opened(self, kind: Kind, sealed: str) -> dict[str, Any] | None:
        """Return the values; None when this key did not seal them as this kind."""
        text, _, mac = sealed.partition(".")
        if not mac.isascii() or not text.isascii():
            return None
        if not hmac.compare_digest(mac, self.mac(kind, text.encode())):
            return None
        values = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        assert isinstance(values, dict)
        return values


class Sessions:
    """Makes and reads sessions. Remembers ended ones, in this process, until they expire.
    Thread-safe. ``clock``: seconds since the epoch."""

    def __init__(self, key: bytes, clock: Callable[[], float]) -> None:
        self.seal, self._clock = Seal(key), clock
        self._lock = threading.Lock()
        self._ended: dict[str, float] = {}

    def begin(self, **values: Any) -> Session:
        return Session(secrets.token_urlsafe(24), self._clock() + SECONDS, **values)

    def sealed(self, session: Session) -> str:
        return self.seal.sealed("session", asdict(session))

    def read(self, cookie: str) -> Session | None:
        """Return the session; None when it is forged, expired, ended or of another key."""
        values = self.seal.opened("session", cookie)
        if values is None:
            return None
        session = Session(**values | {"groups": tuple(values["groups"])})
        ended = session.until <= self._clock() or session.number in self._ended
        return None if ended else session

    def end(self, session: Session) -> None:
        with self._lock:
            now = self._clock()
            for number in [number for number, until in self._ended.items() if until <= now]:
                del self._ended[number]
            if len(self._ended) >= MOST_ENDED:
                del self._ended[next(iter(self._ended))]
            self._ended[session.number] = session.until

    def csrf(self, session: Session) -> str:
        """Return the token in each form of the session, and in each change with its cookie."""
        return self.seal.mac("csrf", session.number.encode())

    def is_csrf(self, session: Session, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.csrf(session).encode())


def read_key(file: Path | None) -> bytes:
    """Return the key in the file, or a new one without a file. Raises UserError."""
    if file is None:
        return secrets.token_bytes(LEAST_KEY_BYTES)
    try:
        mode, key = file.stat().st_mode, file.read_bytes().strip()
    except OSError as error:
        raise UserError(f"cannot read the key {file}: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(f"the key {file} is open to others: chmod 600 {file}")
    if len(key) < LEAST_KEY_BYTES:
        raise UserError(
            f"the key {file} has {len(key)} bytes, fewer than {LEAST_KEY_BYTES}: make one with "
            f"`openssl rand -hex 32 > {file}`"
        )
    return key


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
