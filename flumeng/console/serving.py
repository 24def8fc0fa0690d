"""Runs the console's server until SIGTERM, or in a thread of another process."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from starlette.requests import Request

from flumeng.console.app import make_app
from flumeng.console.console import Console
from flumeng.console.who.viewers import Viewer
from flumeng.platform.errors import UserError

log = logging.getLogger(__name__)


class Server:
    """A console that listens on ``HOST:PORT``; port 0 takes a free one, see ``url``. Raises
    UserError when the address cannot be used."""

    def __init__(
        self, console: Console, listen: str, identify: Callable[[Request], Viewer]
    ) -> None:
        host, _, port = listen.rpartition(":")
        host = host.strip("[]")
        try:
            self._socket = socket.create_server(
                (host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            raise UserError(f"cannot listen on {listen}: {error.strerror or error}") from error
        self.url = f"http://{listen.rpartition(':')[0]}:{self._socket.getsockname()[1]}/"
        self._console = console
        config = uvicorn.Config(
            make_app(console, identify), log_config=None, access_log=False, lifespan="off"
        )
        self._server = uvicorn.Server(config)

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
