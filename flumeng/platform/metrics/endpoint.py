"""The HTTP endpoint of a process: ``/metrics``, ``/healthz`` (503 when the main loop is stuck) and
``/readyz`` (503 also when the process or a child is not ready, one reason per line). Imported only
when used, since it loads ``prometheus_client``."""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from flumeng.platform.errors import UserError
from flumeng.platform.metrics.channel import Channel
from flumeng.platform.metrics.health import Health
from flumeng.platform.metrics.instruments import ASK_SECONDS, Instruments
from flumeng.platform.metrics.page import CONTENT_TYPE, Readings

log = logging.getLogger(__name__)

CONNECTIONS = 4
"""Maximum connections (a further one closes the oldest) and requests that wait for children."""
BUSY = b"too many requests are waiting: ask again in some seconds\n"

REQUEST_SECONDS = 10.0
PLAIN = "text/plain; charset=utf-8"


class Endpoint:
    """An HTTP server in threads until ``close``. ``listen``: ``host:port``; port 0 takes a free
    one, see ``address``. Raises UserError when the address cannot be used."""

    def __init__(self, listen: str, instruments: Instruments) -> None:
        host, _, port = listen.rpartition(":")
        try:
            self._server = _Server((host.strip("[]"), int(port)), instruments)
        except OSError as error:
            raise UserError(
                f"cannot serve metrics on {listen}: {error.strerror or error}"
            ) from error
        self.address = f"{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{self.address}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], instruments: Instruments) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.instruments = instruments
        self.asking = threading.BoundedSemaphore(CONNECTIONS)
        self._open: deque[Any] = deque()
        self._changing = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without HTTPServer's DNS query for this host's name."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            self._open.append(request)
            if len(self._open) > CONNECTIONS:
                with contextlib.suppress(OSError):
                    self._open.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            if request in self._open:
                self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        """Log an error, unless a client disconnected or is slow."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("a request for metrics failed")


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server: _Server

    def do_GET(self) -> None:
        health = self.server.instruments.health
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._say([health.stuck] if health.stuck else [])
        elif path not in ("/metrics", "/readyz"):
            self._answer(HTTPStatus.NOT_FOUND, b"not found: use /metrics, /healthz or /readyz\n")
        elif self.server.asking.acquire(blocking=False):
            try:
                if path == "/metrics":
                    self._answer(HTTPStatus.OK, self.server.instruments.metrics(), CONTENT_TYPE)
                else:
                    self._say(self.server.instruments.unready())
            finally:
                self.server.asking.release()
        else:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, BUSY)

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: scrapes are not logged."""

    def _say(self, reasons: list[str]) -> None:
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        self._answer(status, "".join(f"{line}\n" for line in reasons or ["ok"]).encode())

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = PLAIN) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


log = logging.getLogger(__name__)


def serve(
    process: str,
    health: Health,
    readings: Readings,
    *,
    listen: str | None = None,
    descriptor: int | None = None,
    children: Callable[[], Mapping[str, Channel]] = dict,
    ask_seconds: float = ASK_SECONDS,
) -> Instruments:
    """Serve metrics at ``listen`` over HTTP, and to the parent at ``descriptor``. Raises UserError
    when the address cannot be used."""
    instruments = Instruments(process, health, readings, children, ask_seconds)
    if listen is not None:
        log.info("metrics at %s", Endpoint(listen, instruments).url)
    if descriptor is not None:
        instruments.serve_parent(descriptor)
    return instruments
