"""How a push goes through its waves: events in, instructions out. Pure: no clock, no I/O.

Rules
1. Waves come one after the other, in order; the next begins when the one before ended without
   failing. In a wave at most ``parallel`` sites are under way at once, in its order; 0: all.
2. Sites with nothing to do are skipped; a wave of such sites is not spoken of.
3. A wave has failed as soon as more than ``max_failures`` of its sites have. Then no further site
   is begun; those under way come to their end, and the push with them.
4. Under ``rollback`` all sites that this push has touched are then reverted, the newest wave
   first, as many of a wave at once as were begun. One that cannot be reverted does not hold up the
   others. Windows do not count: a site that is worse than before is not left so until tomorrow.
5. Asked to stop: no further site is begun or reverted, those under way come to their end.
6. A site whose window is shut is not begun, and others of its wave go first. When nothing else of
   the wave can go on the push ends there, or waits if it was told to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from flumeng.fleet.inventory import Wave
from flumeng.fleet.wave_events import (
    Applied,
    Await,
    Begin,
    Done,
    Ending,
    Event,
    Failed,
    Finish,
    Instruction,
    Outcome,
    Revert,
    Reverted,
    RevertFailed,
    Settled,
    SiteEvent,
    State,
    Step,
    StopAsked,
    Tell,
    Tick,
    WaveBegins,
    WaveEnds,
)

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
"""A pair that is not here is a fault of the caller."""

UNDER_WAY = (State.WRITING, State.SETTLING, State.SOAKING)
GONE_BACK = (State.REVERTING, State.REVERTED, State.NOT_REVERTED)


@dataclass
class _Site:
    """``touched``: something of this push is in it, or may be. ``failed`` and ``not_reverted``:
    why."""

    name: str
    state: State
    touched: bool
    failed: str | None = None
    not_reverted: str | None = None


class Waves:
    """One run of a push; not thread-safe. ``todo``: the sites to change; ``touched``: those that an
    earlier run of the same push has changed. ``is_open``: whether a site may be begun now. ``log``:
    at most six steps for each site."""

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
        """The first event is a ``Tick``. Raises AssertionError for an event that the site cannot
        have now."""
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
        """Whether a wave has failed, and touched sites are reverted."""
        return self._failed_wave is not None

    @property
    def states(self) -> dict[str, State]:
        """By site, in the order of the waves."""
        return {site.name: site.state for site in self._sites.values()}

    def check(self) -> None:
        """The invariants of this structure."""
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
            told = "; ".join(str(step) for step in self.log if step.site == site.name)
            raise AssertionError(f"{site.name} is {site.state}, got {event}: {told}")
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
        """Begin sites; whether there is more to do than to wait."""
        beyond = self._is_beyond(wave)
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
        """Revert sites; whether there is more to do than to wait."""
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

    def _is_beyond(self, wave: Wave) -> bool:
        return len(self._in(wave, State.FAILED)) > wave.max_failures

    def _left(self, *waves: Wave) -> list[_Site]:
        """The sites still to revert."""
        sites = [site for wave in waves for site in self._of(wave)]
        return [site for site in sites if site.touched and site.state not in GONE_BACK]
