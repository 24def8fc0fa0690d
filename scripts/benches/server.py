"""What a ZooKeeper server says of its own work, asked with its four-letter words."""

from __future__ import annotations

import socket


def transactions(port: int) -> int:
    """How many transactions the server has made in all: sessions count, reads and pings do not."""
    return int(told(port)["Zxid"], 16) & 0xFFFFFFFF


def packets(port: int) -> int:
    """How many packets the server has received in all, pings included."""
    return int(told(port)["Received"])


def told(port: int) -> dict[str, str]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"srvr")
        answer = b""
        while part := connection.recv(65536):
            answer += part
    pairs = (line.split(": ", 1) for line in answer.decode().splitlines() if ": " in line)
    return dict(pairs)
