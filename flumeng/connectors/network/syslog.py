"""The syslog source: messages over TCP (RFC 6587), TLS (RFC 5425) or UDP (RFC 5426), stored as
received."""

from __future__ import annotations

from functools import partial

from flumeng.connectors.api.framing import TRAILERS, cutter
from flumeng.connectors.api.received_block import LineRules
from flumeng.connectors.api.source import SourceContext
from flumeng.connectors.network.options import Syslog
from flumeng.connectors.network.peers import Reception
from flumeng.connectors.network.sockets import SocketSource
from flumeng.connectors.network.streams import Limits


class SyslogSource(SocketSource):
    def __init__(self, options: Syslog, context: SourceContext) -> None:
        udp = options.protocol == "udp"
        rules = LineRules(options.max_line_bytes, TRAILERS["syslog"], keep_empty=False)
        cut = partial(cutter, options.framing, options.max_line_bytes, nul_ends=True)
        reception = Reception("syslog", rules, context, None if udp else cut)
        limits = Limits(options.max_connections, options.idle_seconds, options.per_peer)
        super().__init__(options.listen, options.protocol, reception, options.tls, limits)
