"""TLS to ZooKeeper's secure port, and explanations of its failures. kazoo's own TLS trusts all
system authorities and checks no host names. Files are read for each connection, so that a replaced
certificate takes effect."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kazoo.handlers.threading import SequentialThreadingHandler

from flumeng.platform.errors import UserError
from flumeng.platform.trouble_log import TroubleLog

if TYPE_CHECKING:
    from flumeng.platform.security.credentials import Keystore

log = logging.getLogger(__name__)

PROBE_SECONDS = 1.0
EXPIRED, WRONG_HOST, WRONG_ADDRESS = 10, 62, 64
"""Codes of OpenSSL for failed verifications."""
REFUSALS = ("ALERT_UNKNOWN_CA", "ALERT_CERTIFICATE", "ALERT_BAD_CERTIFICATE", "ALERT_ACCESS_DENIED")


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with TLS if there is a ``keystore``. ``trouble``: the last refusal or ""."""

    def __init__(self, keystore: Keystore | None) -> None:
        super().__init__()
        self.trouble = ""
        self._failures = TroubleLog(log)
        self._keystore = keystore

    def create_connection(
        self,
        address: tuple[str, int],
        hostname: str = "",
        timeout: float | None = None,
        **_of_kazoo: Any,
    ) -> socket.socket:
        """Connect, with TLS if configured. Raises OSError, as kazoo expects."""
        if self._keystore is None:
            return socket.create_connection(address, timeout)
        keystore, server = self._keystore, f"{hostname or address[0]}:{address[1]}"
        try:
            context = _context(
                keystore, lambda error: self.failed(refused(error, keystore, server))
            )
        except (UserError, OSError) as error:
            self.failed(f"cannot connect to ZooKeeper: {error}")
            raise OSError(str(error)) from error
        try:
            connection = socket.create_connection(address, timeout)
        except OSError:
            self.trouble = ""
            raise
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            return context.wrap_socket(connection, server_hostname=hostname or address[0])
        except OSError as error:
            connection.close()
            self.failed(refused(error, keystore, server))
            raise

    def failed(self, why: str) -> None:
        if why:
            self._failures.log(logging.WARNING, "%s", why)
        self.trouble = why

    def connected(self) -> None:
        self._failures.end("ZooKeeper is connected, and accepts this process again")
        self.trouble = ""


def refused(error: OSError, keystore: Keystore, server: str) -> str:
    """Return why TLS with a server failed, mostly with a remedy; "" after a timeout."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == EXPIRED:
            return f"ZooKeeper at {server} has an expired certificate: renew it"
        if error.verify_code in (WRONG_HOST, WRONG_ADDRESS):
            return (
                f"ZooKeeper at {server} has a certificate for another host: use a name in the "
                "certificate, or issue one for this name"
            )
        return (
            f"ZooKeeper at {server} has a certificate that no authority in {keystore.ca} "
            f"issued: {error.verify_message}"
        )
    if isinstance(error, ssl.SSLError) and any(part in str(error) for part in REFUSALS):
        return (
            f"ZooKeeper at {server} refuses the certificate {keystore.certificate}: it must be "
            "issued by an authority that the server trusts, and not expired"
        )
    if isinstance(error, TimeoutError):
        return ""
    if isinstance(error, ssl.SSLEOFError | ConnectionError) or "WRONG_VERSION" in str(error):
        return f"ZooKeeper at {server} does not speak TLS on this port: use its secure port"
    return f"no TLS with ZooKeeper at {server}: {error}"


def speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # no data is sent
    try:
        with socket.create_connection((host, port), PROBE_SECONDS) as connection:
            context.wrap_socket(connection, server_hostname=host).close()
    except OSError:
        return False
    return True


class _Context(ssl.SSLContext):
    """Passes TLS errors of reads to ``refused``: a server may refuse a certificate only after the
    client's handshake."""

    refused: Callable[[OSError], None]


class _Connection(ssl.SSLSocket):
    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            assert isinstance(self.context, _Context)
            self.context.refused(error)
            raise


_Context.sslsocket_class = _Connection


def _context(keystore: Keystore, refused: Callable[[OSError], None]) -> ssl.SSLContext:
    """Return the TLS context. Raises UserError for unusable or expired certificates and a key of
    another certificate, OSError for unreadable files."""
    credentials = keystore.load()
    if credentials.expires < datetime.now(UTC):
        expired = f"expired on {credentials.expires:%Y-%m-%d %H:%M} UTC"
        raise UserError(f"{keystore.certificate} {expired}: replace it")
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)
    context.refused = refused
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=credentials.ca.decode())
    try:
        context.load_cert_chain(keystore.certificate, keystore.key, password="")
    except ssl.SSLError as error:
        raise UserError(
            f"{keystore.key} is not the key of {keystore.certificate}: {error}"
        ) from error
    return context
