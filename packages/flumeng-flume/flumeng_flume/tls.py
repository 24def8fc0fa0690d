"""TLS of Flume's sources and sinks: PEM files, made by an operator, replace Java's key stores."""

from __future__ import annotations

from flumeng_flume.answers import Answers, Differs, Elsewhere, Options, Settings, truth
from flumeng_flume.findings import Log

CERTIFICATE, KEY = "/etc/flumeng/tls/cert.pem", "/etc/flumeng/tls/key.pem"
_VERSIONS = Differs("TLS is of at least version 1.2, with the host's ciphers")
_STORE = Differs(
    f"write its certificate and key into {CERTIFICATE} and {KEY} (keytool -importkeystore to "
    "PKCS12, then openssl pkcs12), or change tls"
)
_TRUST = Differs("write its certificates into a PEM file, and name that in tls as ca")
SERVER_TLS: Answers = {
    "ssl": Elsewhere(),
    "keystore": _STORE,
    "keystore-password": Differs("the key of tls has no password"),
    "keystore-type": _STORE,
    "truststore": Differs("write its certificates into a PEM file, and name that as client_ca"),
    "truststore-password": Differs("PEM files have no password"),
    "truststore-type": Differs("write its certificates into a PEM file"),
    "exclude-protocols": _VERSIONS,
    "include-protocols": _VERSIONS,
    "exclude-cipher-suites": _VERSIONS,
    "include-cipher-suites": _VERSIONS,
}
CLIENT_TLS: Answers = {
    **SERVER_TLS,
    "trust-all-certs": Differs(
        "servers are always checked: name the trusted authorities in tls as ca"
    ),
    "truststore": _TRUST,
    "truststore-password": Differs("PEM files have no password"),
    "truststore-type": _TRUST,
}


def serve_tls(settings: Settings, options: Options, log: Log) -> None:
    """Set tls for a source that Flume serves over TLS."""
    asked = settings.get("ssl") or settings.get("enableSSL")
    if asked is None:
        return
    if not truth(asked.value):
        log.mapped(asked.location, "no tls")
        return
    options.set("tls", {"certificate": CERTIFICATE, "key": KEY}, asked)
    log.differs(asked.location, f"tls: put PEM files at {CERTIFICATE} and {KEY}")


def use_tls(settings: Settings, options: Options, log: Log) -> None:
    """Set tls for a sink that Flume connects over TLS."""
    asked = settings.get("ssl")
    if asked is None:
        return
    if not truth(asked.value):
        log.mapped(asked.location, "no tls")
        return
    options.set("tls", {}, asked)
    log.differs(
        asked.location, "tls: the server's certificate is checked with the host's authorities"
    )
