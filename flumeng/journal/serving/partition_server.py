"""A Flight server for positions and accounts of partitions that lie elsewhere. It serves no events.

Partitions are called ``flow/partition``: several flows may read the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from flumeng.journal.log.position import Position
from flumeng.journal.serving.account import Account
from flumeng.journal.serving.action_server import ActionServer
from flumeng.journal.serving.service import NO_ACTIONS, Actions
from flumeng.journal.serving.wire import ACCOUNTS, COUNTERS, OFFSETS, POSITIONS
from flumeng.platform.errors import UserError
from flumeng.platform.security.credentials import Keystore


class Answers(Protocol):
    """Thread-safe; each call takes a bounded time."""

    def positions(self) -> Mapping[str, Position]: ...

    def accounts(self) -> Mapping[str, Account]: ...

    def offsets(self, flow: str, partitions: list[str], to: str) -> Mapping[str, int]:
        """Raises UnavailableError and UserError."""


class OffsetsRequest(msgspec.Struct):
    """``to``: ``earliest``, ``latest``, or a time."""

    flow: str
    partitions: list[str]
    to: str


class PartitionServer(ActionServer):
    """See ``ActionServer``. ``actions`` are additional ones."""

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
        raise UserError(f"offsets of what: {error}") from error
    return answers.offsets(asked.flow, asked.partitions, asked.to)
