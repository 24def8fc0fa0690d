"""A Flight server that answers questions about a process, and serves no events."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from flumeng.journal.serving.access import Granted, Peer
from flumeng.journal.serving.service import Actions, Endpoint, Service
from flumeng.platform.errors import UserError
from flumeng.platform.security.credentials import Credentials, Keystore


class ActionServer:
    """Serves for the life of the process; with a ``keystore`` only to peers of the same cluster.
    Raises UserError when the address or the credentials cannot be used."""

    def __init__(
        self, host: str, actions: Actions, port: int = 0, *, keystore: Keystore | None = None
    ) -> None:
        self._endpoint: Endpoint[_Service] = Endpoint(
            partial(_Service, actions=actions), host, port, keystore
        )
        self.address = self._endpoint.address
        self.stop = self._endpoint.stop


class _Service(Service):
    def __init__(
        self, host: str, port: int, own: Credentials | None, granted: Granted, *, actions: Actions
    ) -> None:
        self._actions = actions
        super().__init__(host, port, own, granted)

    def act(self, peer: Peer, context: Any, action: str, body: bytes) -> Iterator[bytes]:
        del context
        answer = self._actions.get(action)
        if answer is None:
            raise UserError(f"there is no action {action!r}, only {', '.join(self._actions)}")
        peer.require(action)
        return iter([msgspec.json.encode(answer(body))])
