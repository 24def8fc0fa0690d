"""Tokens: with one, an executor reads one range of one journal, for some minutes.

A collector signs it with its own key. The server believes it because the collector's certificate,
which comes with it, is of the cluster's authority and a collector's. It is of no use to whoever has
no certificate of the cluster, so it may be seen: Spark shows what a job is given.

A token is ``CLAIMS.SIGNATURE``, and ``CLAIMS.SIGNATURE.CERTIFICATES`` in a ticket, each in base64.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import datetime

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from flumeng.errors import UserError
from flumeng.journal.errors import DeniedError
from flumeng.journal.wire import Ticket
from flumeng.security.credentials import Credentials
from flumeng.security.expiry import utc_now
from flumeng.security.identity import Identity, identity_of

TOKEN_SECONDS = 600.0
"""A batch that an executor begins to read later fails, and is made anew."""
CLOCKS_DIFFER_SECONDS = 60.0
CHAIN_MOST = 5


class Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a token lets read, until so many seconds after the epoch. The flow is in the journal's
    id."""

    cluster: str
    journal: str
    start: int
    end: int
    until: float


class Signer:
    """Makes tokens with the key of ``credentials``, from any thread."""

    def __init__(self, credentials: Credentials, now: Callable[[], datetime] = utc_now) -> None:
        self._cluster = credentials.identity.cluster
        self._key = serialization.load_pem_private_key(credentials.key, None)
        self._now = now
        self.certificates = _text(credentials.certificate)
        """The last part of its tokens in a ticket, which is the same for all."""

    def token(self, journal: str, start: int, end: int) -> str:
        until = self._now().timestamp() + TOKEN_SECONDS
        claims = msgspec.json.encode(Claims(self._cluster, journal, start, end, until))
        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            signature = self._key.sign(claims, ec.ECDSA(hashes.SHA256()))
        else:
            assert isinstance(self._key, rsa.RSAPrivateKey)
            signature = self._key.sign(claims, padding.PKCS1v15(), hashes.SHA256())
        return f"{_text(claims)}.{_text(signature)}"


def require(ticket: Ticket, ca: bytes, cluster: str, now: datetime) -> Identity:
    """Who lets an executor read what the ticket asks for. Raises DeniedError."""
    try:
        claims, signature, chain = map(_bytes, ticket.token.split("."))
        leaf, *above = x509.load_pem_x509_certificates(chain)
        said = msgspec.json.decode(claims, type=Claims)
    except (ValueError, binascii.Error, msgspec.MsgspecError, RecursionError) as error:
        raise DeniedError(
            "an executor reads with the token of a collector, and this is none"
        ) from (error)
    if len(above) > CHAIN_MOST:
        raise DeniedError("a token comes with too many certificates")
    signer = _verified(leaf, above, ca, now)
    if signer.role != "collector" or signer.cluster != cluster or said.cluster != cluster:
        raise DeniedError(f"a token of {signer} of {signer.cluster} lets nobody read here")
    _require_signed(leaf, signature, claims)
    left = said.until - now.timestamp()
    if not 0 < left <= TOKEN_SECONDS + CLOCKS_DIFFER_SECONDS:
        raise DeniedError(f"a token is of use for {TOKEN_SECONDS:g} s, and this one not now")
    if said.journal != ticket.journal:
        raise DeniedError(f"this token is for the journal {said.journal}")
    if not said.start <= ticket.start <= ticket.end <= said.end:
        raise DeniedError(f"this token is for {said.start} to {said.end}")
    return signer


def _verified(
    leaf: x509.Certificate, above: list[x509.Certificate], ca: bytes, now: datetime
) -> Identity:
    authorities = Store(x509.load_pem_x509_certificates(ca))
    verifier = PolicyBuilder().store(authorities).time(now).build_client_verifier()
    try:
        verifier.verify(leaf, above)
        return identity_of(leaf)
    except (VerificationError, UserError) as error:
        raise DeniedError(
            f"the certificate that comes with this token is of no use: {error}"
        ) from error


def _require_signed(leaf: x509.Certificate, signature: bytes, claims: bytes) -> None:
    key = leaf.public_key()
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, claims, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, claims, padding.PKCS1v15(), hashes.SHA256())
        else:
            raise DeniedError("a token is signed with a key of RSA or of an elliptic curve")
    except InvalidSignature as error:
        raise DeniedError("this token was altered, or signed by another") from error


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
