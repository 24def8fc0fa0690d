"""Server-side TLS from files that are reread when they change. With an unusable certificate, key or
authority the old ones stay in use; with an unreadable revocation list no client is admitted."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flumeng.config.policy import Policy
from flumeng.connectors.network.peers import Client, UnauthorizedError
from flumeng.connectors.network.server_tls import Tls
from flumeng.platform.errors import UserError
from flumeng.platform.trouble_log import TroubleLog

if TYPE_CHECKING:
    from flumeng.connectors.network.certificates import Clients, RevocationLists

log = logging.getLogger(__name__)

REFRESH_SECONDS = 5.0


async def every(seconds: float, step: Callable[[], Awaitable[None]]) -> None:
    """Call ``step`` periodically until cancelled; a failure is logged once, and its end."""
    trouble = TroubleLog(log)
    while True:
        await asyncio.sleep(seconds)
        try:
            await step()
            trouble.end("TLS files and secrets are refreshed again")
        except Exception as error:
            text = "TLS files or secrets are not refreshed, the old ones stay in use: %r"
            trouble.log(logging.ERROR, text, error, cause=error)


class Files(NamedTuple):
    """State of the TLS files: stat results, and messages about outdated revocation lists."""

    stats: tuple[tuple[int, int, int, int], ...] = ()
    outdated: tuple[str, ...] = ()


class Loaded(NamedTuple):
    files: Files
    context: ssl.SSLContext
    revoked: RevocationLists | None


class ServerTls:
    """TLS of one source. ``context``: for new connections; None rejects all. ``changed`` is called
    in the event loop when ``problem`` or revocations may differ."""

    def __init__(
        self,
        options: Tls,
        policy: Policy,
        changed: Callable[[], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._options = options
        self._policy = policy
        self._changed = changed
        self._clock = clock
        self._clients: Clients | None = None
        self._files = Files()
        self._revoked: RevocationLists | None = None
        self.context: ssl.SSLContext | None = None
        self.problem = ""

    async def start(self) -> None:
        """Read the files. Raises UserError that names the unusable file."""
        if self._options.client_ca is not None:  # only then it costs memory
            from flumeng.connectors.network.certificates import Clients  # noqa: PLC0415

            self._clients = Clients(self._options.clients)
        self._use(await asyncio.to_thread(self._read))

    async def refresh(self) -> None:
        """Reread changed files; unusable ones are retried at each call."""
        try:
            loaded = await asyncio.to_thread(self._read_if_changed)
        except UserError as error:
            self._files = Files()
            await self._go_on(str(error))
            return
        if loaded is not None:
            log.info("reloaded the TLS files: %s", ", ".join(self._options.files()))
            self._use(loaded)

    def client(self, transport: asyncio.BaseTransport) -> Client:
        """Return the client of a connection; without ``client_ca`` nameless and unchecked. Raises
        UnauthorizedError if its certificate is missing, unreadable, not admitted or revoked."""
        if self._clients is None:
            return Client()
        certificate = transport.get_extra_info("ssl_object").getpeercert(True)
        if not certificate:
            raise UnauthorizedError("the sender sent no certificate")
        client = self._clients.admit(certificate)
        try:
            revoked = self.is_revoked(certificate)
        except ValueError as error:
            raise UnauthorizedError(
                f"{client.name}: the issuer of its certificate is unreadable, and so not compared "
                f"with the revocation lists: {error}"
            ) from error
        if revoked:
            raise UnauthorizedError(f"{client.name}: its certificate is revoked")
        return client

    def is_revoked(self, certificate: bytes) -> bool:
        """Return whether a certificate is revoked. Raises ValueError if it is unreadable."""
        return self._revoked is not None and bool(certificate) and self._revoked.has(certificate)

    def _use(self, loaded: Loaded) -> None:
        self._files, self.context, self._revoked = loaded
        self._note("; ".join(loaded.files.outdated))

    async def _go_on(self, problem: str) -> None:
        """Keep the old context with new revocation lists. If unreadable, reject all clients."""
        try:
            self._revoked = await asyncio.to_thread(self._read_lists)
        except UserError as error:
            self.context, problem = None, str(error)
        use = "senders are rejected" if self.context is None else "the old files stay in use"
        self._note(f"{problem}; {use}")

    def _note(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("tls: %s", problem)
        self.problem = problem
        self._changed()

    def _read_if_changed(self) -> Loaded | None:
        unchanged = self._files.stats and self._status(self._revoked) == self._files
        return None if unchanged else self._read()

    def _read(self) -> Loaded:
        """Read all files, their stat first, so that a concurrent change is reread."""
        stats = self._status(None).stats
        context = _context(self._options)
        revoked = self._read_lists()
        if self._options.client_crl is not None:
            _trust(context, self._options.client_crl, "revocation lists")
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        outdated = revoked.outdated(self._clock()) if revoked is not None else ()
        return Loaded(Files(stats, outdated), context, revoked)

    def _read_lists(self) -> RevocationLists | None:
        if self._options.client_crl is None:
            return None
        from flumeng.connectors.network.certificates import RevocationLists  # noqa: PLC0415

        return RevocationLists.read(self._options.client_crl)

    def _status(self, revoked: RevocationLists | None) -> Files:
        stats = []
        for path in self._options.files():
            if not self._policy.allows_file(path):
                raise UserError(f"this node's policy file does not allow to read {path}")
            try:
                status = Path(path).stat()
            except OSError as error:
                raise _unreadable(path, error) from error
            stats.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
        outdated = revoked.outdated(self._clock()) if revoked is not None else ()
        return Files(tuple(stats), outdated)


def _context(options: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in options.files():
        _require_readable(path)
    try:
        # Without a function here, OpenSSL would ask for a key's password on the terminal.
        context.load_cert_chain(options.certificate, options.key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise UserError(
            f"{options.certificate} and {options.key} are not a PEM certificate and its key "
            f"without a password: {_reason(error)}"
        ) from error
    if options.client_ca is not None:
        _trust(context, options.client_ca, "certificates")
        context.verify_mode = ssl.CERT_REQUIRED
    # A resumed session is not checked again. And a sender that never reads has the tickets unread
    # when it closes: TCP then drops its last data (RFC 1122, 4.2.2.13).
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return context


def _trust(context: ssl.SSLContext, path: str, content: str) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise UserError(f"{path} contains no PEM {content}: {_reason(error)}") from error


def _require_readable(path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> UserError:
    return UserError(f"cannot read {path}: {error.strerror}")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).lower().replace("_", " ")
