"""The state of a poll over HTTP, from which the next one goes on: a JSON text in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from flumeng.connectors.polls.http_options import TrackField
from flumeng.connectors.polls.http_records import Tracked
from flumeng.connectors.polls.poll import MOST_STATE_BYTES
from flumeng.platform.errors import CorruptError, UserError
from flumeng.platform.options.moments import time_of


@dataclass(frozen=True)
class Chain:
    """The pages of the due time ``due`` that are not read yet.

    ``at``: the next page's number, offset, cursor or URL, as ``by`` says. ``pages`` and ``records``
    came before; ``digest`` is of the last page. ``anew``: it replaces a chain that the server
    refused to go on with.
    """

    due: str
    by: str
    at: str = ""
    pages: int = 0
    records: int = 0
    digest: str = ""
    reached: Tracked = field(default_factory=Tracked)
    anew: bool = False

    def __post_init__(self) -> None:
        if self.by in ("page", "offset") and not (self.at.isascii() and self.at.isdigit()):
            raise ValueError("no number")


@dataclass(frozen=True)
class State:
    """``path`` and ``type`` of what is tracked, or "". ``until``: the latest `{due}` whose pages
    all came; ``reach``: what was tracked then. ``validators``: headers that ask whether the answer
    to the request with the digest ``asked`` has changed."""

    v: Literal[1]
    path: str = ""
    type: str = ""
    until: str = ""
    reach: Tracked = field(default_factory=Tracked)
    asked: str = ""
    validators: Mapping[str, str] = field(default_factory=dict)
    chain: Chain | None = None

    def __post_init__(self) -> None:
        if self.until:
            time_of(self.until)
        if self.chain is not None:
            time_of(self.chain.due)

    @classmethod
    def of(cls, text: str, track: TrackField | None = None) -> State:
        """Raises CorruptError, and UserError when another value was tracked."""
        try:
            state = msgspec.json.decode(text, type=cls) if text else cls(1)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CorruptError(
                "the state of the poll is not what was written: when something else than http_poll "
                "was asked before, take that change back, or make another flow for it"
            ) from error
        if track is None:
            return state
        if state.path and (state.path, state.type) != (track.path, track.type):
            raise UserError(
                f"records were taken by {state.path} as a {state.type} so far, and cannot be gone "
                "on with in another way: take the change of `track` back, or make another flow "
                "that begins there"
            )
        return replace(state, path=track.path, type=track.type)

    def to_text(self) -> str:
        """Raises UserError when it is too large for ZooKeeper."""
        text: bytes = msgspec.json.encode(self)
        if len(text) > MOST_STATE_BYTES:
            raise UserError("what it says of the next page is larger than ZooKeeper is to keep")
        return text.decode()
