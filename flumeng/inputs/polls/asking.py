"""The due times of one lane as they are asked: one after the other, ahead of what is read.

An answer is kept when its file lasts and ZooKeeper has the file's name and the state that it
leaves, in one transaction under the version that was read. So of two who ask the same due time one
has asked it, and the other's answer never was; and what follows is asked from the state that was
kept. Who may not go on is told by that version alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from flumeng.errors import (
    ConflictError,
    CorruptError,
    FlumengError,
    UnavailableError,
    UserError,
)
from flumeng.inputs.objects.watcher import LaneLog
from flumeng.inputs.polls import answers
from flumeng.inputs.polls.answer_files import AnswerFiles
from flumeng.inputs.polls.answers import KeptAnswer
from flumeng.inputs.polls.poll import MOST_STATE_BYTES, Poll
from flumeng.state.items import Item
from flumeng.store import ABSENT, Put, Store, Version, Write
from zkschema import paths
from zkschema.records import Polls, QueueFailure

log = logging.getLogger(__name__)

KEPT = 64
"""So many answers are kept that are not in all sinks; then nothing is asked."""
TRIES = 3
"""So often a due time is asked that would not be answered otherwise the next time."""
RETRY_SECONDS = 1.0
RETRY_MOST_SECONDS = 30.0
WHY_CHARACTERS = 500


@dataclass(frozen=True)
class Asked:
    """``answers`` are kept, and ``next`` is asked next; why it is not, ``trouble`` says."""

    answers: tuple[KeptAnswer, ...]
    next: int
    trouble: str = ""


class Asking:
    """Of one claim. ``pool`` asks, and ``wake`` is called from there when ``asked`` has changed.
    ``now`` and ``clock``: the time for people, and seconds that only grow."""

    def __init__(
        self,
        store: Store,
        flow: str,
        lane: str,
        poll: Poll,
        files: AnswerFiles,
        *,
        pool: ThreadPoolExecutor,
        wake: Callable[[], None],
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._flow = flow
        self._lane = lane
        self._poll = poll
        self._files = files
        self._pool = pool
        self._wake = wake
        self._now = now
        self._clock = clock
        self._lock = threading.Lock()
        self._version: Version | None = None
        self._polls: Polls | None = None
        self._busy = self._closed = False
        self._due = Item(-1, "", 0, 0)
        """What was asked last, and did not come to an end."""
        self._tries = 0
        self._rest_seconds = 0.0
        self._ask_at = 0.0
        self.asked: Asked | None = None
        """What is known; None before ZooKeeper was read."""

    def follow(self, lane: LaneLog) -> None:
        """Ask what is to be asked of the lane, which lies so now. Never waits."""
        with self._lock:
            if self._busy or self._closed or self._clock() < self._ask_at:
                return
            if self._polls is not None and _next_of(self._polls, lane) is None:
                return
            self._busy = True
        self._pool.submit(self._turn, lane)

    def close(self) -> None:
        """Nothing more is asked; what is under way is for whoever closes the poll."""
        with self._lock:
            self._closed = True

    def _turn(self, lane: LaneLog) -> None:
        trouble, rest = "", 0.0
        try:
            self._ask_next(lane)
            self._rest_seconds = 0.0
        except ConflictError:
            self._polls = None  # somebody else has asked: look what
        except Exception as error:  # one flow's, and no reason to ask for no other one either
            trouble = str(error) or type(error).__name__
            rest = min(self._rest_seconds * 2 or RETRY_SECONDS, RETRY_MOST_SECONDS)
            if not isinstance(error, FlumengError):
                log.exception("flow %s: a fault of its poller", self._flow)
        with self._lock:
            self._busy = False
            self._rest_seconds, self._ask_at = rest, self._clock() + rest
            if self._polls is not None:
                kept = tuple(answers.kept(self._polls))
                self.asked = Asked(kept, answers.following(self._polls), trouble)
            if self._closed:
                return
        self._wake()
        if rest:
            timer = threading.Timer(rest, self._wake)
            timer.daemon = True
            timer.start()

    def _ask_next(self, lane: LaneLog) -> None:
        if self._polls is None:
            found = self._store.read(paths.polls(self._flow))
            self._polls = found.value if found else Polls()
            self._version = found.version if found else None
        due = _next_of(self._polls, lane)
        if due is None:
            return
        if due != self._due:
            self._due, self._tries = due, 0
        kept = _unread(self._polls, lane)
        try:
            answer, state = self._answer(due)
        except (UserError, CorruptError) as error:
            self._tries += 1
            if self._tries < TRIES:
                raise
            log.warning("flow %s: %s is given up: %s", self._flow, due.location, error)
            nothing = KeptAnswer(due.number, due.modified_us, 0, "")
            self._write([*kept, nothing], self._polls.state, [self._failure(due, str(error))])
        else:
            self._write([*kept, answer], state, [])

    def _answer(self, due: Item) -> tuple[KeptAnswer, str]:
        """The whole of it, in its file, and the state that it leaves."""
        assert self._polls is not None
        moment = datetime.fromtimestamp(due.modified_us / 1e6, UTC)
        part = self._poll.ask(self._polls.state, moment)
        if not part.more and not len(part.bodies):
            return KeptAnswer(due.number, due.modified_us, 0, ""), _checked(part.state)
        with self._files.new(due.number) as file:
            file.append(part.bodies)
            while part.more and not self._closed:
                part = self._poll.ask(part.state, moment)
                file.append(part.bodies)
        if self._closed:
            raise UnavailableError("the poller was closed")
        name = file.name if file.rows else ""
        return KeptAnswer(due.number, due.modified_us, file.rows, name), _checked(part.state)

    def _write(self, kept: Sequence[KeptAnswer], state: str, also: Sequence[Write]) -> None:
        polls = answers.polls_of(kept, kept[-1].number + 1, state)
        put = Put(paths.polls(self._flow), polls, self._version or ABSENT)
        self._version, *_ = self._store.commit([put, *also])
        self._polls = polls

    def _failure(self, due: Item, why: str) -> Put:
        path = paths.queue_failure(self._flow, f"{self._lane}.{due.number}")
        record = QueueFailure(
            location=due.location,
            size=0,
            modified=due.modified_us,
            position=0,
            why=why[:WHY_CHARACTERS],
            time=self._now(),
        )
        return Put(path, record, ABSENT)


def _next_of(polls: Polls, lane: LaneLog) -> Item | None:
    """What is asked next; None when nothing is due, or too much is not in all sinks."""
    if not lane.items or len(_unread(polls, lane)) >= KEPT:
        return None
    number = max(answers.following(polls), lane.first)
    place = number - lane.first
    return lane.items[place] if place < len(lane.items) else None


def _unread(polls: Polls, lane: LaneLog) -> list[KeptAnswer]:
    """The answers that are not known to be in all sinks."""
    return [one for one in answers.kept(polls) if one.number >= lane.first]


def _checked(state: str) -> str:
    if len(state.encode()) > MOST_STATE_BYTES:
        raise UserError(
            f"the poll is to go on from {len(state.encode())} bytes, more than "
            f"{MOST_STATE_BYTES}: let it remember less"
        )
    return state
