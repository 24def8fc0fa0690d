"""Claims a listening address that several workers share.

The kernel lets every process of a user bind a shared address, also for another flow or node, and
would send it some connections. So each worker binds an abstract socket named after the address and
its number.
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
        """Raises UserError when another source has the port."""
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
