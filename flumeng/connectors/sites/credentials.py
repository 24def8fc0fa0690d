"""Credentials for other sites. ``FLUMENG_IDENTITY/sites/SITE`` has a subscriber's certificate that
the other site's authority has issued, and that authority in ``ca.pem``."""

from __future__ import annotations

import hashlib
import ssl
from functools import lru_cache

from flumeng.journal.serving.proof import Proof
from flumeng.platform.errors import UserError
from flumeng.platform.security import process, roles
from flumeng.platform.security.credentials import Keystore
from flumeng.platform.security.expiry import SITES
from zkschema.records import Site


def proof_for(site: str, record: Site) -> Proof | None:
    """Return the proof for a site's gateways; None for an open cluster. Raises UserError when the
    files are missing, or are of another authority than the site's."""
    if not record.authority:
        return None
    folder = roles.folder()
    if folder is None:
        raise UserError(
            f"site {site} asks for certificates, and this process has none: set "
            f"{roles.DIRECTORY}, and put the site's certificates into its folder sites/{site}"
        )
    credentials = process.loaded.of(Keystore(folder / SITES / site, "subscriber"))
    found = fingerprints(credentials.ca)
    if record.authority not in found:
        raise UserError(
            f"{folder}/sites/{site}/ca.pem has the authority {', '.join(found)}, but site {site} "
            f"has {record.authority}: copy the site's own, or repeat `flumeng site add`"
        )
    return Proof.of(credentials)


@lru_cache(maxsize=16)
def fingerprints(pem: bytes) -> tuple[str, ...]:
    """Return the SHA-256 fingerprints of all certificates in PEM. Raises UserError."""
    end = "-----END CERTIFICATE-----"
    try:
        texts = [part + end for part in pem.decode("ascii").split(end) if "-----BEGIN" in part]
        found = [
            hashlib.sha256(ssl.PEM_cert_to_DER_cert(text.strip())).hexdigest() for text in texts
        ]
    except ValueError as error:
        raise UserError(f"these are no certificates in PEM: {error}") from error
    if not found:
        raise UserError("there is no certificate in PEM")
    return tuple(found)
