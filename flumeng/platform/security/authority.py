"""A small certificate authority for hosts and people, with P-256 keys, as TLS libraries and Java
know. Its own key, which only issues certificates, belongs on a host without daemons."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flumeng.platform.errors import UserError
from flumeng.platform.security.identity import Identity

AUTHORITY_DAYS = 3650
BACKDATED = timedelta(minutes=5)
"""Certificates begin so much earlier, since clocks of hosts differ."""
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Issued:
    """A certificate with its chain, and its key; both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class Authority:
    """An authority with its key. ``chain``: PEM of the authorities above it, if any."""

    certificate: x509.Certificate
    key: Key
    chain: bytes = b""

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self, identity: Identity, hosts: Sequence[str] = (), *, days: float, now: datetime
    ) -> Issued:
        """Issue a certificate, valid for ``days`` from ``now`` on, as client and, under the names
        or addresses ``hosts``, as server. Raises UserError when the authority expires earlier or
        a name is not ASCII."""
        until = now + timedelta(days=days)
        if until > self.certificate.not_valid_after_utc:
            end = self.certificate.not_valid_after_utc
            raise UserError(
                f"the authority's own certificate ends on {end:%Y-%m-%d}: ask for fewer days, or "
                "make a new authority"
            )
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.UniformResourceIdentifier(identity.uri), *map(_host, hosts)]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        certificate = (
            _builder(
                x509.Name.from_rfc4514_string(identity.subject),
                self.certificate.subject,
                key,
                now,
                until,
            )
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
        chain = self.pem + self.chain if self.chain else b""
        return Issued(
            certificate.public_bytes(serialization.Encoding.PEM) + chain, private_pem(key)
        )


def new_authority(cluster: str, now: datetime) -> Authority:
    """Create a self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster),
            x509.NameAttribute(NameOID.COMMON_NAME, f"flumeng authority of {cluster}"),
        ]
    )
    until = now + timedelta(days=AUTHORITY_DAYS)
    certificate = (
        _builder(name, name, key, now, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def load_authority(certificates: bytes, key: bytes) -> Authority:
    """Load an authority from PEM: its certificate first, then the higher ones. Raises UserError."""
    try:
        first, *above = x509.load_pem_x509_certificates(certificates)
        loaded = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"expected the authority's certificate and its key in PEM, without a password: {error}"
        ) from error
    if not isinstance(loaded, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise UserError("expected an authority with a key of RSA or of an elliptic curve")
    if loaded.public_key() != first.public_key():
        raise UserError("the authority's key is not that of its certificate")
    if not _signs(first):
        raise UserError("the certificate is not that of an authority: it may not sign others")
    pems = (certificate.public_bytes(serialization.Encoding.PEM) for certificate in above)
    return Authority(first, loaded, b"".join(pems))


def private_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not name.isascii():
            raise UserError(f"the host {name} is not ASCII: give it as in DNS, xn--...") from None
        return x509.DNSName(name)


def _signs(certificate: x509.Certificate) -> bool:
    extensions: Iterable[x509.Extension[x509.ExtensionType]] = certificate.extensions
    return any(isinstance(e.value, x509.BasicConstraints) and e.value.ca for e in extensions)
