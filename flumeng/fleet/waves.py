"""Push waves: their limits and order. Pure: events in, instructions out. Rules:

1. Waves run in order; the next begins when the one before has ended without failing. A wave has at
   most ``parallel`` sites under way, in its order; 0: all.
2. Sites with nothing to do are skipped, and a wave of only such sites is not reported.
3. A wave has failed once more than ``max_failures`` of its sites have. No further site is begun;
   those under way complete, then the push ends.
4. With ``rollback`` all sites that this push has touched are then reverted, newest wave first,
   ``parallel`` at once, regardless of windows. One failed revert does not stop the others.
5. After a stop request no further site is begun or reverted; those under way complete.
6. A site whose window is shut is not begun; others of its wave go first. When only shut sites are
   left, the push ends there, or waits with ``wait_for_windows``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from flumeng.platform.options.windows import Window


@dataclass(frozen=True)
class Wave:
    """Sites changed together, ``parallel`` at once. The wave fails when more than ``max_failures``
    fail. A site must run its changes within ``settle_seconds``, then be no worse than before for
    ``soak_seconds``. It is begun only within a window in its time zone, if there are any."""

    name: str
    sites: tuple[str, ...]
    parallel: int = 1
    max_failures: int = 0
    settle_seconds: float = 300.0
    soak_seconds: float = 0.0
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True)
class Tick:
    """Time to continue: the push begins, or a window may have opened."""


@dataclass(frozen=True)
class StopAsked:
    """A request to begin or revert no further site."""


@dataclass(frozen=True)
class SiteEvent:
    """An event of a site that is being changed."""

    site: str


class Applied(SiteEvent):
    """All transactions of the site are committed."""


class Settled(SiteEvent):
    """The site runs its changes, and is no worse than before the push."""


class Done(SiteEvent):
    """The site was no worse than before the push for its soak time."""


@dataclass(frozen=True)
class Failed(SiteEvent):
    """The site has failed. ``touched``: it has, or may have, writes of this push."""

    why: str
    touched: bool


class Reverted(SiteEvent):
    """The site is restored to its state before this push."""


@dataclass(frozen=True)
class RevertFailed(SiteEvent):
    why: str


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
    DONE = "done"
    DONE_WITH_FAILURES = "done with failures"
    FAILED = "failed"
    ROLLED_BACK = "rolled back"
    STOPPED = "stopped"
    WAITING = "waiting for a window"


@dataclass(frozen=True)
class Step:
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
    """A push's end. ``wave``: where, None after all. ``done``, ``skipped``, ``never_begun``,
    ``reverted``: sites in these states; ``shut``: sites with a shut window. ``failed``: reasons by
    site, also of reverted ones; ``not_reverted``: why reverts failed, by site."""

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
    """Restore the site to its state before this push; report the result."""

    site: str


@dataclass(frozen=True)
class Await:
    """The wave waits only for shut windows of these sites: send a ``Tick`` when the first opens."""

    sites: tuple[str, ...]


@dataclass(frozen=True)
class WaveBegins:
    wave: str


@dataclass(frozen=True)
class WaveEnds:
    """The end of a wave; ``failed``: the reason of each of its failed sites."""

    wave: str
    ending: Ending
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tell:
    step: Step


@dataclass(frozen=True)
class Finish:
    outcome: Outcome


Instruction = Begin | Revert | Await | WaveBegins | WaveEnds | Tell | Finish


TRANSITIONS: dict[tuple[State, type[SiteEvent]], State] = {
    (State.WRITING, Applied): State.SETTLING,
    (State.WRITING, Failed): State.FAILED,
    (State.SETTLING, Settled): State.SOAKING,
    (State.SETTLING, Failed): State.FAILED,
    (State.SOAKING, Done): State.DONE,
    (State.SOAKING, Failed): State.FAILED,
    (State.REVERTING, Reverted): State.REVERTED,
    (State.REVERTING, RevertFailed): State.NOT_REVERTED,
}
"""The legal transitions; any other pair is a fault of the caller."""

UNDER_WAY = (State.WRITING, State.SETTLING, State.SOAKING)
GONE_BACK = (State.REVERTING, State.REVERTED, State.NOT_REVERTED)


@dataclass
class _Site:
    """A site in this push. ``touched``: it has, or may have, writes of this push. ``failed`` and
    ``not_reverted`` are reasons."""

    name: str
    state: State
    touched: bool
    failed: str | None = None
    not_reverted: str | None = None


class Waves:
    """The state machine of a push. Not thread-safe. ``todo``: sites to change; ``touched``: changed
    by an earlier run. ``is_open``: whether a site may begin. ``log``: at most six steps a site."""

    def __init__(
        self,
        waves: Sequence[Wave],
        todo: Collection[str],
        *,
        on_failure: Literal["stop", "rollback"],
        is_open: Callable[[str], bool],
        wait_for_windows: bool = False,
        touched: Collection[str] = (),
    ) -> None:
        self._waves = tuple(waves)
        self._sites = {
            name: _Site(name, State.PENDING if name in todo else State.SKIPPED, name in touched)
            for wave in waves
            for name in wave.sites
        }
        assert {*todo, *touched} <= self._sites.keys(), "a site that is in no wave"
        self._on_failure = on_failure
        self._is_open = is_open
        self._wait_for_windows = wait_for_windows
        self._at = 0
        self._announced = False
        self._failed_wave: Wave | None = None
        self._stopping = False
        self._awaited: tuple[str, ...] = ()
        self._out: list[Instruction] = []
        self.outcome: Outcome | None = None
        self.log: list[Step] = []

    def handle(self, event: Event) -> list[Instruction]:
        """Handle an event; the first of a push is a ``Tick``. Raises AssertionError for an event of
        a site that TRANSITIONS lacks."""
        self._out = []
        if isinstance(event, StopAsked):
            self._stopping = True
        elif not isinstance(event, Tick):
            self._on_site(event)
        if self.outcome is None:
            self._advance()
        self.check()
        return self._out

    @property
    def reverting(self) -> bool:
        """Whether a wave has failed, so that touched sites are being reverted."""
        return self._failed_wave is not None

    @property
    def states(self) -> dict[str, State]:
        return {site.name: site.state for site in self._sites.values()}

    def check(self) -> None:
        for number, wave in enumerate(self._waves):
            sites = self._of(wave)
            busy = [site for site in sites if site.state in (*UNDER_WAY, State.REVERTING)]
            assert wave.parallel == 0 or len(busy) <= wave.parallel, (wave.name, busy)
            assert not busy or (self.outcome is None and number == self._at), (wave.name, busy)
            assert not self.reverting or not self._in(wave, *UNDER_WAY), wave.name
            if not self.reverting:
                early = {State.PENDING, State.SKIPPED}
                assert number <= self._at or {site.state for site in sites} <= early, wave.name
                assert number >= self._at or not self._in(wave, State.PENDING), wave.name
        for site in self._sites.values():
            here = (State.SETTLING, State.SOAKING, State.DONE, *GONE_BACK)
            assert site.touched or site.state not in here, site

    def _on_site(self, event: SiteEvent) -> None:
        site = self._sites[event.site]
        after = TRANSITIONS.get((site.state, type(event)))
        if after is None:
            steps = "; ".join(str(step) for step in self.log if step.site == site.name)
            raise AssertionError(f"{site.name} is {site.state}, got {event}: {steps}")
        if isinstance(event, Applied):
            site.touched = True
        elif isinstance(event, Failed):
            site.failed = event.why
            site.touched |= event.touched
        elif isinstance(event, RevertFailed):
            site.not_reverted = event.why
        self._move(site, type(event).__name__.lower(), after, getattr(event, "why", ""))

    def _advance(self) -> None:
        while self.outcome is None:
            if self.reverting:
                going = self._go_back()
            elif self._at == len(self._waves):
                going = self._finish(self._done(*self._waves))
            else:
                going = self._go_on(self._waves[self._at])
            if not going:
                return

    def _go_on(self, wave: Wave) -> bool:
        """Begin sites; return whether to call again at once, rather than wait for events."""
        beyond = len(self._in(wave, State.FAILED)) > wave.max_failures
        for site in self._in(wave, State.PENDING):
            if not self._stopping and not beyond and self._has_room(wave, *UNDER_WAY):
                self._begin(wave, site)
        if self._in(wave, *UNDER_WAY):
            return False
        if beyond:
            return self._on_failed_wave(wave)
        shut = tuple(site.name for site in self._in(wave, State.PENDING))
        if not shut:
            self._end(wave, self._done(wave))
            self._at += 1
            return True
        if self._stopping:
            return self._finish(Ending.STOPPED, wave)
        if not self._wait_for_windows:
            return self._finish(Ending.WAITING, wave, shut)
        if self._awaited != shut:
            self._out.append(Await(shut))
            self._awaited = shut
        return False

    def _begin(self, wave: Wave, site: _Site) -> None:
        if not self._is_open(site.name):
            return
        if not self._announced:
            self._out.append(WaveBegins(wave.name))
            self._announced = True
        self._move(site, "begin", State.WRITING)
        self._out.append(Begin(site.name))

    def _on_failed_wave(self, wave: Wave) -> bool:
        if self._on_failure == "stop":
            return self._finish(Ending.FAILED, wave)
        self._end(wave, Ending.FAILED)
        self._failed_wave = wave
        self._at = len(self._waves) - 1
        return True

    def _go_back(self) -> bool:
        """Revert sites; return whether to call again at once, rather than wait for events."""
        if self._at < 0:
            return self._finish(Ending.ROLLED_BACK, self._failed_wave)
        wave = self._waves[self._at]
        for site in reversed(self._left(wave)):
            if not self._stopping and self._has_room(wave, State.REVERTING):
                self._move(site, "revert", State.REVERTING)
                self._out.append(Revert(site.name))
        if self._in(wave, State.REVERTING):
            return False
        if self._left(wave):
            return self._finish(Ending.STOPPED, self._failed_wave)
        self._at -= 1
        return True

    def _done(self, *waves: Wave) -> Ending:
        return Ending.DONE_WITH_FAILURES if self._failures(*waves) else Ending.DONE

    def _end(self, wave: Wave, ending: Ending) -> None:
        if self._announced:
            self._out.append(WaveEnds(wave.name, ending, self._failures(wave)))
            self._announced = False

    def _finish(self, ending: Ending, wave: Wave | None = None, shut: tuple[str, ...] = ()) -> bool:
        if wave is not None:
            self._end(wave, ending)
        left = self._left(*self._waves) if self.reverting else []
        kept = {site.name: site.not_reverted for site in self._sites.values()}
        self.outcome = Outcome(
            ending,
            wave.name if wave else None,
            done=self._all(State.DONE),
            skipped=self._all(State.SKIPPED),
            failed=self._failures(*self._waves),
            never_begun=self._all(State.PENDING),
            shut=shut,
            reverted=self._all(State.REVERTED),
            not_reverted={name: why for name, why in kept.items() if why is not None}
            | {site.name: "the push was stopped" for site in left},
        )
        self._out.append(Finish(self.outcome))
        return False

    def _move(self, site: _Site, event: str, after: State, why: str = "") -> None:
        step = Step(len(self.log), site.name, event, site.state, after, why)
        site.state = after
        self.log.append(step)
        self._out.append(Tell(step))

    def _of(self, wave: Wave) -> list[_Site]:
        return [self._sites[name] for name in wave.sites]

    def _in(self, wave: Wave, *states: State) -> list[_Site]:
        return [site for site in self._of(wave) if site.state in states]

    def _all(self, state: State) -> tuple[str, ...]:
        return tuple(site.name for site in self._sites.values() if site.state is state)

    def _failures(self, *waves: Wave) -> dict[str, str]:
        sites = [site for wave in waves for site in self._of(wave)]
        return {site.name: site.failed for site in sites if site.failed is not None}

    def _has_room(self, wave: Wave, *states: State) -> bool:
        return wave.parallel == 0 or len(self._in(wave, *states)) < wave.parallel

    def _left(self, *waves: Wave) -> list[_Site]:
        sites = [site for wave in waves for site in self._of(wave)]
        return [site for site in sites if site.touched and site.state not in GONE_BACK]
