"""The server's side of TLS, from files on this node (RFC 5425 asks no more of syslog)."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from flumeng.errors import UserError
from flumeng.spec.sources import Tls

HANDSHAKE_SECONDS = 10.0


async def server_context(options: Tls | None) -> ssl.SSLContext | None:
    """None without options. Raises UserError, one sentence that names the file."""
    if options is None:
        return None
    return await asyncio.to_thread(_load, options)


def _load(options: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in filter(None, (options.certificate, options.key, options.client_ca)):
        _require_readable(path)
    try:
        # Without a function here, a key with a password would be asked for on the terminal.
        context.load_cert_chain(options.certificate, options.key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise UserError(
            f"{options.certificate} and {options.key} are no certificate and its key in PEM, the "
            f"key without a password: {_reason(error)}"
        ) from error
    if options.client_ca is not None:
        try:
            context.load_verify_locations(options.client_ca)
        except ssl.SSLError as error:
            raise UserError(
                f"{options.client_ca} holds no certificates in PEM: {_reason(error)}"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _require_readable(path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).lower().replace("_", " ")
