"""Runs the console's server until SIGTERM, or in a thread of another process."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from contextlib import suppress
from typing import cast

import uvicorn

from flumeng.console.app import make_app
from flumeng.console.connections import Connections, ConsoleProtocol
from flumeng.console.console import Console
from flumeng.console.who.gate import HEAD_BYTES
from flumeng.console.who.proofs import Who
from flumeng.console.who.tls import ConsoleTls
from flumeng.platform.errors import UserError

log = logging.getLogger(__name__)

BACKLOG = 1024
KEEP_ALIVE_SECONDS = 30
CLOSE_SECONDS = 3


class Server:
    """A console that listens on ``HOST:PORT``; port 0 takes a free one, see ``url``. Raises
    UserError when the address cannot be used."""

    def __init__(
        self, console: Console, listen: str, who: Who, tls: ConsoleTls | None = None
    ) -> None:
        host, _, port = listen.rpartition(":")
        host = host.strip("[]")
        try:
            self._socket = socket.create_server(
                (host, int(port)),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                backlog=BACKLOG,
            )
        except OSError as error:
            raise UserError(f"cannot listen on {listen}: {error.strerror or error}") from error
        scheme = "https" if tls is not None else "http"
        self.url = f"{scheme}://{listen.rpartition(':')[0]}:{self._socket.getsockname()[1]}/"
        self._console = console
        config = uvicorn.Config(
            make_app(console, who.admit, who),
            http=ConsoleProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.ERROR,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
        self._server = _Server(config, tls, console)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        self._console.pictures.start()
        if self._console.sites:
            self._console.sites.start()
        try:
            self._server.run([self._socket])
        finally:
            self._console.pictures.stop()
            if self._console.sites:
                self._console.sites.stop()
            with suppress(OSError):
                self._socket.close()

    def start(self) -> None:
        """Serve in a thread until ``stop``."""
        self._thread = threading.Thread(target=self.run, name="console", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._console.pictures.stop()
        self._thread.join(10.0)


class _Server(uvicorn.Server):
    """A server whose connections are bounded, and whose streams of events end with it."""

    def __init__(self, config: uvicorn.Config, tls: ConsoleTls | None, console: Console) -> None:
        super().__init__(config)
        self._tls = tls
        self._console = console

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        tls = self._tls
        context = (lambda: tls.context) if tls is not None else None
        accepting = [Connections(each, self._protocol, context) for each in sockets or []]
        self.servers = cast("list[asyncio.Server]", accepting)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._console.pictures.end()
        await super().shutdown(sockets)

    def _protocol(self) -> ConsoleProtocol:
        return ConsoleProtocol(self.config, self.server_state, {})
