"""The due times of one lane as they are asked: one after the other, ahead of what is read.

An answer, or a part of a long one, is kept when its file lasts and ZooKeeper has the file's name
and the state that it leaves, in one transaction under the version that was read. So of two who ask
the same due time one has asked it, and the other's answer never was; and what follows is asked from
the state that was kept. Who may not go on is told by that version alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime

from flumeng.errors import (
    ConflictError,
    CorruptError,
    FlumengError,
    UserError,
)
from flumeng.inputs.objects.watcher import LaneLog
from flumeng.inputs.polls import answers
from flumeng.inputs.polls.answer_files import AnswerFiles
from flumeng.inputs.polls.answers import KeptAnswer
from flumeng.inputs.polls.poll import MOST_STATE_BYTES, Poll
from flumeng.state import items, queues
from flumeng.state.items import Item
from flumeng.state.partitions import ack_path
from flumeng.store import ABSENT, Put, Store, Version, Write
from zkschema import paths
from zkschema.records import Polls, QueueFailure

log = logging.getLogger(__name__)

KEPT = 64
"""So many files of answers are kept that are not in all sinks; then nothing is asked."""
FULL_SECONDS = 0.5
"""How soon to look again whether something of it is."""
PART_SECONDS = 10.0
"""A long answer is kept in parts that took about so long to get: no more of it is asked again when
that is interrupted."""
TRIES = 3
"""So often a due time is asked that would not be answered otherwise the next time."""
RETRY_SECONDS = 1.0
RETRY_MOST_SECONDS = 30.0
WHY_CHARACTERS = 500


@dataclass(frozen=True)
class Asked:
    """``answers`` are kept, and all below the offset ``safe`` is answered; why it does not go on,
    ``trouble`` says."""

    answers: tuple[KeptAnswer, ...]
    safe: int
    trouble: str = ""


class Asking:
    """Of one claim of ``partition``. ``pool`` asks, and ``wake`` is called from there when
    ``asked`` has changed. ``now`` and ``clock``: the time for people, and seconds that only grow.
    """

    def __init__(
        self,
        store: Store,
        flow: str,
        partition: str,
        poll: Poll,
        files: AnswerFiles,
        *,
        pool: Executor,
        wake: Callable[[], None],
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        part_seconds: float = PART_SECONDS,
    ) -> None:
        self._store = store
        self._flow = flow
        self._partition = partition
        self._poll = poll
        self._files = files
        self._pool = pool
        self._wake = wake
        self._now = now
        self._clock = clock
        self._part_seconds = part_seconds
        self._lock = threading.Lock()
        self._version: Version | None = None
        self._polls: Polls | None = None
        self._busy = self._closed = False
        self._failing: tuple[int, int] = (-1, 0)
        """The due time that was not answered last, and how often."""
        self._rest_seconds = 0.0
        self._ask_at = 0.0
        self.asked: Asked | None = None
        """What is known; None before ZooKeeper was read."""

    def follow(self, lane: LaneLog) -> None:
        """Ask what is to be asked of the lane, which lies so now. Never waits."""
        with self._lock:
            if self._busy or self._closed or self._clock() < self._ask_at:
                return
            if self._polls is not None and self._polls.next >= lane.next:
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
            rest = 0.0 if self._ask_next(lane) else FULL_SECONDS
        except ConflictError:
            self._polls = None  # somebody else has asked: look what
        except Exception as error:  # one flow's, and no reason to ask for no other one either
            trouble = str(error) or type(error).__name__
            rest = min(self._rest_seconds * 2 or RETRY_SECONDS, RETRY_MOST_SECONDS)
            if not isinstance(error, FlumengError):
                log.exception("flow %s: a fault of its poller", self._flow)
        with self._lock:
            self._busy = False
            self._rest_seconds = rest if trouble else 0.0
            self._ask_at = self._clock() + rest
            if self._polls is not None:
                safe = items.offset_of(self._polls.next, self._polls.part)
                self.asked = Asked(tuple(answers.kept(self._polls)), safe, trouble)
            if self._closed:
                return
        self._wake()
        if rest:
            timer = threading.Timer(rest, self._wake)
            timer.daemon = True
            timer.start()

    def _ask_next(self, lane: LaneLog) -> bool:
        """False when so much is not in all sinks that nothing is asked."""
        if self._polls is None:
            found = self._store.read(paths.polls(self._flow))
            self._polls = found.value if found else Polls()
            self._version = found.version if found else None
        polls, acked = self._polls, self._acked()
        number = max(polls.next, items.number_of(acked))
        due = next((one for one in lane.items if one.number == number), None)
        if due is None:
            return True
        kept = [one for one in answers.kept(polls) if one.end > acked]
        if len(kept) >= KEPT:
            return False
        part = polls.part if number == polls.next else 0
        try:
            answer, more, state = self._answer(due, part, polls.state)
        except (UserError, CorruptError) as error:
            tries = self._failing[1] + 1 if self._failing[0] == number else 1
            self._failing = number, tries
            if tries < TRIES:
                raise
            log.warning("flow %s: %s is given up: %s", self._flow, due.location, error)
            failure = self._failure(due, part, str(error))
            self._write(answers.polls_of(kept, number + 1, 0, polls.state), [failure])
            return True
        kept += [answer] if answer.rows else []
        after = (number, part + answer.rows) if more else (number + 1, 0)
        self._write(answers.polls_of(kept, *after, state), [])
        return True

    def _acked(self) -> int:
        found = self._store.read(ack_path(self._flow, self._partition))
        return found.value.offset if found else 0

    def _answer(self, due: Item, position: int, state: str) -> tuple[KeptAnswer, bool, str]:
        """What lies in its file, whether there is more of it, and the state that it leaves."""
        moment = datetime.fromtimestamp(due.modified_us / 1e6, UTC)
        until = self._clock() + self._part_seconds
        part = self._poll.ask(state, moment)
        if not len(part.bodies):
            nothing = KeptAnswer(due.number, due.modified_us, position, 0, "")
            return nothing, part.more, _checked(part.state)
        with self._files.new(due.number) as file:
            file.append(part.bodies)
            while part.more and self._clock() < until and not self._closed:
                part = self._poll.ask(part.state, moment)
                file.append(part.bodies)
        answer = KeptAnswer(due.number, due.modified_us, position, file.rows, file.name)
        return answer, part.more, _checked(part.state)

    def _write(self, polls: Polls, also: Sequence[Write]) -> None:
        put = Put(paths.polls(self._flow), polls, self._version or ABSENT)
        self._version, *_ = self._store.commit([put, *also])
        self._polls = polls

    def _failure(self, due: Item, position: int, why: str) -> Put:
        lane = queues.lane_of(self._partition)
        assert lane is not None, self._partition
        record = QueueFailure(
            location=due.location,
            size=0,
            modified=due.modified_us,
            position=position,
            why=why[:WHY_CHARACTERS],
            time=self._now(),
        )
        return Put(paths.queue_failure(self._flow, f"{lane[0]}.{due.number}"), record, ABSENT)


def _checked(state: str) -> str:
    if len(state.encode()) > MOST_STATE_BYTES:
        raise UserError(
            f"the poll is to go on from {len(state.encode())} bytes, more than "
            f"{MOST_STATE_BYTES}: let it remember less"
        )
    return state
