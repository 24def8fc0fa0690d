"""An authority with certificates and revocation lists of its own, in PEM files."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """``ca`` is the file of its certificate. Keys are of elliptic curves: quickly made."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = self._certificate(name, self._key, [], is_authority=True)
        self.ca = folder / f"{name}.ca.pem"
        self.ca.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *alternative_names: str) -> tuple[Path, Path]:
        """The files of a certificate and its key. Each of the names is a URI when it has ``:``, an
        address when it is one, else of DNS."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._certificate(name, key, alternative_names)
        certificate, key_file = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, key_file

    def revoke(self, path: Path, *certificates: Path, until: datetime | None = None) -> Path:
        """Write a list that has these; without ``until`` it is valid for a day."""
        now = datetime.now(UTC)
        until = until or now + DAY
        made = x509.CertificateRevocationListBuilder(
            issuer_name=_named(self.name),
            last_update=min(now, until) - DAY,
            next_update=until,
            revoked_certificates=[
                x509.RevokedCertificateBuilder(
                    serial_number=serial(one), revocation_date=now
                ).build()
                for one in certificates
            ],
        ).sign(self._key, hashes.SHA256())
        path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        return path

    def _certificate(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        alternative_names: Iterable[str],
        *,
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        made = x509.CertificateBuilder(
            issuer_name=_named(self.name),
            subject_name=_named(name),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - DAY,
            not_valid_after=now + DAY,
        ).add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        if names := list(map(_alternative, alternative_names)):
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return made.sign(self._key, hashes.SHA256())


def der(certificate: Path) -> bytes:
    return _loaded(certificate).public_bytes(serialization.Encoding.DER)


def serial(certificate: Path) -> int:
    return _loaded(certificate).serial_number


def fingerprint(certificate: Path) -> str:
    return f"sha-256:{hashlib.sha256(der(certificate)).hexdigest()}"


def _loaded(certificate: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate.read_bytes())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        is_uri = ":" in name
        return x509.UniformResourceIdentifier(name) if is_uri else x509.DNSName(name)
