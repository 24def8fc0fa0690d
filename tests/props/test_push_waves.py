"""Random waves, and answers in any order: the invariants of each push."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from flumeng.fleet.waves import (
    Applied,
    Await,
    Begin,
    Done,
    Ending,
    Failed,
    Finish,
    Instruction,
    Revert,
    Reverted,
    RevertFailed,
    Settled,
    SiteEvent,
    StopAsked,
    Tick,
    Wave,
    Waves,
)

REVERT_FAILS = 0.2


@dataclass(frozen=True)
class Case:
    waves: tuple[Wave, ...]
    todo: frozenset[str]
    touched: frozenset[str]
    on_failure: Literal["stop", "rollback"]
    wait: bool
    fails: float
    shut: float
    stops: float
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.integers(1, 6), max_size=4))
    waves = tuple(
        Wave(
            f"w{number}",
            tuple(f"s{number}{place}" for place in range(size)),
            parallel=draw(st.integers(0, 3)),
            max_failures=draw(st.integers(0, 2)),
        )
        for number, size in enumerate(sizes)
    )
    sites = st.sampled_from([name for wave in waves for name in wave.sites] or ["none"])
    some = st.frozensets(sites) if waves else st.just(frozenset[str]())
    everything = frozenset(name for wave in waves for name in wave.sites)
    return Case(
        waves,
        draw(st.just(everything) | some),
        draw(st.just(frozenset[str]()) | some),
        draw(st.sampled_from(["stop", "rollback"])),
        draw(st.booleans()),
        draw(st.sampled_from([0.0, 0.1, 0.5])),
        draw(st.sampled_from([0.0, 0.0, 0.5])),
        draw(st.sampled_from([0.0, 0.0, 0.05, 0.2])),
        draw(st.integers(0, 2**32)),
    )


@dataclass
class Run:
    """Plays the driver: answers come in any order; each site fails, and each window is shut, with
    the chance that the case says."""

    case: Case
    asked: list[Instruction] = field(default_factory=list)
    next_of: dict[str, list[SiteEvent]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    failures: Counter[str] = field(default_factory=Counter)
    stopped: bool = False

    def __post_init__(self) -> None:
        self.chance = random.Random(self.case.seed)
        self.wave_of = {name: wave for wave in self.case.waves for name in wave.sites}
        self.waves = Waves(
            self.case.waves,
            self.case.todo,
            on_failure=self.case.on_failure,
            is_open=lambda _site: self.chance.random() >= self.case.shut,
            wait_for_windows=self.case.wait,
            touched=self.case.touched,
        )

    def play(self) -> list[Instruction]:
        self.take(self.waves.handle(Tick()))
        while self.waves.outcome is None:
            if self.chance.random() < self.case.stops:
                self.stopped = True
                self.take(self.waves.handle(StopAsked()))
            elif not self.next_of or self.chance.random() < 0.1:
                waits = isinstance(self.asked[-1], Await) if self.asked else False
                assert self.next_of or waits, "it waits for nothing"
                self.take(self.waves.handle(Tick()))
            else:
                self.answer(self.chance.choice(sorted(self.next_of)))
        assert not self.next_of, "what was begun has not ended"
        return self.asked

    def answer(self, site: str) -> None:
        event = self.next_of[site].pop(0)
        if not self.next_of[site]:
            del self.next_of[site]
        if isinstance(event, Applied) or (isinstance(event, Failed) and event.touched):
            self.written.add(site)
        if isinstance(event, Failed):
            self.failures[self.wave_of[site].name] += 1
        self.take(self.waves.handle(event))

    def take(self, asked: list[Instruction]) -> None:
        for one in asked:
            assert not any(isinstance(told, Finish) for told in self.asked), (
                "something comes after the end"
            )
            self.asked.append(one)
            if isinstance(one, Begin):
                self.may_begin(one.site)
                self.next_of[one.site] = self.events(one.site)
            elif isinstance(one, Revert):
                assert not self.stopped, one
                failed = self.chance.random() < REVERT_FAILS
                answer = RevertFailed(one.site, "r") if failed else Reverted(one.site)
                self.next_of[one.site] = [answer]
            limit = {site: self.wave_of[site].parallel for site in self.next_of}
            busy = Counter(self.wave_of[site].name for site in self.next_of)
            assert all(busy[self.wave_of[site].name] <= n for site, n in limit.items() if n)
            assert len(busy) <= 1, "two waves are under way"

    def may_begin(self, site: str) -> None:
        assert not self.stopped, site
        assert site in self.case.todo
        for wave in self.case.waves:
            assert self.failures[wave.name] <= wave.max_failures, (site, wave)
            if wave is self.wave_of[site]:
                return
            begun = {one.site for one in self.asked if isinstance(one, Begin)}
            assert self.case.todo & set(wave.sites) <= begun - self.next_of.keys(), (site, wave)

    def events(self, site: str) -> list[SiteEvent]:
        events: list[SiteEvent] = [Applied(site), Settled(site), Done(site)]
        if self.chance.random() >= self.case.fails:
            return events
        place = self.chance.randrange(3)
        return [*events[:place], Failed(site, "f", touched=self.chance.random() < 0.5)]


@given(cases())
def test_invariants_hold_for_each_push(case: Case) -> None:
    run = Run(case)
    asked = run.play()
    outcome = run.waves.outcome
    assert outcome is not None
    assert [one for one in asked if isinstance(one, Finish)] == [asked[-1]] == [Finish(outcome)]

    begun = [one.site for one in asked if isinstance(one, Begin)]
    assert len(begun) == len(set(begun)), "a site was begun twice"
    reverts = [one.site for one in asked if isinstance(one, Revert)]
    assert len(reverts) == len(set(reverts)), "a site was reverted twice"
    order = [case.waves.index(run.wave_of[site]) for site in reverts]
    assert order == sorted(order, reverse=True), "an older wave was reverted first"

    beyond = [wave for wave in case.waves if run.failures[wave.name] > wave.max_failures]
    touched = run.written | case.touched
    if beyond and case.on_failure == "rollback":
        assert {*outcome.reverted, *outcome.not_reverted} == touched
        assert set(reverts) == touched or (run.stopped and set(reverts) < touched)
    else:
        assert (reverts, outcome.reverted, outcome.not_reverted) == ([], (), {})
    if not beyond and not run.stopped and not (case.shut and not case.wait):
        assert set(begun) == case.todo
        assert outcome.ending == (
            Ending.DONE_WITH_FAILURES if run.failures.total() else Ending.DONE
        )
    assert (outcome.ending is Ending.FAILED) == (bool(beyond) and case.on_failure == "stop")
    assert len(outcome.failed) == run.failures.total()
    held = {*outcome.done, *outcome.skipped, *outcome.failed, *outcome.never_begun}
    assert held | set(outcome.reverted) | set(outcome.not_reverted) == set(run.wave_of)
    assert set(outcome.shut) <= set(outcome.never_begun)
    assert len(run.waves.log) <= 6 * len(run.wave_of)


@given(cases())
def test_the_same_events_give_the_same_instructions(case: Case) -> None:
    assert Run(case).play() == Run(case).play()
