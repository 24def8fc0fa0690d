"""Signatures by a certificate's owner, verified without a connection to the owner. The chain is
sent along, so the cluster's authorities suffice. ``at``: when the certificate must be valid."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from flumeng.platform.errors import UserError
from flumeng.platform.security.authority import Key
from flumeng.platform.security.credentials import Credentials
from flumeng.platform.security.identity import Identity, identity_of

CHAIN_MOST = 5


def key_of(credentials: Credentials) -> Key:
    key = serialization.load_pem_private_key(credentials.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)
    return key


def sign(key: Key, text: bytes) -> bytes:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(text, ec.ECDSA(hashes.SHA256()))
    return key.sign(text, padding.PKCS1v15(), hashes.SHA256())


def require_issued(
    leaf: x509.Certificate, above: Sequence[x509.Certificate], ca: bytes, at: datetime
) -> Identity:
    """Return the identity of ``leaf``. Raises UserError unless ``ca`` (PEM) issued it, perhaps by
    the chain ``above``, and it is valid at ``at``."""
    if len(above) > CHAIN_MOST:
        raise UserError(f"its chain has more than {CHAIN_MOST} certificates")
    authorities = Store(x509.load_pem_x509_certificates(ca))
    verifier = PolicyBuilder().store(authorities).time(at).build_client_verifier()
    try:
        verifier.verify(leaf, list(above))
    except VerificationError as error:
        raise UserError(f"its certificate is not valid: {error}") from error
    return identity_of(leaf)


def require_signed(leaf: x509.Certificate, signature: bytes, text: bytes) -> None:
    """Raise UserError unless the owner of ``leaf`` has signed the text."""
    key = leaf.public_key()
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, text, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, text, padding.PKCS1v15(), hashes.SHA256())
        else:
            raise UserError("its key is neither of RSA nor of an elliptic curve")
    except InvalidSignature as error:
        raise UserError("its signature does not match its content, key or purpose") from error
