"""Certificate revocation lists from a file on this node.

TLS itself checks the same file when a connection is made. This reports outdated lists and
certificates revoked since.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509

from flumeng.platform.errors import UserError

_BEGIN = b"-----BEGIN X509 CRL-----"


class RevocationLists:
    def __init__(self, lists: Sequence[x509.CertificateRevocationList]) -> None:
        self._lists = lists

    @classmethod
    def read(cls, path: str) -> RevocationLists:
        """Raises UserError."""
        try:
            parts = Path(path).read_bytes().split(_BEGIN)[1:]
            lists = [x509.load_pem_x509_crl(_BEGIN + part) for part in parts]
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; nobody is let in") from error
        except ValueError as error:
            raise UserError(f"{path} is damaged: {error}; nobody is let in") from error
        if not lists:
            raise UserError(f"{path} holds no revocation lists in PEM; nobody is let in")
        return cls(lists)

    def has(self, certificate: bytes) -> bool:
        """Whether a certificate (DER) is revoked. Raises ValueError."""
        shown = x509.load_der_x509_certificate(certificate)
        return any(
            one.issuer == shown.issuer
            and one.get_revoked_certificate_by_serial_number(shown.serial_number) is not None
            for one in self._lists
        )

    def outdated(self, now: datetime) -> tuple[str, ...]:
        """A sentence for each outdated list."""
        return tuple(
            f"the revocation list of {one.issuer.rfc4514_string()} is outdated since "
            f"{one.next_update_utc:%Y-%m-%dT%H:%M:%SZ}: none of its senders is let in"
            for one in self._lists
            if one.next_update_utc is not None and one.next_update_utc <= now
        )
