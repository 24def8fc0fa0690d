"""What ``Waves`` is told, and what it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True)
class Tick:
    """The push begins, or a window may have opened."""


@dataclass(frozen=True)
class StopAsked:
    """No site is begun, or reverted, any more."""


@dataclass(frozen=True)
class Applied:
    """All of the site's transactions are written."""

    site: str


@dataclass(frozen=True)
class Settled:
    """The site runs what it got, and is no worse than before."""

    site: str


@dataclass(frozen=True)
class Done:
    """The site was no worse than before for its soak time."""

    site: str


@dataclass(frozen=True)
class Failed:
    """The site could not be reached or written, or is worse than before. ``touched``: something of
    this push is in it, or may be."""

    site: str
    why: str
    touched: bool


@dataclass(frozen=True)
class Reverted:
    """The site has again what it had before this push."""

    site: str


@dataclass(frozen=True)
class RevertFailed:
    site: str
    why: str


SiteEvent = Applied | Settled | Done | Failed | Reverted | RevertFailed
Event = Tick | StopAsked | SiteEvent


class State(StrEnum):
    """What a site is at."""

    PENDING = "pending"
    SKIPPED = "nothing to do"
    WRITING = "writing"
    SETTLING = "settling"
    SOAKING = "soaking"
    DONE = "done"
    FAILED = "failed"
    REVERTING = "reverting"
    REVERTED = "reverted"
    NOT_REVERTED = "not reverted"


class Ending(StrEnum):
    """How a wave, or the push, ended."""

    DONE = "done"
    DONE_WITH_FAILURES = "done with failures"
    FAILED = "failed"
    ROLLED_BACK = "rolled back"
    STOPPED = "stopped"
    WAITING = "waiting for a window"


@dataclass(frozen=True)
class Step:
    """One event of a site, and what it changed."""

    number: int
    site: str
    event: str
    before: State
    after: State
    why: str = ""

    def __str__(self) -> str:
        moved = f"{self.site}: {self.before} -> {self.after}"
        return f"{moved} ({self.why})" if self.why else moved


@dataclass(frozen=True)
class Outcome:
    """Where a push was left.

    ``wave`` is the one in which it ended, None when it went through all. ``done``, ``skipped``
    (nothing to do there), ``never_begun`` and ``reverted`` are what sites are at now; the windows
    of ``shut`` are shut. ``failed`` are all that failed, with why, whatever became of them then;
    ``not_reverted`` those that should have been reverted, with why they were not.
    """

    ending: Ending
    wave: str | None = None
    done: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    never_begun: tuple[str, ...] = ()
    shut: tuple[str, ...] = ()
    reverted: tuple[str, ...] = ()
    not_reverted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Begin:
    """Write the site, then see it settle and soak; say each of that, or that it failed."""

    site: str


@dataclass(frozen=True)
class Revert:
    """Give the site back what it had before this push; say that it is done, or that it failed."""

    site: str


@dataclass(frozen=True)
class Await:
    """Nothing can go on before a window of one of these sites opens: then tick."""

    sites: tuple[str, ...]


@dataclass(frozen=True)
class WaveBegins:
    wave: str


@dataclass(frozen=True)
class WaveEnds:
    """``failed`` are its sites that have failed, with why."""

    wave: str
    ending: Ending
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tell:
    """A site has come further."""

    step: Step


@dataclass(frozen=True)
class Finish:
    """The push is over; nothing comes after this."""

    outcome: Outcome


Instruction = Begin | Revert | Await | WaveBegins | WaveEnds | Tell | Finish
