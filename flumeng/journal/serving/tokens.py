"""Tokens that let an executor read one range of one journal for some minutes.

A collector signs them. A token is useless without a certificate of the cluster, so it need not be
kept secret in Spark. Format: ``CLAIMS.SIGNATURE``, and ``CLAIMS.SIGNATURE.CERTIFICATES`` in a
ticket, with the collector's certificates, each in base64.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import datetime

import msgspec
from cryptography import x509

from flumeng.journal.log.errors import DeniedError
from flumeng.journal.serving.wire import Ticket
from flumeng.platform.errors import UserError
from flumeng.platform.security import cert_signatures
from flumeng.platform.security.credentials import Credentials
from flumeng.platform.security.expiry import utc_now
from flumeng.platform.security.identity import Identity

TOKEN_SECONDS = 600.0
"""How long a token is valid; a batch that begins later fails, and is repeated."""
CLOCKS_DIFFER_SECONDS = 60.0


class Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The range that a token lets its holder read; ``until`` is in seconds since 1970."""

    cluster: str
    journal: str
    start: int
    end: int
    until: float


class Signer:
    """Signs tokens with the key of ``credentials``. Thread-safe."""

    def __init__(self, credentials: Credentials, now: Callable[[], datetime] = utc_now) -> None:
        self._cluster = credentials.identity.cluster
        self._key = cert_signatures.key_of(credentials)
        self._now = now
        self.certificates = _text(credentials.certificate)
        """The signer's certificates in base64, which follow a token in a ticket."""

    def token(self, journal: str, start: int, end: int) -> str:
        until = self._now().timestamp() + TOKEN_SECONDS
        claims = msgspec.json.encode(Claims(self._cluster, journal, start, end, until))
        return f"{_text(claims)}.{_text(cert_signatures.sign(self._key, claims))}"


def require(ticket: Ticket, ca: bytes, cluster: str, now: datetime) -> Identity:
    """Check a ticket's token and return its signer. Raises DeniedError."""
    try:
        claims, signature, chain = map(_bytes, ticket.token.split("."))
        leaf, *above = x509.load_pem_x509_certificates(chain)
        claimed = msgspec.json.decode(claims, type=Claims)
    except (ValueError, binascii.Error, msgspec.MsgspecError, RecursionError) as error:
        raise DeniedError("the executor sent no valid token of its collector") from (error)
    try:
        signer = cert_signatures.require_issued(leaf, above, ca, now)
        cert_signatures.require_signed(leaf, signature, claims)
    except UserError as error:
        raise DeniedError(f"this token is not accepted: {error}") from error
    if signer.role != "collector" or signer.cluster != cluster or claimed.cluster != cluster:
        raise DeniedError(f"tokens of {signer} of {signer.cluster} are not accepted here")
    left = claimed.until - now.timestamp()
    if not 0 < left <= TOKEN_SECONDS + CLOCKS_DIFFER_SECONDS:
        raise DeniedError(f"the token is not valid now: a token lasts {TOKEN_SECONDS:g} s")
    if claimed.journal != ticket.journal:
        raise DeniedError(f"this token is for the journal {claimed.journal}")
    if not claimed.start <= ticket.start <= ticket.end <= claimed.end:
        raise DeniedError(f"this token is for the seqs {claimed.start} to {claimed.end}")
    return signer


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
