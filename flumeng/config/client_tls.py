"""TLS options of clients."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass

from flumeng.platform.errors import UserError
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.quantities import check_absolute


@dataclass(frozen=True)
class ClientTls:
    """TLS of at least version 1.2 with a server whose name and certificate are checked. The PEM
    files are on each host that connects to it."""

    ca: str | None = option(
        doc="The authorities that may issue the server's certificate; default: those of the host.",
        check=check_absolute,
        example="/etc/flumeng/tls/ca.pem",
        default=None,
    )
    certificate: str | None = option(
        doc="The certificate to show to the server, with its chain.",
        check=check_absolute,
        example="/etc/flumeng/tls/client.pem",
        default=None,
    )
    key: str | None = option(
        doc="That certificate's key, without a password.",
        check=check_absolute,
        example="/etc/flumeng/tls/client.key",
        default=None,
    )

    def needs(self) -> Iterator[Need]:
        for path in filter(None, (self.ca, self.certificate, self.key)):
            yield "path", path

    def problems(self) -> Iterator[tuple[str, str]]:
        if (self.certificate is None) != (self.key is None):
            yield "", "expected a certificate with its key"

    def context(self) -> ssl.SSLContext:
        """Return a context for connections. Raises UserError, which names the unusable files."""
        files = str(self.ca)
        try:
            context = ssl.create_default_context(cafile=self.ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certificate is not None:
                files = f"{self.certificate} and {self.key}"
                context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            raise UserError(f"tls: {files}: {error}") from error
        return context
