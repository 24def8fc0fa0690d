"""Signed revisions: a host can be limited to flows that the owner of a certain key applied.

A signature covers the flow's name and the text that its tasks run (Ed25519, RFC 8032). So it fits
no other flow, and write access to ZooKeeper is not enough to make one. An old revision keeps its
signature: write access to the flow is enough to make it current again.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path

from flumeng.platform.errors import UserError

KEY = "FLUMENG_SIGNING_KEY"
"""The variable that names the key file of a person or process that applies flows."""
PUBLIC_BYTES = 32


def make_key(file: Path) -> str:
    """Write a new key, readable only by its owner, and return its public half. Raises UserError."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  rarely needed
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415  rarely needed

    key = ed25519.Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
            handle.write(text)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def signature(flow: str, text: str) -> str:
    """Return a signature with the key of this process; empty when it has none. Raises UserError."""
    file = os.environ.get(KEY)
    if not file:
        return ""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  rarely needed
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415  rarely needed

    try:
        key = serialization.load_pem_private_key(Path(file).read_bytes(), None)
    except OSError as error:
        raise UserError(f"cannot read {file}, which {KEY} names: {error.strerror}") from error
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UserError(
            f"{file} has no signing key: `flumeng cluster secure signing-key` makes one"
        )
    return base64.b64encode(key.sign(_signed(flow, text))).decode()


def is_signed(flow: str, text: str, by: str, signers: Sequence[str]) -> bool:
    """Return whether ``by`` is a signature of this text by one of the ``signers`` (public keys)."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415  rarely needed
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415  rarely needed

    try:
        decoded = base64.b64decode(by, validate=True)
    except ValueError:
        return False
    for signer in signers:
        key = ed25519.Ed25519PublicKey.from_public_bytes(base64.b64decode(signer))
        try:
            key.verify(decoded, _signed(flow, text))
        except InvalidSignature:
            continue
        return True
    return False


def check_signer(text: str) -> None:
    """Raise ValueError unless a text is a public key in base64."""
    try:
        right = len(base64.b64decode(text, validate=True)) == PUBLIC_BYTES
    except ValueError:
        right = False
    if not right:
        raise ValueError(
            "expected a public key as `flumeng cluster secure signing-key` prints it: 44 "
            "characters of base64"
        )


def _signed(flow: str, text: str) -> bytes:
    return b"flumeng revision 1\0" + flow.encode() + b"\0" + text.encode()
