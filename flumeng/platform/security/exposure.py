"""Guards servers of this process against unauthenticated access from other hosts."""

from __future__ import annotations

import ipaddress
import socket

from flumeng.platform.errors import UserError
from flumeng.platform.security import roles


def require_proof_beyond_loopback(host: str) -> None:
    """Raise UserError when other hosts could reach ``host`` without proof of an identity."""
    if roles.folder() is None and not is_loopback(host):
        raise UserError(
            f"--host {host}: other hosts could read all events of this node. Give it an identity "
            "(`flumeng node enroll` makes one, FLUMENG_IDENTITY names it), or add --insecure if no "
            "other host can reach it"
        )


def is_loopback(host: str) -> bool:
    """Return whether a host has only loopback addresses; False for an unknown name."""
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(text.partition("%")[0]).is_loopback for text in addresses)
