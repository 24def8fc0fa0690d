"""The proof that a session of ZooKeeper is that of a certain node.

Any node may create the znode that says that another one is live: creating is a right on the folder.
So a node signs the id of its session, and its live znode counts only while that session owns it.
Nobody can use the proof in another session, for another node or in another cluster.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from functools import lru_cache

from cryptography import x509

from flumeng.platform.errors import UserError
from flumeng.platform.security import certified
from flumeng.platform.security.credentials import Credentials

KNOWN = 16_384
"""Of so many proofs it is known how their check went: a few nodes more than a cluster has."""


def signature(credentials: Credentials, session: int) -> str:
    """By the owner of the certificate, who has that session."""
    identity = credentials.identity
    text = _text(identity.cluster, identity.name, session)
    return base64.b64encode(certified.sign(certified.key_of(credentials), text)).decode()


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
    """Why this does not prove that the session is that of ``node``; empty when it does.

    ``certificates`` (PEM) begin with the node's, which has to be of an authority in ``ca`` and to
    have held ``at`` so many seconds after the epoch.
    """
    if not session:
        return "no session owns it"
    if not certificates:
        return "it has no proof"
    try:
        leaf, *above = x509.load_pem_x509_certificates(certificates.encode())
        found = certified.require_issued(leaf, above, ca, datetime.fromtimestamp(at, UTC))
        if (found.cluster, found.role, found.name) != (cluster, "node", node):
            return f"its certificate is that of {found} of {found.cluster}"
        signed = base64.b64decode(signature, validate=True)
        certified.require_signed(leaf, signed, _text(cluster, node, session))
    except (UserError, ValueError) as error:
        return str(error)
    return ""


def _text(cluster: str, node: str, session: int) -> bytes:
    return b"flumeng live node 1\0" + f"{cluster}\0{node}\0{session}".encode()
