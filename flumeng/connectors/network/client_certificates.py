"""Identifies a client by its verified certificate. Pure.

By RFC 5425 section 5.2 only subject alternative names count; a wildcard name in a certificate
identifies nobody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from cryptography import x509

from flumeng.connectors.network.peers import Client, UnauthorizedError
from flumeng.connectors.network.server_tls import HOST_NAME, canonical, fingerprint


class Clients:
    """Admits all clients, or those in ``names``."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(map(canonical, names))

    def admit(self, certificate: bytes) -> Client:
        """Identifies a certificate (DER). Raises UnauthorizedError."""
        found = fingerprint(hashlib.sha256(certificate).digest())
        try:
            names = [*_alternative_names(x509.load_der_x509_certificate(certificate)), found]
        except ValueError as error:
            raise UnauthorizedError(f"a certificate that cannot be read: {error}") from error
        if not self._names:
            return Client(names[0], frozenset(), certificate)
        let_in = {name: matched for name in names if (matched := self._names & {*_patterns(name)})}
        if not let_in:
            raise UnauthorizedError(f"{', '.join(names)}: not in tls.clients")
        return Client(next(iter(let_in)), frozenset().union(*let_in.values()), certificate)


def _alternative_names(certificate: x509.Certificate) -> Iterator[str]:
    """Normalized. Raises ValueError."""
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
    """The name, and the wildcard for its first label."""
    yield name
    _, dot, rest = name.partition(".")
    if dot and HOST_NAME.fullmatch(name) and not rest.replace(".", "").isdigit():
        yield f"*.{rest}"
