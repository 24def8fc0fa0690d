"""Proves that a ZooKeeper session belongs to a certain node. Any node may create another node's
live znode, since the right to create applies to the whole folder. So nodes sign their session ids,
and a live znode counts only with a signature of its session. A signature is invalid for other
sessions, nodes and clusters."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from functools import lru_cache

from cryptography import x509

from flumeng.platform.errors import UserError
from flumeng.platform.security import cert_signatures as signatures
from flumeng.platform.security.credentials import Credentials

KNOWN = 16_384
"""Maximum number of cached checks; a cluster has fewer nodes."""


def signature(credentials: Credentials, session: int) -> str:
    """Return a proof for this session, signed by the owner of the certificate."""
    identity = credentials.identity
    text = _text(identity.cluster, identity.name, session)
    return base64.b64encode(signatures.sign(signatures.key_of(credentials), text)).decode()


@lru_cache(maxsize=KNOWN)
def why_unproven(
    certificates: str,
    signature: str,
    *,
    cluster: str,
    node: str,
    session: int,
    ca: bytes,
    at: float,
) -> str:
    """Return why the signature does not prove that the session is that of ``node``; empty when it
    does. ``certificates`` (PEM) begin with the node's. An authority in ``ca`` must have issued it,
    and it must have been valid ``at`` so many seconds after the epoch."""
    if not session:
        return "no session owns it"
    if not certificates:
        return "it has no proof"
    try:
        leaf, *above = x509.load_pem_x509_certificates(certificates.encode())
        identity = signatures.require_issued(leaf, above, ca, datetime.fromtimestamp(at, UTC))
        if (identity.cluster, identity.role, identity.name) != (cluster, "node", node):
            return f"its certificate belongs to {identity} of {identity.cluster}"
        signed = base64.b64decode(signature, validate=True)
        signatures.require_signed(leaf, signed, _text(cluster, node, session))
    except (UserError, ValueError) as error:
        return str(error)
    return ""


def _text(cluster: str, node: str, session: int) -> bytes:
    return b"flumeng live node 1\0" + f"{cluster}\0{node}\0{session}".encode()
