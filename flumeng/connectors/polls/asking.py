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
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from flumeng.connectors.objects.watcher import LaneLog
from flumeng.connectors.polls import answers
from flumeng.connectors.polls.answer_files import AnswerFiles
from flumeng.connectors.polls.answers import KeptAnswer
from flumeng.connectors.polls.poll import MOST_STATE_BYTES, Answer, Poll
from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.items import Item
from flumeng.control.snapshot.partitions import ack_path
from flumeng.control.zookeeper import ABSENT, Expected, Put, Store, Write
from flumeng.platform.errors import ConflictError, CorruptError, FlumengError, UserError
from zkschema import paths
from zkschema.records import Polls, QueueFailure

log = logging.getLogger(__name__)

KEPT = 64
"""So many files of answers are kept that are not in all sinks; then nothing is asked."""
FULL_SECONDS, FULL_MOST_SECONDS = 0.5, 8.0
"""How soon to look again whether something of it is."""
FAILED = 100
"""So many due times that have failed wait for an operator; then one is asked until it is answered.
"""
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
    ``trouble`` says. ``elsewhere``: the answers lie at this path, and not where they are looked
    for."""

    answers: tuple[KeptAnswer, ...]
    safe: int
    trouble: str = ""
    elsewhere: str = ""


@dataclass(frozen=True)
class Pools:
    """``asks`` is for polls that were answered last, ``failing`` for all others."""

    asks: Executor
    failing: Executor


class _RefusedError(Exception):
    """What is asked cannot be answered, however often; the cause says why."""


class Asking:
    """Of one claim of ``partition``, which is a lane of ``queue``. ``wake`` is called from a thread
    of ``pools`` when ``asked`` has changed. ``now`` and ``clock``: the time for people, and seconds
    that only grow."""

    def __init__(
        self,
        store: Store,
        flow: str,
        partition: str,
        poll: Poll,
        files: AnswerFiles,
        *,
        pools: Pools,
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
        self._pools = pools
        self._wake = wake
        self._now = now
        self._clock = clock
        self._part_seconds = part_seconds
        self._lock = threading.Lock()
        self._expected: Expected = ABSENT
        self._polls: Polls | None = None
        self._busy = self._closed = False
        self._idle: LaneLog | None = None
        """A lane in which nothing is to be asked."""
        self._refused: tuple[int, int] = (-1, 0)
        """The due time that was refused last, and how often."""
        self._trouble = ""
        self._rest_seconds = 0.0
        self._ask_at = 0.0
        self.asked: Asked | None = None
        """What is known; None before ZooKeeper was read."""

    def follow(self, lane: LaneLog) -> None:
        """Ask what is to be asked of the lane, which lies so now. Never waits."""
        with self._lock:
            rests = self._clock() < self._ask_at or lane is self._idle
            if self._busy or self._closed or rests:
                return
            self._busy = True
            pool = self._pools.failing if self._trouble else self._pools.asks
        pool.submit(self._turn, lane)

    def close(self) -> None:
        """Nothing more is asked; what is under way is for whoever closes the poll."""
        with self._lock:
            self._closed = True

    def _turn(self, lane: LaneLog) -> None:
        trouble, rest, idle = "", 0.0, False
        try:
            if not self._closed:
                rest, idle = self._ask_next(lane)
        except ConflictError:
            self._polls = None  # somebody else has asked: look what
            rest = RETRY_SECONDS
        except Exception as error:  # one flow's, and no reason to ask for no other one either
            trouble = str(error.__cause__ if isinstance(error, _RefusedError) else error)
            trouble = trouble or type(error).__name__
            rest = self._longer(RETRY_SECONDS, RETRY_MOST_SECONDS)
            if not isinstance(error, FlumengError | _RefusedError):
                log.exception("flow %s: a fault of its poller", self._flow)
        with self._lock:
            self._busy = False
            self._trouble, self._rest_seconds = trouble, rest
            self._ask_at = self._clock() + rest
            self._idle = lane if idle else None
            self._tell(trouble)
            if self._closed:
                return
        self._wake()
        if rest:
            timer = threading.Timer(rest, self._wake)
            timer.daemon = True
            timer.start()

    def _longer(self, least: float, most: float) -> float:
        return min(max(self._rest_seconds * 2, least), most)

    def _tell(self, trouble: str) -> None:
        polls = self._polls
        if polls is not None:
            safe = items.offset_of(polls.next, polls.part)
            kept = tuple(answers.kept(polls))
            elsewhere = polls.path if kept and polls.path != self._files.path else ""
            self.asked = Asked(kept, safe, trouble, elsewhere)
        elif trouble and self.asked is not None:
            self.asked = replace(self.asked, trouble=trouble)

    def _ask_next(self, lane: LaneLog) -> tuple[float, bool]:
        """How long to rest before the next one, and whether there is none in this lane."""
        polls, acked = self._polls or self._read(), self._acked()
        number = max(polls.next, items.number_of(acked))
        due = next((one for one in lane.items if one.number == number), None)
        if due is None:
            return 0.0, True
        kept = [one for one in answers.kept(polls) if one.end > acked]
        if len(kept) >= KEPT:
            return self._longer(FULL_SECONDS, FULL_MOST_SECONDS), False
        if kept and polls.path != self._files.path:
            raise UserError(f"answers that were not read yet lie at {polls.path}")
        after = replace(polls, path=self._files.path)
        position = polls.part if number == polls.next else 0
        try:
            answer, more, state = self._answer(due, position, polls.state)
        except _RefusedError as refused:
            why = str(refused.__cause__)
            self._count_refusal(number, refused)
            log.warning("flow %s: %s is given up: %s", self._flow, due.location, why)
            after = replace(after, next=number + 1, part=0, **answers.columns_of(kept))
            self._write(after, [self._failure(due, position, why)])
            return 0.0, False
        kept += [answer] if answer.rows else []
        place = (number, position + answer.rows) if more else (number + 1, 0)
        after = replace(after, next=place[0], part=place[1], state=state)
        self._write(replace(after, **answers.columns_of(kept)), [])
        return 0.0, False

    def _count_refusal(self, number: int, refused: _RefusedError) -> None:
        """Raises ``refused`` when it is to be tried again, and when too many have failed that
        nobody has looked after: a schedule has no end."""
        before, tries = self._refused
        tries = tries + 1 if before == number else 1
        self._refused = number, tries
        if tries < TRIES:
            raise refused
        failed = len(self._store.children(paths.queue_failures(self._flow)))
        if failed >= FAILED:
            raise UserError(
                f"{refused.__cause__}; {failed} due times have failed, and no more are set aside: "
                f"`flumeng queue retry {self._flow} --all` or `flumeng queue skip {self._flow} "
                "--all`"
            ) from refused

    def _read(self) -> Polls:
        """What another queue of the flow has left there counts for nothing."""
        polls = Polls(queue=self._files.queue, path=self._files.path)
        found = self._store.read(paths.polls(self._flow))
        if found is not None and found.value.queue == polls.queue:
            polls = found.value
            answers.kept(polls)  # or it is damaged
        self._expected = found.version if found else ABSENT
        self._polls = polls
        return polls

    def _acked(self) -> int:
        found = self._store.read(ack_path(self._flow, self._partition))
        return found.value.offset if found else 0

    def _answer(self, due: Item, position: int, state: str) -> tuple[KeptAnswer, bool, str]:
        """What lies in its file, whether there is more of it, and the state that it leaves."""
        moment = datetime.fromtimestamp(due.modified_us / 1e6, UTC)
        until = self._clock() + self._part_seconds
        part = self._ask(state, moment)
        if not len(part.bodies):
            nothing = KeptAnswer(due.number, due.modified_us, position, 0, "")
            return nothing, part.more, part.state
        with self._files.new(due.number) as file:
            file.append(part.bodies)
            while part.more and self._clock() < until and not self._closed:
                try:
                    part = self._ask(part.state, moment)
                except (FlumengError, _RefusedError):
                    break  # what is there is kept first; then it is asked again, and raised
                file.append(part.bodies)
        answer = KeptAnswer(due.number, due.modified_us, position, file.rows, file.name)
        return answer, part.more, part.state

    def _ask(self, state: str, due: datetime) -> Answer:
        try:
            answer = self._poll.ask(state, due)
            _check(answer.state)
        except (UserError, CorruptError) as error:
            raise _RefusedError from error
        return answer

    def _write(self, polls: Polls, also: Sequence[Write]) -> None:
        put = Put(paths.polls(self._flow), polls, self._expected)
        self._expected, *_ = self._store.commit([put, *also])
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


def _check(state: str) -> None:
    if len(state.encode()) > MOST_STATE_BYTES:
        raise UserError(
            f"the poll is to go on from {len(state.encode())} bytes, more than "
            f"{MOST_STATE_BYTES}: let it remember less"
        )
