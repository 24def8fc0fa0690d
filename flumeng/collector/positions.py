"""How far each journal can be read now, asked of the processes that serve them.

A server that does not answer is left alone for a while, so that it costs its own journals a delay
and the others nothing.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from flumeng.collector.addresses import Addresses
from flumeng.errors import UnavailableError
from flumeng.journal.client import JournalClient

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 2.0
AVOID_SECONDS = 2.0


@dataclass(frozen=True)
class Reach:
    """What can be read of a journal: everything below ``safe``, at ``address``."""

    address: str
    safe: int


class Positions:
    """Used by one thread. ``close`` ends its connections."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._clients: dict[str, JournalClient] = {}
        self._avoid_until: dict[str, float] = {}
        self._away: set[str] = set()

    def of(self, journals: Iterable[str]) -> dict[str, Reach]:
        """Lacks the journals that cannot be reached now."""
        wanted: defaultdict[str, list[str]] = defaultdict(list)
        for journal, address in self._addresses.of(journals).items():
            wanted[address].append(journal)
        for address in self._clients.keys() - wanted.keys():
            self._clients.pop(address).close()
        reached: dict[str, Reach] = {}
        for address, names in wanted.items():
            safe = self._ask(address)
            reached |= {name: Reach(address, safe[name]) for name in names if name in safe}
            if missing := [name for name in names if name not in safe]:
                self._addresses.doubt(missing)
        return reached

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients = {}

    def _ask(self, address: str) -> dict[str, int]:
        if time.monotonic() < self._avoid_until.get(address, 0.0):
            return {}
        client = self._clients.setdefault(address, JournalClient(address, TIMEOUT_SECONDS))
        try:
            positions = client.positions()
        except UnavailableError as error:
            if address not in self._away:
                log.warning("journals wait: %s", error)
            self._away.add(address)
            self._avoid_until[address] = time.monotonic() + AVOID_SECONDS
            return {}
        self._away.discard(address)
        return {name: position.safe for name, position in positions.items()}
