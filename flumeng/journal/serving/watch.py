"""The server's side of a watch: streams positions of journals to a reader, at each change. Changes
within the gap that the reader asks for are sent together; empty answers are heartbeats."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import msgspec

from flumeng.events.journal_names import is_id
from flumeng.journal.log.contract import Log, Position
from flumeng.platform.errors import UserError

MAX_REQUEST_BYTES = 4 << 20
MISSING_SECONDS = 0.25
"""Seconds between two checks for requested journals that are not served."""
GAP_SECONDS_PER_MOVE = 0.0002
"""Seconds added to the gap per position in the last answer: many busy journals cost little more."""


class WatchRequest(msgspec.Struct, frozen=True):
    """A request to watch journals for ``seconds``. ``gap_seconds``, ``heartbeat_seconds``: minimum
    and maximum time between answers."""

    journals: tuple[str, ...]
    gap_seconds: float = 0.02
    heartbeat_seconds: float = 2.0
    seconds: float = 300.0


class WatchAnswer(msgspec.Struct, frozen=True):
    positions: dict[str, Position]
    not_served: tuple[str, ...]


def parse_request(body: bytes) -> WatchRequest:
    if len(body) > MAX_REQUEST_BYTES:
        raise UserError(f"a watch request has at most {MAX_REQUEST_BYTES} bytes")
    try:
        request = msgspec.json.decode(body, type=WatchRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"a watch request needs journals and seconds: {error}") from error
    if not all(map(is_id, request.journals)):
        raise UserError("a watch request needs ids of journals")
    if not 0.005 <= request.gap_seconds <= request.heartbeat_seconds <= 60:
        raise UserError("a watch request needs 0.005 <= gap_seconds <= heartbeat_seconds <= 60")
    if not 0 < request.seconds <= 3600:
        raise UserError("a watch request needs 0 < seconds <= 3600")
    return request


@dataclass
class _Watched:
    """A watched journal; ``log`` is None while it is not served."""

    log: Log | None = None
    sent: Position | None = None
    listener: Callable[[], None] = field(default=lambda: None)


class Watch:
    """One watch. ``answers`` runs in one thread; journals notify from others. The mapping from
    ``serving`` is replaced, never changed."""

    def __init__(self, serving: Callable[[], Mapping[str, Log]], request: WatchRequest) -> None:
        self._serving = serving
        self._request = request
        self._ended = False
        self._served: Mapping[str, Log] | None = None
        self._absent: set[str] = set()
        self._watched = {name: _Watched() for name in request.journals}
        self._changed = threading.Condition()
        self._moved: set[str] = set()

    def answers(
        self, *, once: bool = False, gone: Callable[[], bool] = lambda: False
    ) -> Iterator[WatchAnswer]:
        """Yield all positions, then, unless ``once``, changes until the time ends or ``gone``."""
        request = self._request
        end = time.monotonic() + request.seconds
        try:
            self._follow()
            answer = self._changes(self._watched)
            yield answer
            while not (once or self._ended or gone() or time.monotonic() >= end):
                self._rest(self._gap(answer))
                moved = self._wait(min(end, time.monotonic() + request.heartbeat_seconds))
                answer = self._changes(moved)
                yield answer
        finally:
            for watched in self._watched.values():
                if watched.log is not None:
                    watched.log.listeners.remove(watched.listener)

    def end(self) -> None:
        """Make ``answers`` end soon. Thread-safe."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _rest(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended, seconds)

    def _gap(self, answer: WatchAnswer) -> float:
        return self._request.gap_seconds + GAP_SECONDS_PER_MOVE * len(answer.positions)

    def _wait(self, until: float) -> Collection[str]:
        """Wait and return changed journals; none when a heartbeat is due."""
        while True:
            seconds = until - time.monotonic()
            with self._changed:
                self._changed.wait_for(
                    lambda: self._moved or self._ended,
                    min(seconds, MISSING_SECONDS) if self._absent else seconds,
                )
                moved, self._moved = self._moved, set()
            moved |= self._follow()
            if moved or self._ended or time.monotonic() >= until:
                return moved

    def _follow(self) -> set[str]:
        """Listen to the journals served now; return those added, removed or replaced."""
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
                watched.log, watched.sent = log, None
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

    def _changes(self, names: Collection[str]) -> WatchAnswer:
        positions: dict[str, Position] = {}
        gone: list[str] = []
        for name in names:
            watched = self._watched[name]
            if watched.log is None:
                gone.append(name)
                continue
            position = Position.of(watched.log)
            if position != watched.sent:
                positions[name] = watched.sent = position
        return WatchAnswer(positions, tuple(gone))
