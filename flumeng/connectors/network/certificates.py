"""Client certificates: names that identify clients, and revocation. A name is the fingerprint or a
subject alternative name (RFC 5425 section 5.2) without wildcards. TLS checks revocation lists when
connecting; ``RevocationLists`` reports outdated lists and later revocations."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509

from flumeng.connectors.network.peers import Client, UnauthorizedError
from flumeng.connectors.network.server_tls import HOST_NAME, canonical, fingerprint
from flumeng.platform.errors import UserError

_BEGIN = b"-----BEGIN X509 CRL-----"


class Clients:
    """Admits all clients, or those in ``names``."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(map(canonical, names))

    def admit(self, certificate: bytes) -> Client:
        """Return the client of a certificate (DER). Raises UnauthorizedError unless admitted."""
        digest = fingerprint(hashlib.sha256(certificate).digest())
        try:
            names = [*_alternative_names(x509.load_der_x509_certificate(certificate)), digest]
        except ValueError as error:
            raise UnauthorizedError(f"its certificate is unreadable: {error}") from error
        if not self._names:
            return Client(names[0], frozenset(), certificate)
        let_in = {name: matched for name in names if (matched := self._names & {*_patterns(name)})}
        if not let_in:
            raise UnauthorizedError(f"certificate of {', '.join(names)}: not in tls.clients")
        return Client(next(iter(let_in)), frozenset().union(*let_in.values()), certificate)


def _alternative_names(certificate: x509.Certificate) -> Iterator[str]:
    """Yield the normalized alternative names. Raises ValueError."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return
    names = extension.value
    for name in names.get_values_for_type(x509.DNSName):
        if HOST_NAME.fullmatch(name):
            yield name.lower()
    yield from filter(str.isprintable, names.get_values_for_type(x509.UniformResourceIdentifier))
    yield from map(str, names.get_values_for_type(x509.IPAddress))


def _patterns(name: str) -> Iterator[str]:
    """Yield the name, and the wildcard that replaces its first label."""
    yield name
    _, dot, rest = name.partition(".")
    if dot and HOST_NAME.fullmatch(name) and not rest.replace(".", "").isdigit():
        yield f"*.{rest}"


class RevocationLists:
    """Revocation lists with their issuers. Raises ValueError for an unreadable issuer."""

    def __init__(self, lists: Sequence[x509.CertificateRevocationList]) -> None:
        self._lists = [(crl.issuer, crl) for crl in lists]

    @classmethod
    def read(cls, path: str) -> RevocationLists:
        """Read PEM revocation lists. Raises UserError for an unusable file."""
        try:
            parts = Path(path).read_bytes().split(_BEGIN)[1:]
            lists = cls([x509.load_pem_x509_crl(_BEGIN + part) for part in parts])
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise UserError(f"{path} is damaged: {error}") from error
        if not parts:
            raise UserError(f"{path} contains no PEM revocation lists")
        return lists

    def has(self, certificate: bytes) -> bool:
        """Return whether a certificate (DER) is revoked. Raises ValueError if unreadable."""
        shown = x509.load_der_x509_certificate(certificate)
        return any(
            issuer == shown.issuer
            and crl.get_revoked_certificate_by_serial_number(shown.serial_number) is not None
            for issuer, crl in self._lists
        )

    def outdated(self, now: datetime) -> tuple[str, ...]:
        """Return a sentence for each outdated list."""
        return tuple(
            f"the revocation list of {issuer.rfc4514_string()} expired at "
            f"{crl.next_update_utc:%Y-%m-%dT%H:%M:%SZ}: its senders are rejected"
            for issuer, crl in self._lists
            if crl.next_update_utc is not None and crl.next_update_utc <= now
        )
