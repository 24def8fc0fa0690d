"""When a poller asks: the options that all of them share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from cronsim import CronSim, CronSimError

from flumeng.spec.option import option
from flumeng.spec.patterns import check_timezone

CatchUp = Literal["last", "all", "none"]
MISSED_SECONDS = 60.0
"""So late may a due time be asked with ``catch_up: none``."""


def check_schedule(text: str) -> None:
    """Raises ValueError, also for one that is never due."""
    try:
        next(CronSim(text, datetime(2000, 1, 1, tzinfo=UTC)), None)
    except CronSimError as error:
        raise ValueError(
            'expected the five fields of a cron expression, like "*/5 * * * *", or six with the '
            f"seconds in front: {error}"
        ) from None
    except StopIteration:
        raise ValueError("this is never due") from None


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """What sources have in common that are asked at due times."""

    schedule: str | None = option(
        doc="When to ask: a cron expression of five fields, or of six with the seconds in front. "
        "At changes of the clock it is due as in Debian's cron.",
        check=check_schedule,
        example='"*/5 * * * *"',
        default=None,
    )
    every_seconds: float | None = option(
        doc="How often to ask, instead of a schedule.",
        unit="seconds",
        minimum=1,
        maximum=31_536_000,
        default=None,
    )
    time_zone: str = option(
        doc="In whose time the schedule is.",
        check=check_timezone,
        example="Europe/Berlin",
        default="UTC",
    )
    jitter_seconds: float = option(
        doc="To ask up to so much later, by the flow's name: always as much for one flow, and more "
        "or less for others that have the same schedule.",
        unit="seconds",
        minimum=0,
        maximum=86_400,
        default=0.0,
    )
    catch_up: CatchUp = option(
        doc="What is asked of due times that have passed, since nobody was there or the one before "
        "took so long: `all` of them, the `last` one, or `none` if that is over a minute ago too.",
        default="last",
    )

    @property
    def discovery_seconds(self) -> float:
        """How often to look whether it is due, at least."""
        return 1.0

    @property
    def weighed(self) -> bool:
        """Offsets of its lane are rows of answers."""
        return True

    def schedule_problems(self) -> Iterator[tuple[str, str]]:
        if (self.schedule is None) == (self.every_seconds is None):
            yield "schedule", "expected either schedule or every_seconds"
        if self.schedule is None and self.time_zone != "UTC":
            yield "time_zone", "needs a schedule"
