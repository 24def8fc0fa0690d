"""Binds sockets to receive on; an error explains in one sentence why one cannot be bound."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from typing import Literal

from flumeng.platform.errors import UserError

BACKLOG = 4096
RESERVED_FILES = 256
_REASONS = {
    errno.EADDRINUSE: "the port is in use",
    errno.EACCES: "not permitted; ports below 1024 need the capability CAP_NET_BIND_SERVICE",
    errno.EADDRNOTAVAIL: "this host does not have that address",
}


async def listen(address: str, protocol: Literal["tcp", "udp"], *, share: bool) -> socket.socket:
    """Return a bound non-blocking socket. ``share``: other workers of the node bind the same
    address, and the kernel spreads senders over them. Raises UserError."""
    family, kind, resolved = await resolve(address, protocol)
    try:
        return _bind(family, kind, resolved, share=share)
    except OSError as error:
        raise _cannot_listen(address, protocol, error) from error


async def resolve(
    address: str, protocol: Literal["tcp", "udp"]
) -> tuple[int, socket.SocketKind, tuple[object, ...]]:
    host, _, port = address.rpartition(":")
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    try:
        resolved = await asyncio.get_running_loop().getaddrinfo(
            host.strip("[]") or None, int(port), type=kind, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise _cannot_listen(address, protocol, error) from error
    return resolved[0][0], kind, resolved[0][4]


def _cannot_listen(address: str, protocol: str, error: OSError) -> UserError:
    reason = _REASONS.get(error.errno or 0, error.strerror)
    return UserError(f"cannot listen on {address} ({protocol}): {reason}")


def takes_reserve(transport: asyncio.BaseTransport) -> bool:
    """Return whether a connection uses one of this process's last descriptors, reserved for
    journals and their readers. (A new descriptor is the lowest free one.)"""
    return is_reserved(transport.get_extra_info("socket").fileno())


def is_reserved(descriptor: int) -> bool:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return descriptor >= most - reserved_files(most)


def reserved_files(most: int) -> int:
    return min(RESERVED_FILES, most // 4)


def _bind(
    family: int, kind: socket.SocketKind, address: tuple[object, ...], *, share: bool
) -> socket.socket:
    bound = socket.socket(family, kind)
    try:
        if share:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if kind is socket.SOCK_STREAM:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections inherit it
        bound.setblocking(False)
        bound.bind(address)
        if kind is socket.SOCK_STREAM:
            bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound
