"""Connections that a server accepts have BBR, where the kernel has it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from flumeng.agent.gateway.congestion import prefer_bbr

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


@pytest.mark.skipif(
    not ALLOWED.exists() or "bbr" not in ALLOWED.read_text().split(), reason="needs BBR"
)
def test_accepted_connections_have_bbr() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        port = server.getsockname()[1]
        assert prefer_bbr(port)
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0] as accepted:
            found = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    assert found.rstrip(b"\0") == b"bbr"


def test_port_without_a_listener_is_no_fault() -> None:
    assert not prefer_bbr(1)
