"""The server's side of a watch: one reader is told where its journals stand, and each move of them.

What is said costs what has moved, never what there is: journals tell a watch that they have moved,
and moves that come within the reader's gap are told together. While nothing moves, an empty answer
now and then shows the reader that the server is alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import msgspec

from flumeng.events.journal_names import is_id
from flumeng.journal.log.contract import Log
from flumeng.journal.log.position import Position
from flumeng.platform.errors import UserError

MAX_REQUEST_BYTES = 4 << 20
MISSING_SECONDS = 0.25
"""So often a watch looks whether a journal that was not served is served now."""
GAP_SECONDS_PER_MOVE = 0.0002
"""The gap after an answer grows with what it told, so that a thousand busy journals cost no more
than a few."""


class WatchRequest(msgspec.Struct, frozen=True):
    """What a reader asks: its ``journals``; at least ``gap_seconds`` between two answers, at most
    ``heartbeat_seconds``; and the end of all after ``seconds``, when it asks anew."""

    journals: tuple[str, ...]
    gap_seconds: float = 0.02
    heartbeat_seconds: float = 2.0
    seconds: float = 300.0


class WatchAnswer(msgspec.Struct, frozen=True):
    """Where journals stand that have moved, and which are not served now, or no more."""

    positions: dict[str, Position]
    not_served: tuple[str, ...]


def parse_request(body: bytes) -> WatchRequest:
    """Raises UserError for anything but what a reader of ours asks."""
    if len(body) > MAX_REQUEST_BYTES:
        raise UserError(f"a watch is asked for in at most {MAX_REQUEST_BYTES} bytes")
    try:
        request = msgspec.json.decode(body, type=WatchRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"a watch is asked for with journals and seconds: {error}") from error
    if not all(map(is_id, request.journals)):
        raise UserError("a watch is asked for with the ids of journals")
    if not 0.005 <= request.gap_seconds <= request.heartbeat_seconds <= 60:
        raise UserError("a watch is asked for with 0.005 <= gap_seconds <= heartbeat_seconds <= 60")
    if not 0 < request.seconds <= 3600:
        raise UserError("a watch is asked for with 0 < seconds <= 3600")
    return request


@dataclass
class _Watched:
    """``log`` is None while the journal is not served; ``told`` is what the reader knows."""

    log: Log | None = None
    told: Position | None = None
    listener: Callable[[], None] = field(default=lambda: None)


class Watch:
    """One watch. ``answers`` is used by one thread; journals tell of their moves from theirs.

    ``serving`` gives the journals that are served now, as a mapping that is replaced and never
    changed.
    """

    def __init__(
        self,
        serving: Callable[[], Mapping[str, Log]],
        request: WatchRequest,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._serving = serving
        self._request = request
        self._ended = False
        self._served: Mapping[str, Log] | None = None
        self._absent: set[str] = set()
        self._clock = clock
        self._watched = {name: _Watched() for name in request.journals}
        self._changed = threading.Condition()
        self._moved: set[str] = set()

    def answers(
        self, *, once: bool = False, gone: Callable[[], bool] = lambda: False
    ) -> Iterator[WatchAnswer]:
        """Where all journals stand, then, unless ``once``, what has moved, for as long as was asked
        for. ``gone`` is asked after each answer whether the reader has left."""
        request = self._request
        end = self._clock() + request.seconds
        try:
            self._follow()
            answer = self._look(self._watched)
            yield answer
            while not (once or self._ended or gone() or self._clock() >= end):
                self._rest(self._gap(answer))
                moved = self._wait(min(end, self._clock() + request.heartbeat_seconds))
                answer = self._look(moved)
                yield answer
        finally:
            for watched in self._watched.values():
                if watched.log is not None:
                    watched.log.listeners.remove(watched.listener)

    def end(self) -> None:
        """Make ``answers`` end soon; from any thread."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _rest(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended, seconds)

    def _gap(self, answer: WatchAnswer) -> float:
        return self._request.gap_seconds + GAP_SECONDS_PER_MOVE * len(answer.positions)

    def _wait(self, until: float) -> Collection[str]:
        """What has moved; nothing when it is time to say that we are alive."""
        while True:
            seconds = until - self._clock()
            with self._changed:
                self._changed.wait_for(
                    lambda: self._moved or self._ended,
                    min(seconds, MISSING_SECONDS) if self._absent else seconds,
                )
                moved, self._moved = self._moved, set()
            moved |= self._follow()
            if moved or self._ended or self._clock() >= until:
                return moved

    def _follow(self) -> set[str]:
        """Listen to the journals that are served now; those that came, went or were replaced."""
        serving = self._serving()
        moved: set[str] = set()
        if serving is self._served:
            return moved
        self._served = serving
        for name, watched in self._watched.items():
            log = serving.get(name)
            if log is not watched.log:
                if watched.log is not None:
                    watched.log.listeners.remove(watched.listener)
                watched.log, watched.told = log, None
                watched.listener = partial(self._note, name)
                if log is not None:
                    log.listeners.add(watched.listener)
                moved.add(name)
        self._absent = {name for name, watched in self._watched.items() if watched.log is None}
        return moved

    def _note(self, name: str) -> None:
        with self._changed:
            if not self._moved:
                self._changed.notify()
            self._moved.add(name)

    def _look(self, names: Collection[str]) -> WatchAnswer:
        """What the reader does not know of them."""
        positions: dict[str, Position] = {}
        gone: list[str] = []
        for name in names:
            watched = self._watched[name]
            if watched.log is None:
                gone.append(name)
                continue
            position = Position.of(watched.log)
            if position != watched.told:
                positions[name] = watched.told = position
        return WatchAnswer(positions, tuple(gone))
