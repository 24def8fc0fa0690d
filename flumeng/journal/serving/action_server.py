"""Flight servers that answer actions of a process, and serve no events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import msgspec

from flumeng.journal.log.contract import Position
from flumeng.journal.serving.access import Peer
from flumeng.journal.serving.account import Account
from flumeng.journal.serving.service import NO_ACTIONS, Actions, Service
from flumeng.journal.serving.wire import ACCOUNTS, COUNTERS, OFFSETS, POSITIONS
from flumeng.platform.errors import UserError
from flumeng.platform.security.credentials import Keystore


class ActionServer(Service):
    def __init__(
        self, host: str, actions: Actions, port: int = 0, *, keystore: Keystore | None = None
    ) -> None:
        self._actions = actions
        super().__init__(host, port, keystore)

    def act(self, peer: Peer, context: Any, action: str, body: bytes) -> Iterator[bytes]:
        del context
        answer = self._actions.get(action)
        if answer is None:
            raise UserError(f"there is no action {action!r}, only {', '.join(self._actions)}")
        peer.require(action)
        return iter([msgspec.json.encode(answer(body))])


class Answers(Protocol):
    """The data that a partition server serves. Thread-safe; each call takes a bounded time."""

    def positions(self) -> Mapping[str, Position]: ...

    def accounts(self) -> Mapping[str, Account]: ...

    def offsets(self, flow: str, partitions: list[str], to: str) -> Mapping[str, int]:
        """Return the offset of each partition at ``to``. Raises UnavailableError, UserError."""


class OffsetsRequest(msgspec.Struct):
    """A request for offsets; ``to`` is ``earliest``, ``latest``, or a time."""

    flow: str
    partitions: list[str]
    to: str


class PartitionServer(ActionServer):
    """Serves positions and accounts of partitions outside of journals. They are named
    ``flow/partition``, since several flows may read the same partition."""

    def __init__(
        self,
        host: str,
        answers: Answers,
        port: int = 0,
        *,
        actions: Actions = NO_ACTIONS,
        keystore: Keystore | None = None,
    ) -> None:
        all_actions: Actions = {
            POSITIONS: lambda _: answers.positions(),
            ACCOUNTS: lambda _: answers.accounts(),
            COUNTERS: lambda _: [],
            OFFSETS: lambda body: _offsets(answers, body),
            **actions,
        }
        super().__init__(host, all_actions, port, keystore=keystore)


def _offsets(answers: Answers, body: bytes) -> Mapping[str, int]:
    try:
        asked = msgspec.json.decode(body, type=OffsetsRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"invalid request for offsets: {error}") from error
    return answers.offsets(asked.flow, asked.partitions, asked.to)
