"""Options of all polling sources: schedule, and the place of stored answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import ClassVar, Literal, Protocol
from zlib import crc32
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from flumeng.config.component import Placing, SourceOptions
from flumeng.platform.options.locations import (
    Credentials,
    check_location,
    credential_problem,
    located,
    own_path,
    shared_option,
)
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import check_timezone

CatchUp = Literal["last", "all", "none"]


def check_cron(text: str) -> None:
    try:
        next(CronSim(text, datetime(2000, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        raise ValueError(
            'expected a cron expression of five fields, like "*/5 * * * *", or of six with the '
            f"seconds in front: {error}"
        ) from None
    except StopIteration:
        raise ValueError("expected a cron expression that is due at some time") from None


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When a source polls. Each due time is polled once in the cluster, by any process."""

    cron: str | None = option(
        doc="A cron expression of five fields, or of six with the seconds in front. Where clocks "
        "are changed it is due as in Debian's cron: times in a skipped hour are due after it, and "
        "nothing is due twice in a repeated hour, unless its hour is `*`.",
        check=check_cron,
        example='"*/5 * * * *"',
        default=None,
    )
    every_seconds: float | None = option(
        doc="An interval instead, counted from 1970 on: each whole minute with 60.",
        between=(1, 31_536_000),
        default=None,
    )
    time_zone: str = option(
        doc="The time zone of the cron expression.",
        check=check_timezone,
        example="Europe/Berlin",
        default="UTC",
    )
    jitter_seconds: float = option(
        doc="The largest delay of due times: constant for one flow, and different for others with "
        "the same schedule.",
        between=(0, 86_400),
        default=0.0,
    )
    catch_up: CatchUp = option(
        doc="The due times to poll for when some were missed, without a poller or during a slow "
        "poll: `all` of them, the `last` one, or `none` that is over a minute old.",
        default="last",
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if (self.cron is None) == (self.every_seconds is None):
            yield "cron", "expected either cron or every_seconds"
        if self.cron is None and self.time_zone != "UTC":
            yield "time_zone", "needs a cron expression"

    def due_after(self, moment: datetime, flow: str) -> Iterator[datetime]:
        """Due times after ``moment``, sorted, in UTC; infinite unless the cron expression ends."""
        late = self._late(flow)
        moments = self._moments(moment - late, back=False)
        return (due + late for due in moments if due + late > moment)

    def last_due(self, moment: datetime, flow: str) -> datetime | None:
        """The flow's last due time at or before ``moment``."""
        late = self._late(flow)
        moments = self._moments(moment - late + timedelta(seconds=1), back=True)
        return next((due + late for due in moments if due + late <= moment), None)

    def _late(self, flow: str) -> timedelta:
        return timedelta(seconds=self.jitter_seconds * crc32(flow.encode()) / 2**32)

    def _moments(self, moment: datetime, *, back: bool) -> Iterator[datetime]:
        if self.cron is not None:
            local = moment.astimezone(ZoneInfo(self.time_zone))
            yield from (due.astimezone(UTC) for due in CronSim(self.cron, local, reverse=back))
            return
        assert self.every_seconds is not None
        first = math.floor(moment.timestamp() / self.every_seconds)
        for number in count(first, -1 if back else 1):
            yield datetime.fromtimestamp(number * self.every_seconds, UTC)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Where answers are stored until they are in all sinks. So an answer stays the same, whichever
    process goes on with it."""

    path: str = option(
        doc="A directory, or a part of a bucket, visible to all hosts that may collect the flow.",
        check=check_location,
        example="s3a://logs-polls/tickets",
    )
    shared: bool = shared_option()
    credentials: Credentials | None = option(
        doc="Credentials for the store; by default those of the environment.", default=None
    )

    @property
    def location(self) -> str:
        return located(self.path, self.credentials)

    @property
    def local_path(self) -> str:
        """The path when it differs by host, else empty."""
        return own_path(self.path, shared=self.shared)

    def problems(self) -> Iterator[tuple[str, str]]:
        if problem := credential_problem(self.path, self.credentials):
            yield "credentials", problem


class KeepsAnswers(SourceOptions):
    """Base of sources with optional ``answers``."""

    implementation: ClassVar[str] = "flumeng.connectors.polls.finder:ScheduleFinder"
    finder: ClassVar[str] = "flumeng.connectors.polls.finder:ScheduleFinder"

    answers: Answers | None

    @property
    def placing(self) -> Placing:
        return "partitioned"

    @property
    def queued(self) -> bool:
        return self.placing == "partitioned"

    @property
    def weighed(self) -> bool:
        """Whether answers are stored; then the lane's offsets combine due times and rows."""
        return self.answers is not None

    @property
    def local_path(self) -> str:
        return "" if self.answers is None else self.answers.local_path


class Poller(Protocol):
    @property
    def schedule(self) -> Schedule: ...

    @property
    def answers(self) -> Answers: ...


def schedule_option() -> Schedule:
    schedule: Schedule = option(doc="When to poll.", example="{every_seconds: 60}")
    return schedule


def answers_option() -> Answers:
    answers: Answers = option(
        doc="Where answers are stored until they are in all sinks.",
        example='{path: "s3a://logs-polls/tickets"}',
    )
    return answers
