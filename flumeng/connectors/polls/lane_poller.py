"""Polls for the due times of one lane in order, ahead of the readers. An answer is valid once its
file is synced and its name and the next state are committed to ZooKeeper in one transaction. The
transaction requires the version that was read, so that one of two pollers succeeds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from flumeng.connectors.objects.watcher import LaneLog
from flumeng.connectors.polls.answers import AnswerFiles, KeptAnswer, columns_of, kept
from flumeng.connectors.polls.poll import MOST_STATE_BYTES, Answer, Poll
from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.items import Item
from flumeng.control.snapshot.partitions import ack_path
from flumeng.control.zookeeper import ABSENT, Expected, Put, Store
from flumeng.platform.errors import ConflictError, CorruptError, FlumengError, UserError
from flumeng.platform.trouble_log import TroubleLog
from zkschema import paths
from zkschema.records import Polls, QueueFailure

log = logging.getLogger(__name__)

KEPT = 64
"""Polling pauses at this number of answers that are not in all sinks."""
FULL_SECONDS, FULL_MOST_SECONDS = 0.5, 8.0
FAILED = 100
"""At this number of failed due times, the next failure is retried until an operator acts."""
PART_SECONDS = 10.0
"""A long answer is stored in parts of this duration, which are not requested again."""
TRIES = 3
"""Attempts on a due time whose error is not transient."""
RETRY_SECONDS, RETRY_MOST_SECONDS = 1.0, 30.0
WHY_CHARACTERS = 500


@dataclass(frozen=True)
class LaneAnswers:
    """Stored answers of a lane. Offsets below ``safe`` are answered. ``trouble``: the last poll's
    error, or empty. ``elsewhere``: the answers' path, if it is no longer the configured one."""

    answers: tuple[KeptAnswer, ...]
    safe: int
    trouble: str = ""
    elsewhere: str = ""


class _RefusedError(Exception):
    """A permanent error of a poll; its cause is the reason."""


