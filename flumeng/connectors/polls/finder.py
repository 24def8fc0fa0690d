"""Schedule finder: appends due times to the flow's queue, in one transaction with the last one
checked. So each due time becomes one item, or is skipped by the schedule's ``catch_up``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile

from flumeng.connectors.api.finding import Before, Bounds, Findings, FindingTask, Offer
from flumeng.connectors.objects.lanes import LaneState
from flumeng.connectors.objects.queue_log import QueueLog
from flumeng.connectors.polls.answers import AnswerFiles
from flumeng.connectors.polls.options import Poller
from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.items import Item
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import FlumengError, UserError
from zkschema import paths

LANE = "0"
CHECKED = "schedule"
"""Name under which the queue log stores the last due time that was checked."""
AHEAD_ITEMS = 1000
"""Maximum number of waiting due times."""
LATE_SECONDS = 60.0
"""``catch_up: none`` skips due times of this age."""
EARLY = timedelta(seconds=60)
"""Tolerated clock skew between hosts."""
REST_SECONDS = 30.0
UNANSWERED_SECONDS = 0.5
"""First pause between searches while later due times wait for one without an answer."""


class ScheduleFinder:
    """``Finder`` of a schedule's queue. ``now``: the current time in UTC."""

    def __init__(
        self,
        poller: Poller,
        store: Store,
        task: FindingTask,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._schedule = poller.schedule
        self._location = poller.answers.location
        self._store = store
        self._task = task
        self._now = now
        self._log: QueueLog | None = None
        self._checked: datetime | None = None
        self._rest_seconds = UNANSWERED_SECONDS

    @classmethod
    def of(cls, options: Poller, store: Store, task: FindingTask) -> ScheduleFinder:
        return cls(options, store, task)

    def find(self, before: Before) -> Findings:
        """Append due times, and remove those in all sinks with their answers. Raises ConflictError
        when another owner writes the queue."""
        del before
        try:
            log = self._taken()
            log.read_acks()
            self._clear(log)
            log.decide(log.failures())
            early = self._early()
            if resets := early and self._schedule.catch_up != "all":
                self._write(log, [], self._now())
            waits = self._append(log)
        except FlumengError:
            self._log = None
            raise
        again = min(self._rest_seconds, REST_SECONDS)
        self._rest_seconds = again * 2 if waits else UNANSWERED_SECONDS
        return Findings(
            {name: Offer() for name in log.partitions},
            ("schedule",),
            due_seconds=again if waits else self._until_due(),
            notes=early if resets else (),
            troubles=() if resets else early,
        )

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        lane = self._lane()
        floor = lane.segments[0][0].start if lane.segments else items.offset_of(lane.next)
        return dict.fromkeys(partitions, Bounds(floor, items.offset_of(lane.next)))

    def offsets(self, partitions: Collection[str], to: str) -> dict[str, int]:
        if to != "latest":
            raise UserError(
                "answers are removed when they are in all sinks, so a poll can be read from latest "
                "only; to poll for everything again, use another flow"
            )
        return {name: bounds.safe for name, bounds in self.bounds(partitions).items()}

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        kept = [item for part in list(self._lane().segments) for item in part]
        moments = {}
        for name, offset in at.items():
            number = items.number_of(offset)
            if due := next((item for item in kept if item.number >= number), None):
                moments[name] = due.modified_us
        return moments

    def finished(self) -> None:
        """Do nothing: a schedule has no end."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _lane(self) -> LaneState:
        return self._log.lanes[LANE] if self._log else LaneState()

    def _taken(self) -> QueueLog:
        if self._log is None:
            task = self._task
            log = QueueLog.take(self._store, task.flow, task.epoch, 1, queues.SCHEDULE)
            seen = log.seen().get(CHECKED)
            self._checked = datetime.fromisoformat(seen.decode()) if seen else None
            self._log = log
        return self._log

    def _clear(self, log: QueueLog) -> None:
        lane = log.lanes[LANE]
        if done := lane.done():
            files = AnswerFiles(self._location, self._task.flow, log.id)
            files.remove_below(lane.acked)
            log.remove({LANE: done})

    def _append(self, log: QueueLog) -> bool:
        """Append due times. Returns whether one has to wait for answers to earlier ones."""
        now = self._now()
        if self._checked is None:
            # A cron expression starts at its next due time, a flow without one at once.
            self._write(log, [], now - timedelta(seconds=self._schedule.every_seconds or 0))
        last = self._schedule.last_due(now, self._task.flow)
        assert self._checked is not None, "it was written just now"
        if last is None or last <= self._checked:
            return False
        if self._schedule.catch_up == "all":
            room = max(0, AHEAD_ITEMS - log.kept_items)
            following = self._schedule.due_after(self._checked, self._task.flow)
            due = list(islice(takewhile(lambda moment: moment <= now, following), room))
            if due:
                self._write(log, due, due[-1])
            return due[-1:] != [last]
        if not self._is_answered(log):
            return True
        late = now - last > timedelta(seconds=LATE_SECONDS)
        self._write(log, [] if late and self._schedule.catch_up == "none" else [last], last)
        return False

    def _early(self) -> tuple[str, ...]:
        """Return a warning while the last checked due time is in the future, as a clock was ahead.
        Due times are polled again, except with ``catch_up: all``."""
        if self._checked is None or self._checked - self._now() <= EARLY:
            return ()
        until = self._checked.isoformat()
        waits = self._schedule.catch_up == "all"
        then = "no poll is due before that time" if waits else "polls are due from now on again"
        return (f"due times until {until} were polled by a clock that was ahead: {then}",)

    def _write(self, log: QueueLog, due: Sequence[datetime], checked: datetime) -> None:
        number = log.lanes[LANE].next
        if number + len(due) > items.FULL_ITEMS:
            why = f"flow {self._task.flow} has had {number:,} polls, the most that a flow may have"
            raise UserError(f"{why}: delete it, and apply it under another name")
        new = [
            Item(number + n, f"due {moment.isoformat()}", 0, round(moment.timestamp() * 1_000_000))
            for n, moment in enumerate(due)
        ]
        log.append({LANE: new} if new else {}, {CHECKED: checked.isoformat().encode()})
        self._checked = checked

    def _is_answered(self, log: QueueLog) -> bool:
        lane = log.lanes[LANE]
        polls = self._store.read(paths.polls(self._task.flow))
        return max(polls.value.next if polls else 0, lane.acked) >= lane.next

    def _until_due(self) -> float:
        now = self._now()
        following = next(self._schedule.due_after(now, self._task.flow), None)
        if following is None:
            return REST_SECONDS
        return min(REST_SECONDS, max(0.0, (following - now).total_seconds()))
