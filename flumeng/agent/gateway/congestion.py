"""Sets the congestion control of a server's connections. Linux's default, CUBIC, takes each lost
packet for a full line: over 150 ms with 0.1 % loss a connection gets 4 Mb/s. BBR gets the line."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

BBR = "bbr"


def prefer_bbr(port: int) -> bool:
    """Set BBR for connections that this process will accept at ``port``; return whether the kernel
    has it and lets this process use it. Connections inherit it from the listening socket."""
    option = getattr(socket, "TCP_CONGESTION", 0)  # Linux has it
    listening = list(_listening(port)) if option else []
    for server in listening:
        with server:
            try:
                server.setsockopt(socket.IPPROTO_TCP, option, BBR.encode())
            except OSError as error:
                log.warning(
                    "other sites are served without the congestion control %s, so a long line with "
                    "losses stays empty: load the kernel module tcp_bbr, and allow it in the "
                    "sysctl net.ipv4.tcp_allowed_congestion_control (%s)",
                    *(BBR, error.strerror),
                )
                return False
    return bool(listening)


def _listening(port: int) -> Iterator[socket.socket]:
    """Yield copies of this process's listening sockets at ``port``; gRPC gives no access."""
    for path in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            if not path.is_socket():
                continue
            one = socket.socket(fileno=os.dup(int(path.name)))
            accepts = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if accepts and one.getsockname()[1:2] == (port,):
                yield one
            else:
                one.close()
