"""Who has an address that several sockets listen on.

The kernel lets every process of a user bind an address that one of them shares, also one of another
flow or another node: senders would then be served by the wrong one. So each worker claims the name
of the address for its number, as an abstract socket; the kernel gives a name to one process of a
host and takes it back when that ends.
"""

from __future__ import annotations

import errno
import socket
from typing import Any

from flumeng.platform.errors import UserError
from flumeng.platform.listening import resolve


class PortClaims:
    """The claims of worker ``number`` for one run of one source."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._held: list[socket.socket] = []

    async def take(self, options: Any) -> None:
        """Claim what the source says that it alone has, whatever name it has there for an address.
        Raises UserError."""
        for _, what in options.claims():
            protocol, place = what.split(" ")
            _, _, found = await resolve(place, protocol)
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._held.append(claim)
            try:
                claim.bind(f"\0flumeng {protocol} {found[:2]} {self._number}".encode())
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                raise UserError(f"cannot listen on {what}: another source has the port") from error

    def release(self) -> None:
        for claim in self._held:
            claim.close()
        self._held.clear()
