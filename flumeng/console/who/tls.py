"""TLS of the console with its own identity, which asks browsers for certificates of the cluster."""

from __future__ import annotations

import logging
import ssl
import threading

from cryptography import x509

from flumeng.platform.errors import UserError
from flumeng.platform.security.credentials import Credentials, Keystore
from flumeng.platform.security.process import loaded

log = logging.getLogger(__name__)


class ConsoleTls:
    """Renewed files are used for new connections; unusable ones are logged, and the old ones stay.
    Thread-safe. Raises UserError when the files are unusable at first."""

    def __init__(self, keystore: Keystore) -> None:
        self._keystore = keystore
        self._lock = threading.Lock()
        self._problem = ""
        self._credentials = loaded.of(keystore)
        self._context = _context(keystore, self._credentials)

    @property
    def context(self) -> ssl.SSLContext:
        """The settings for a new connection. A client may do without a certificate."""
        with self._lock:
            try:
                credentials = loaded.of(self._keystore)
                if credentials != self._credentials:
                    self._context = _context(self._keystore, credentials)
                    self._credentials, self._problem = credentials, ""
            except UserError as error:
                if str(error) != self._problem:
                    log.error("the old certificate stays in use: %s", error)
                self._problem = str(error)
            return self._context


def hosts_of(credentials: Credentials) -> frozenset[str]:
    """Return the DNS names in the certificate."""
    try:
        names = credentials.leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(name.lower() for name in names.value.get_values_for_type(x509.DNSName))


def _context(keystore: Keystore, credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(keystore.certificate, keystore.key, password=lambda: "")
        context.load_verify_locations(cadata=credentials.ca.decode())
    except (ssl.SSLError, ValueError, OSError) as error:
        raise UserError(f"{keystore.certificate} cannot be used for TLS: {error}") from error
    context.verify_mode = ssl.CERT_OPTIONAL
    context.options |= ssl.OP_NO_TICKET  # a resumed session is not checked again
    context.num_tickets = 0
    return context
