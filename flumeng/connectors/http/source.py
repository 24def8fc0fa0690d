"""HTTP source: uvicorn with httptools in the worker's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Generator
from typing import cast

import uvicorn

from flumeng.connectors.api.counters import Counters
from flumeng.connectors.api.source import Source, SourceContext
from flumeng.connectors.http.app import HttpApp
from flumeng.connectors.http.options import Http
from flumeng.connectors.http.protocol import Protocol
from flumeng.connectors.http.received_body import Limits
from flumeng.connectors.http.senders import REFRESH_SECONDS, Senders
from flumeng.connectors.network import tls
from flumeng.connectors.network.handshakes import Handshakes
from flumeng.connectors.network.peers import address
from flumeng.connectors.network.tls import ServerTls
from flumeng.platform.listening import BACKLOG, listen

KEEP_ALIVE_SECONDS = 60
MOST_CONNECTIONS = 10_000
CLOSE_SECONDS = 1


class HttpSource(Source):
    """Receives requests, submits their events, and answers as the option ``ack`` says."""

    spreads = True

    def __init__(self, options: Http, context: SourceContext, limits: Limits = Limits()) -> None:
        self._options = options
        self._context = context
        self._tls = self._senders = None
        if options.tls is not None:
            self._tls = ServerTls(options.tls, context.policy, self._on_change)
        if options.auth is not None:
            self._senders = Senders(options.auth, options.listen, self._on_change)
        self._app = HttpApp(options, context, self._tls, self._senders, limits)
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._refreshing: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for part, seconds in ((self._tls, tls.REFRESH_SECONDS), (self._senders, REFRESH_SECONDS)):
            if part is not None:
                await part.start()
                self._refreshing.append(asyncio.create_task(tls.every(seconds, part.refresh)))
        listener = await listen(self._options.listen, "tcp", share=self._context.share_ports)
        config = uvicorn.Config(
            self._app,
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.ERROR,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
        config.load()
        self._server = _Server(config, self._tls, self._context.counters)
        self.addresses = (address(listener.getsockname()),)
        self._serving = asyncio.create_task(self._server.serve([listener]))
        self._serving.add_done_callback(self._on_end)

    async def stop(self) -> None:
        for refreshing in self._refreshing:
            refreshing.cancel()
        if self._server is None or self._serving is None:
            return
        await self._app.settle()
        self._app.stop()
        self._server.end()
        await asyncio.wait([self._serving])

    def pause(self) -> None:
        self._app.pause()

    def resume(self) -> None:
        self._app.resume()

    def _on_change(self) -> None:
        if self._server is not None:
            self._server.close_revoked()
        parts = (self._tls, self._senders)
        problem = "; ".join(part.problem for part in parts if part is not None and part.problem)
        if problem != (self.problem or ""):
            self.problem = problem or None
            self._context.changed()

    def _on_end(self, serving: asyncio.Task[None]) -> None:
        error = serving.exception()
        if isinstance(error, Exception):
            self._context.fail(error)


class _Server(uvicorn.Server):
    """Server that leaves signals to the worker. It does without uvicorn's ticks: those of 1,000
    servers would take half a CPU."""

    def __init__(self, config: uvicorn.Config, tls: ServerTls | None, counters: Counters) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()
        self._tls = tls
        self._counters = counters

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None:
            await super().startup(sockets)
            return
        assert sockets is not None
        handshakes = [Handshakes(s, self._tls, self._protocol, self._counters) for s in sockets]
        self.servers = cast("list[asyncio.Server]", handshakes)
        self.started = True

    def close_revoked(self) -> None:
        for protocol in list(self.server_state.connections):
            if isinstance(protocol, Protocol) and protocol.is_revoked:
                self._counters.unauthorized += 1
                protocol.transport.abort()

    def _protocol(self) -> Protocol:
        return Protocol(self.config, self.server_state, {})

    def end(self) -> None:
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
