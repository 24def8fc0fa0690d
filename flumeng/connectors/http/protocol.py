"""HTTP/1.1 for the HTTP source: a stricter form of uvicorn's protocol. The httptools parser limits
neither size nor time of headers, drops the bodies of requests with ``Upgrade``, and reports
trailers as headers."""

from __future__ import annotations

import asyncio

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flumeng.connectors.http.app import Connection, HttpApp

HEAD_BYTES = 64 << 10

_OFFER = frozenset({b"upgrade", b"http2-settings"})
"""Header names and ``Connection`` tokens with which a client offers another protocol."""


class Protocol(HttpToolsProtocol):
    """Protocol of a connection. Ignores an offered upgrade, and reads the body (RFC 9110 7.8)."""

    _silent_bytes = 0  # received since the parser last had something for the application
    _head_timer: asyncio.TimerHandle | None = None
    _connection: Connection | None = None
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()
        host = self.client[0] if self.client is not None else "unknown"
        self._connection = self._http_app.connected(transport, host)
        self.app_state = {"connection": self._connection}

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._connection is not None:
            self._http_app.disconnected(self._connection)
        super().connection_lost(exc)

    @property
    def is_revoked(self) -> bool:
        return self._connection is not None and self._http_app.is_revoked(self._connection)

    @property
    def _http_app(self) -> HttpApp:
        assert isinstance(self.config.app, HttpApp)
        return self.config.app

    def data_received(self, data: bytes) -> None:
        self._silent_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._silent_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"more than {HEAD_BYTES} bytes of headers")

    def _feed(self, data: bytes) -> None:
        """Parse ``data``. The parser stops at an upgrade; a new one reads without the offer."""
        while not self.transport.is_closing():
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                (body_start,) = offer.args
            if self.parser.get_method() == b"CONNECT":
                self.send_400_response("CONNECT is not supported.")
                return
            data = self._head_without_offer() + data[body_start:]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _head_without_offer(self) -> bytes:
        """Return the request's head without the upgrade offer, so that a parser reads the body."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                kept = b", ".join(token for token in tokens if token.lower() not in _OFFER)
                lines.append(b"connection: " + kept)
            elif name not in _OFFER:
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        self._start_timer()
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Drop trailers, which must not count as headers."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._silent_bytes = 0
        self._in_head = False
        if self.parser.should_upgrade():
            return
        self._stop_timer()
        if self.parser.get_http_version() == "1.0":
            self.expect_100_continue = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._silent_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._silent_bytes = 0
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _start_timer(self) -> None:
        self._stop_timer()
        seconds = self._http_app.limits.head_seconds
        self._head_timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
