"""Asks a node for accounts and then for counters over one connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flumeng.control.queries import fan_out

if TYPE_CHECKING:
    from flumeng.journal.serving.account import Account
    from flumeng.journal.serving.client import JournalClient

MOST = 256
"""An idle connection takes about 40 KB, so that few are kept, and none for long."""
KEPT_SECONDS = 5.0
"""A connection that no question about counters follows is closed after this."""


class NodeConnections:
    """Thread-safe. ``connect`` opens a client of an address; ``monotonic``: seconds."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        connect: Callable[[str], JournalClient] = fan_out.client,
        most: int = MOST,
    ) -> None:
        self._monotonic = monotonic
        self._connect = connect
        self._most = most
        self._lock = threading.Lock()
        self._idle: dict[str, tuple[JournalClient, float]] = {}

    def accounts(self, address: str) -> Mapping[str, Account]:
        """As ``journals.ask_worker``."""
        client, since = self._take(address)
        try:
            accounts = client.accounts()
        except BaseException:
            client.close()
            raise
        self._keep(address, client, since)
        return accounts

    def counters(self, address: str) -> Sequence[Mapping[str, Any]]:
        """As ``counters.ask_worker``. Uses the connection of ``accounts``, and closes it."""
        client, _ = self._take(address)
        try:
            return client.counters()
        finally:
            client.close()

    def close(self) -> None:
        """Close all idle connections."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for client, _ in idle.values():
            client.close()

    def _take(self, address: str) -> tuple[JournalClient, float]:
        now = self._monotonic()
        with self._lock:
            old = [each for each, (_, since) in self._idle.items() if now - since > KEPT_SECONDS]
            closing = [self._idle.pop(each)[0] for each in old]
            kept = self._idle.pop(address, None)
        for client in closing:
            client.close()
        return kept or (self._connect(address), now)

    def _keep(self, address: str, client: JournalClient, since: float) -> None:
        with self._lock:
            has_room = address not in self._idle and len(self._idle) < self._most
            if has_room:
                self._idle[address] = client, since
        if not has_room:
            client.close()