@dataclass(eq=False)
class LanePoller:
    """Poller of ``partition`` for one claim, with its queue's ``files``. ``failing_pool`` runs
    failing polls. ``wake`` is called when ``answered`` may have changed, and when a pause ends.
    ``clock``: monotonic seconds."""

    store: Store
    flow: str
    partition: str
    poll: Poll
    files: AnswerFiles
    pool: Executor
    failing_pool: Executor
    wake: Callable[[], None]
    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    part_seconds: float = PART_SECONDS

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: Expected = ABSENT
        self._polls: Polls | None = None
        self._busy = self._closed = False
        self._idle: LaneLog | None = None
        """The last log in which no due time was left to poll for."""
        self._refused: tuple[int, int] = (-1, 0)
        """Number of the last refused due time, and its refusals."""
        self._trouble, self._faults = "", TroubleLog(log)
        self._rest_seconds = 0.0
        self._ask_at = 0.0
        self.answered: LaneAnswers | None = None
        """None until ZooKeeper is read."""

    def follow(self, lane: LaneLog) -> None:
        """Start to poll for the next due time of ``lane``, its newest log, unless a poll runs, a
        pause lasts, or this log was read to its end. Never waits."""
        with self._lock:
            rests = self.clock() < self._ask_at or lane is self._idle
            if self._busy or self._closed or rests:
                return
            self._busy = True
            pool = self.failing_pool if self._trouble else self.pool
        pool.submit(self._turn, lane)

    def close(self) -> None:
        """Stop polling. The caller closes ``poll``."""
        with self._lock:
            self._closed = True

    def _turn(self, lane: LaneLog) -> None:
        trouble, rest, idle = "", 0.0, False
        try:
            if not self._closed:
                rest, idle = self._ask_next(lane)
                self._faults.end("flow %s: its poller works again", self.flow)
        except ConflictError:
            self._polls = None  # another owner has written: read again
            rest = RETRY_SECONDS
        except Exception as error:  # an error of one flow must not stop the others
            trouble = str(error.__cause__ if isinstance(error, _RefusedError) else error)
            trouble = trouble or type(error).__name__
            rest = self._longer(RETRY_SECONDS, RETRY_MOST_SECONDS)
            if not isinstance(error, FlumengError | _RefusedError):
                text = "flow %s: unexpected error in its poller, retrying: %s"
                self._faults.log(logging.ERROR, text, self.flow, trouble, cause=error)
        with self._lock:
            self._busy = False
            self._trouble, self._rest_seconds = trouble, rest
            self._ask_at = self.clock() + rest
            self._idle = lane if idle else None
            self._report(trouble)
            if self._closed:
                return
        self.wake()
        if rest:
            timer = threading.Timer(rest, self.wake)
            timer.daemon = True
            timer.start()

    def _longer(self, least: float, most: float) -> float:
        return min(max(self._rest_seconds * 2, least), most)

    def _report(self, trouble: str) -> None:
        polls = self._polls
        if polls is not None:
            safe = items.offset_of(polls.next, polls.part)
            answers = tuple(kept(polls))
            elsewhere = polls.path if answers and polls.path != self.files.path else ""
            self.answered = LaneAnswers(answers, safe, trouble, elsewhere)
        elif trouble and self.answered is not None:
            self.answered = replace(self.answered, trouble=trouble)

    def _ask_next(self, lane: LaneLog) -> tuple[float, bool]:
        """Poll at most once. Returns seconds until the next poll, and whether all is polled."""
        polls = self._polls or self._read()
        ack = self.store.read(ack_path(self.flow, self.partition))
        acked = ack.value.offset if ack else 0
        number = max(polls.next, items.number_of(acked))
        due = next((item for item in lane.items if item.number == number), None)
        if due is None:
            return 0.0, True
        answers = [answer for answer in kept(polls) if answer.end > acked]
        if len(answers) >= KEPT:
            return self._longer(FULL_SECONDS, FULL_MOST_SECONDS), False
        if answers and polls.path != self.files.path:
            remain = f"unread answers remain at {polls.path}"
            raise UserError(f"{remain}: restore `answers.path` until they are read")
        after = replace(polls, path=self.files.path)
        position = polls.part if number == polls.next else 0
        failures = []
        try:
            answer, more, state = self._answer(due, position, polls.state)
        except _RefusedError as refused:
            why = str(refused.__cause__)
            self._count_refusal(number, refused)
            args = self.flow, due.location, why
            log.warning("flow %s: the poll due at %s failed until `flumeng queue retry`: %s", *args)
            after = replace(after, next=number + 1, part=0)
            failures.append(self._failure(due, position, why))
        else:
            answers += [answer] if answer.rows else []
            following = (number, position + answer.rows) if more else (number + 1, 0)
            after = replace(after, next=following[0], part=following[1], state=state)
        after = replace(after, **columns_of(answers))
        put = Put(paths.polls(self.flow), after, self._expected)
        self._expected, *_ = self.store.commit([put, *failures])
        self._polls = after
        return 0.0, False

    def _count_refusal(self, number: int, refused: _RefusedError) -> None:
        """Count a refusal. Raises ``refused`` for a retry, UserError when too many failures wait
        for an operator."""
        before, tries = self._refused
        tries = tries + 1 if before == number else 1
        self._refused = number, tries
        if tries < TRIES:
            raise refused
        failed = len(self.store.children(paths.queue_failures(self.flow)))
        if failed >= FAILED:
            raise UserError(
                f"{refused.__cause__}; {failed} due times have failed, and polls stop there: "
                f"`flumeng queue retry {self.flow} --all` or `flumeng queue skip {self.flow} "
                "--all`"
            ) from refused

    def _read(self) -> Polls:
        """Read this queue's state; ignores the record of another queue of the flow."""
        polls = Polls(queue=self.files.queue, path=self.files.path)
        record = self.store.read(paths.polls(self.flow))
        if record is not None and record.value.queue == polls.queue:
            polls = record.value
            kept(polls)  # raises when it is damaged
        self._expected = record.version if record else ABSENT
        self._polls = polls
        return polls

    def _answer(self, due: Item, position: int, state: str) -> tuple[KeptAnswer, bool, str]:
        """Return the stored part of the answer, whether more follows, and the next state."""
        moment = datetime.fromtimestamp(due.modified_us / 1e6, UTC)
        until = self.clock() + self.part_seconds
        part = self._ask(state, moment)
        if not len(part.bodies):
            nothing = KeptAnswer(due.number, due.modified_us, position, 0, "")
            return nothing, part.more, part.state
        with self.files.new(due.number) as file:
            file.append(part.bodies)
            while part.more and self.clock() < until and not self._closed:
                try:
                    part = self._ask(part.state, moment)
                except (FlumengError, _RefusedError):
                    break  # keep the finished part; the next turn raises the error
                file.append(part.bodies)
        answer = KeptAnswer(due.number, due.modified_us, position, file.rows, file.name)
        return answer, part.more, part.state

    def _ask(self, state: str, due: datetime) -> Answer:
        try:
            answer = self.poll.ask(state, due)
            size = len(answer.state.encode())
            if size > MOST_STATE_BYTES:
                raise UserError(
                    f"the state of the poll has {size} bytes, more than {MOST_STATE_BYTES}: let "
                    "the poll remember less"
                )
        except (UserError, CorruptError) as error:
            raise _RefusedError from error
        return answer

    def _failure(self, due: Item, position: int, why: str) -> Put:
        lane = queues.lane_of(self.partition)
        assert lane is not None, self.partition
        record = QueueFailure(
            location=due.location,
            size=0,
            modified=due.modified_us,
            position=position,
            why=why[:WHY_CHARACTERS],
            time=self.now(),
        )
        return Put(paths.queue_failure(self.flow, f"{lane[0]}.{due.number}"), record, ABSENT)
