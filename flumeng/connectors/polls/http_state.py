"""What a poll over HTTP goes on from: a small JSON text, kept in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from flumeng.connectors.polls.http_options import TrackField
from flumeng.connectors.polls.http_tracking import Reach
from flumeng.connectors.polls.poll import MOST_STATE_BYTES
from flumeng.platform.errors import CorruptError, UserError
from flumeng.platform.options.moments import time_of


@dataclass(frozen=True)
class Chain:
    """The pages of the due time ``due``, when there are more of them. ``at`` is what to ask for
    next: the number of a page or record, a cursor, a URL; as ``by`` says. ``pages`` and ``records``
    came before, ``digest`` is that of the last one. ``anew``: it stands for another chain, in which
    there was no way on."""

    due: str
    by: str
    at: str = ""
    pages: int = 0
    records: int = 0
    digest: str = ""
    reached: Reach = field(default_factory=Reach)
    anew: bool = False

    def __post_init__(self) -> None:
        if self.by in ("page", "offset") and not (self.at.isascii() and self.at.isdigit()):
            raise ValueError("no number")


@dataclass(frozen=True)
class State:
    """``path`` and ``type``: what has been tracked; "" when nothing has. ``until``: the latest
    `{due}` of those whose pages all came; ``reach``: what was tracked then.
    ``validators``: headers that ask whether the answer to the request ``asked`` has changed.
    """

    v: Literal[1]
    path: str = ""
    type: str = ""
    until: str = ""
    reach: Reach = field(default_factory=Reach)
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
        """Raises CorruptError, and UserError when it is of another tracked value."""
        try:
            state = _decode(text) if text else cls(1)
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
        """Raises UserError when what the server has said is too large for it."""
        text: bytes = msgspec.json.encode(self)
        if len(text) > MOST_STATE_BYTES:
            raise UserError("what it says of the next page is larger than ZooKeeper is to keep")
        return text.decode()


_decode = msgspec.json.Decoder(State).decode
