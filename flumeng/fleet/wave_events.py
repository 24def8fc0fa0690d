"""Events and instructions of ``Waves``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True)
class Tick:
    """The push begins, or a window may have opened."""


@dataclass(frozen=True)
class StopAsked:
    """No further site is begun or reverted."""


@dataclass(frozen=True)
class Applied:
    """All transactions of the site are written."""

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
    """``touched``: something of this push is in the site, or may be."""

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
    """One event of a site, and the states before and after it."""

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
    """The end of a push. ``wave``: where it ended, None after all. ``done``, ``skipped``,
    ``never_begun``, ``reverted``: the sites' states; windows of ``shut`` are shut. ``failed``: all
    that failed -> why, also reverted ones; ``not_reverted``: site -> why its revert failed."""

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
    """Write the site and watch it; report each step or the failure."""

    site: str


@dataclass(frozen=True)
class Revert:
    """Restore the site to before this push; report it."""

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
    """``failed``: its failed sites -> why."""

    wave: str
    ending: Ending
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tell:
    """A site has changed its state."""

    step: Step


@dataclass(frozen=True)
class Finish:
    """The push is over."""

    outcome: Outcome


Instruction = Begin | Revert | Await | WaveBegins | WaveEnds | Tell | Finish
