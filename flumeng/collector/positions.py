"""How far each journal can be read now, asked of the processes that serve them.

A server that does not answer is left alone for a while, so that it costs its own journals a delay
and the others nothing.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flumeng.collector.addresses import Addresses
from flumeng.errors import CorruptError, UnavailableError
from flumeng.journal.client import JournalClient, Position

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 2.0
AVOID_SECONDS = 2.0


@dataclass(frozen=True)
class Reach:
    """What can be read of a journal: [``floor``, ``safe``), at ``address``.

    ``held`` more events are there, or were, and cannot be read. ``trouble``: the server does not
    say how far the journal reaches, but something else.
    """

    address: str
    safe: int
    held: int = 0
    trouble: str = ""
    floor: int = 0


class Positions:
    """Used by one thread. ``close`` ends its connections; they are made anew when needed."""

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
            try:
                told = self._ask(address)
            except CorruptError as error:
                reached |= {name: Reach(address, 0, trouble=str(error)) for name in names}
                continue
            for name in names:
                if name in told:
                    position = told[name]
                    reached[name] = Reach(
                        address, position.safe, position.held, floor=position.floor
                    )
            if missing := [name for name in names if name not in told]:
                self._addresses.invalidate(missing)
        return reached

    def probe(self, journal: str, address: str, start: int, end: int) -> None:
        """Read the first events of [start, end), which is not empty; raises what
        ``JournalClient.read`` raises when that is not possible."""
        with JournalClient(address, TIMEOUT_SECONDS) as client:
            next(client.read(journal, start, end), None)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients = {}

    def _ask(self, address: str) -> Mapping[str, Position]:
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
        return positions
