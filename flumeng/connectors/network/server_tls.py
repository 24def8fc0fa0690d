"""TLS options of listening sources."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass

from flumeng.platform.options.option import option
from flumeng.platform.options.quantities import check_absolute

HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.(?!-)[A-Za-z0-9_-]{1,63})*", re.ASCII)
_FINGERPRINT = re.compile(r"(?:[0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}|[0-9A-Fa-f]{64}", re.ASCII)
_PREFIX = re.compile(r"([A-Za-z]+-?[0-9]+):(?=[0-9A-Fa-f]{2}(:|[0-9A-Fa-f]{18}))", re.ASCII)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]*[^0-9][!-~]*", re.ASCII)
SHA_256 = "sha-256"


def canonical(client: str) -> str:
    """Return an entry of ``clients`` in its normal form (RFC 5425, 4.2.2). Raises ValueError."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(client))
    if _FINGERPRINT.fullmatch(client):
        return fingerprint(bytes.fromhex(client.replace(":", "")))
    if (prefix := _PREFIX.match(client)) is not None:
        if prefix[1].lower() not in (SHA_256, "sha256"):
            raise ValueError(
                f"expected a SHA-256 fingerprint, not {prefix[1]}: "
                "openssl x509 -noout -fingerprint -sha256 -in client.pem"
            )
        digits = client[prefix.end() :]
        if not _FINGERPRINT.fullmatch(digits):
            raise ValueError("expected 64 hexadecimal digits in a SHA-256 fingerprint")
        return fingerprint(bytes.fromhex(digits.replace(":", "")))
    if _URI.fullmatch(client):
        return client
    name = client.removeprefix("*.")
    if "*" in name:
        raise ValueError("expected * only as the whole first label, like *.pos.example")
    if re.fullmatch("[0-9.]+", name) or not HOST_NAME.fullmatch(name):
        raise ValueError(
            "expected a DNS name, IP address or URI of the client's certificate, or sha-256: and "
            'its fingerprint, like "web-1.example", "*.pos.example" or "spiffe://example/web"'
        )
    return client.lower()


def fingerprint(digest: bytes) -> str:
    return f"{SHA_256}:{digest.hex(':').upper()}"


def check_client(client: str) -> None:
    canonical(client)


@dataclass(frozen=True)
class Tls:
    """TLS of at least version 1.2, from PEM files on the node.

    Changed files are reloaded within seconds. An unusable new file is reported, and the old one
    stays in use; but without a readable `client_crl` all senders are rejected.
    """

    certificate: str = option(
        doc="The certificate with its chain.",
        check=check_absolute,
        example="/etc/flumeng/tls/cert.pem",
    )
    key: str = option(
        doc="The certificate's key, without a password.",
        check=check_absolute,
        example="/etc/flumeng/tls/key.pem",
    )
    client_ca: str | None = option(
        doc="Only senders with a certificate from one of these authorities are accepted. A "
        "self-signed certificate is its own authority.",
        check=check_absolute,
        default=None,
        example="/etc/flumeng/tls/clients.pem",
    )
    client_crl: str | None = option(
        doc="The revocation lists of those authorities, one for each that signs senders. Revoked "
        "senders are rejected, and so are those whose authority has no list or an expired one.",
        check=check_absolute,
        default=None,
        example="/etc/flumeng/tls/clients.crl",
    )
    clients: tuple[str, ...] = option(
        doc="Only these senders are accepted: DNS names (`*` as the whole first label stands for "
        "one), IP addresses or URIs among the subject alternative names of their certificates, "
        "or SHA-256 fingerprints. Without it, all that `client_ca` has signed.",
        check=check_client,
        default=(),
        example='["*.pos.example", "spiffe://example/web", "sha-256:E1:2D:..."]',
    )

    def files(self) -> Iterator[str]:
        yield from filter(None, (self.certificate, self.key, self.client_ca, self.client_crl))

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.client_ca is None:
            for name in ("clients", "client_crl"):
                if getattr(self, name):
                    yield name, "needs client_ca, the authorities that sign the senders"
