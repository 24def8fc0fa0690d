"""Sources that listen on one address over TCP, TLS or UDP."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Literal

from flumeng.connectors.api.framing import TRAILERS, cutter
from flumeng.connectors.api.received_block import LineRules
from flumeng.connectors.api.source import Source, SourceContext
from flumeng.connectors.network.datagrams import Datagrams
from flumeng.connectors.network.options import Syslog, Tcp, Udp
from flumeng.connectors.network.peers import Reception, address
from flumeng.connectors.network.server_tls import Tls
from flumeng.connectors.network.streams import Limits, Streams
from flumeng.connectors.network.tls import REFRESH_SECONDS, ServerTls, every
from flumeng.platform.listening import listen


class SocketSource(Source):
    spreads = True

    def __init__(
        self,
        listen_on: str,
        protocol: Literal["tcp", "udp"],
        reception: Reception,
        tls: Tls | None = None,
        limits: Limits = Limits(),  # noqa: B008  frozen
    ) -> None:
        self._listen_on = listen_on
        self._protocol = protocol
        self._context = reception.context
        self._tls = None if tls is None else ServerTls(tls, self._context.policy, self._on_tls)
        self._receiver: Streams | Datagrams = (
            Streams(reception, limits, self._tls) if protocol == "tcp" else Datagrams(reception)
        )
        self._refreshing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._tls is not None:
            await self._tls.start()
            self._refreshing = asyncio.create_task(every(REFRESH_SECONDS, self._tls.refresh))
        listener = await listen(self._listen_on, self._protocol, share=self._context.share_ports)
        self.addresses = (address(listener.getsockname()),)
        await self._receiver.start(listener)

    async def stop(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
        await self._receiver.stop()

    def _on_tls(self) -> None:
        assert self._tls is not None
        assert isinstance(self._receiver, Streams)
        self._receiver.close_revoked()
        if self.problem != (self._tls.problem or None):
            self.problem = self._tls.problem or None
            self._context.changed()

    def pause(self) -> None:
        self._receiver.pause()

    def resume(self) -> None:
        self._receiver.resume()


class TcpSource(SocketSource):
    def __init__(self, options: Tcp, context: SourceContext) -> None:
        rules = LineRules(options.max_line_bytes, TRAILERS[options.framing], keep_empty=False)
        cut = partial(cutter, options.framing, options.max_line_bytes)
        reception = Reception("tcp", rules, context, cut)
        limits = Limits(options.max_connections, options.idle_seconds, options.per_peer)
        super().__init__(options.listen, "tcp", reception, options.tls, limits)


class UdpSource(SocketSource):
    """Receives datagrams: each is one message, or is cut into messages like a stream."""

    def __init__(self, options: Udp, context: SourceContext) -> None:
        rules = LineRules(options.max_line_bytes, TRAILERS[options.framing], keep_empty=False)
        cut = (
            None
            if options.framing == "datagram"
            else partial(cutter, options.framing, options.max_line_bytes)
        )
        super().__init__(options.listen, "udp", Reception("udp", rules, context, cut))


class SyslogSource(SocketSource):
    def __init__(self, options: Syslog, context: SourceContext) -> None:
        udp = options.protocol == "udp"
        rules = LineRules(options.max_line_bytes, TRAILERS["syslog"], keep_empty=False)
        cut = partial(cutter, options.framing, options.max_line_bytes, nul_ends=True)
        reception = Reception("syslog", rules, context, None if udp else cut)
        limits = Limits(options.max_connections, options.idle_seconds, options.per_peer)
        super().__init__(options.listen, options.protocol, reception, options.tls, limits)
