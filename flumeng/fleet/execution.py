"""Carries out a push: claims the sites and changes each in a thread; ``Waves`` decides. A killed
push leaves its progress in the sites, and the next push with the same inventory continues it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Literal
from zoneinfo import ZoneInfo

from flumeng.control.zookeeper import Store
from flumeng.fleet import claim as claims
from flumeng.fleet import plan as plans
from flumeng.fleet import rollback
from flumeng.fleet.comparison import BEING_DELETED
from flumeng.fleet.inventory import Inventory, Site
from flumeng.fleet.parallel_sites import in_sites
from flumeng.fleet.plan import PushPlan, SitePlan
from flumeng.fleet.site_copy import copy_site
from flumeng.fleet.site_turn import Clocks, Health, Link, Task, Turn
from flumeng.fleet.waves import (
    Applied,
    Begin,
    Done,
    Event,
    Failed,
    Finish,
    Instruction,
    Outcome,
    Revert,
    Reverted,
    RevertFailed,
    Settled,
    StopAsked,
    Tick,
    Wave,
    Waves,
)
from flumeng.platform.errors import ConflictError, FlumengError
from flumeng.platform.options import windows
from zkschema.records import PushClaim, PushSource

STOP_SECONDS = 0.2
GONE_SECONDS = 2.0
"""Interval between checks whether flows that are being deleted are removed."""


@dataclass(frozen=True)
class Note:
    site: str
    text: str


@dataclass(frozen=True)
class World:
    """Access to the sites. ``connect`` raises ``UnavailableError`` after the site's time limit."""

    connect: Callable[[Site], Store]
    health: Health
    clocks: Clocks
    has_ended: claims.HasEnded


Report = Callable[[Instruction | Note], None]


@dataclass(frozen=True)
class Manner:
    """How to push. ``verb`` as in ``PushEntry``; ``back``: the source of a revert, with a separate
    id. ``window_seconds``: interval between checks whether a window has opened."""

    verb: str
    source: PushSource
    back: PushSource
    claim: PushClaim
    on_failure: Literal["stop", "rollback"] = "stop"
    take_over: bool = False
    wait_for_windows: bool = False
    window_seconds: float = 30.0


@dataclass
class Execution:
    """Carries out one push, once. ``stop`` may be called from any thread or signal handler."""

    inventory: Inventory
    plan: PushPlan
    waves: tuple[Wave, ...]
    manner: Manner
    world: World
    report: Report
    _events: SimpleQueue[Event | Note] = field(default_factory=SimpleQueue)
    _unclaimed: dict[str, FlumengError] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)
    _links: dict[str, Link] = field(default_factory=dict)

    def stop(self) -> None:
        """Begin no further site; sites being changed are completed."""
        self._events.put(StopAsked())

    def run(self) -> Outcome:
        """Run the push. Raises ``ConflictError``, before any change, if another claims a site."""
        todo = [name for name, site in self.plan.sites.items() if site.has_work or site.error]
        machine = Waves(
            self.waves,
            todo,
            on_failure=self.manner.on_failure,
            is_open=self._is_open,
            wait_for_windows=self.manner.wait_for_windows,
            touched=[name for name, site in self.plan.sites.items() if self._is_touched(site)],
        )
        claimed: list[str] = []
        try:
            claimed = self._claim([name for name in todo if not self.plan.sites[name].error])
            self._keep_links(todo)
            return self._drive(machine)
        finally:
            self._keep_links([])
            self._let_go([*claimed, *self._unclaimed])

    def _drive(self, machine: Waves) -> Outcome:
        event: Event = Tick()
        patience_seconds = self.manner.window_seconds if self.manner.wait_for_windows else None
        while True:
            for instruction in machine.handle(event):
                self.report(instruction)
                if isinstance(instruction, Finish):
                    return instruction.outcome
                if isinstance(instruction, Begin):
                    self._start(self._take_turn, instruction.site)
                elif isinstance(instruction, Revert):
                    self._start(self._take_back, instruction.site)
            event = self._next(patience_seconds)

    def _next(self, patience_seconds: float | None) -> Event:
        waited = 0.0
        while True:
            try:  # in short waits, so that signals are handled
                event = self._events.get(timeout=STOP_SECONDS)
            except Empty:
                waited += STOP_SECONDS
                if patience_seconds is not None and waited >= patience_seconds:
                    return Tick()
                continue
            if not isinstance(event, Note):
                return event
            self.report(event)

    def _start(self, work: Callable[[str], None], site: str) -> None:
        threading.Thread(target=work, args=(site,), name=f"turn-{site}", daemon=True).start()

    def _take_turn(self, name: str) -> None:
        planned = self.plan.sites[name]
        cannot = planned.error or str(self._unclaimed.get(name, ""))
        if cannot:
            self._events.put(Failed(name, cannot, touched=self._is_touched(planned)))
            return
        wave = next(wave for wave in self.waves if name in wave.sites)
        turn = self._turn(name, planned, self.manner.verb, self.manner.source, wave)
        try:
            turn.write()
            self._events.put(Applied(name))
            turn.watch(lambda: self._events.put(Settled(name)))
            turn.end()
            self._ended.add(name)
            self._events.put(Done(name))
        except FlumengError as error:
            try:
                with contextlib.suppress(FlumengError):
                    turn.end(str(error))
                    self._ended.add(name)
            finally:
                self._events.put(Failed(name, str(error), touched=turn.touched))
        except Exception as error:  # a bug must not leave the others waiting for ever
            self._events.put(Failed(name, f"{type(error).__name__}: {error}", touched=True))
            raise
        finally:
            turn.close()

    def _take_back(self, name: str) -> None:
        site = self.inventory.sites[name]
        link = Link(site, self.world.connect, self.world.clocks)
        self._ended.discard(name)  # it is claimed again
        try:
            wave = next(wave for wave in self.waves if name in wave.sites)
            planned = self._planned_back(name, link, wave.settle_seconds)
            turn = self._turn(name, planned, "rollback", self.manner.back, wave)
            try:
                turn.write()
                turn.watch(lambda: None)
                turn.end()
            finally:
                turn.close()
            self._events.put(Reverted(name))
        except Exception as error:
            self._events.put(RevertFailed(name, str(error)))
            if not isinstance(error, FlumengError):
                raise
        finally:
            link.close()

    def _planned_back(self, name: str, link: Link, patience_seconds: float) -> SitePlan:
        """Plan the revert once flows deleted by this push are removed. Raises ``ConflictError``."""
        deadline = self.world.clocks.monotonic() + patience_seconds
        while True:
            planned = link.do(lambda store: self._going_back(name, store))
            conflicts = planned.comparison.conflicts
            if not planned.error and not conflicts:
                return planned
            passes = not planned.error and {*conflicts.values()} == {BEING_DELETED}
            if not passes or self.world.clocks.monotonic() >= deadline:
                refusals = (f"{key}: {why}" for key, why in conflicts.items())
                raise ConflictError(planned.error or "; ".join(refusals))
            self._events.put(Note(name, "waits for flows that are being deleted"))
            link.close()
            self.world.clocks.sleep(GONE_SECONDS)

    def _going_back(self, name: str, store: Store) -> SitePlan:
        claims.take(store, None, self.manner.claim, self.world.has_ended, take_over=False)
        copy = copy_site(store)
        own = (self.manner.source.push, self.manner.back.push)
        kept = rollback.read_entries(store, copy)
        entries = rollback.of_pushes(kept, own)
        rollback.expect_readable(copy, kept, entries)
        if not entries and any(entry.source.push in own for entry in kept):
            last = kept[-1].source
            raise ConflictError(f"push {last.push} of {last.author} came after this one")
        return plans.plan_undo(name, entries, copy, policy="refuse")

    def _turn(
        self, name: str, planned: SitePlan, verb: str, source: PushSource, wave: Wave
    ) -> Turn:
        site = self.inventory.sites[name]
        task = Task(
            site,
            planned.comparison.changes,
            verb,
            source,
            self.manner.claim,
            wave.settle_seconds,
            wave.soak_seconds if verb == self.manner.verb else 0.0,
            planned.seen.shape if planned.seen else None,
        )
        link = self._links.pop(name, None)
        return Turn(
            task,
            link or Link(site, self.world.connect, self.world.clocks),
            self.world.health,
            self.world.clocks,
            lambda text: self._events.put(Note(name, text)),
        )

    def _claim(self, names: list[str]) -> list[str]:
        """Claim sites; return the claimed. The first goes alone: only one of two pushes gets it."""
        ordered = sorted(names)
        outcomes: dict[str, FlumengError | None] = {}
        for part in (ordered[:1], ordered[1:]):
            sites = [self.inventory.sites[name] for name in part]
            outcomes |= in_sites(sites, self._claim_one)
            refused = {n: e for n, e in outcomes.items() if isinstance(e, ConflictError)}
            if refused:
                self._let_go([name for name, outcome in outcomes.items() if outcome is None])
                raise ConflictError("\n".join(f"site {n}: {e}" for n, e in refused.items()))
        self._unclaimed = {n: e for n, e in outcomes.items() if e is not None}
        return [name for name, outcome in outcomes.items() if outcome is None]

    def _claim_one(self, site: Site) -> None:
        planned = self.plan.sites[site.name]
        seen = None if planned.seen is None else (planned.push, planned.seen.push_version)
        self._links[site.name] = Link(site, self.world.connect, self.world.clocks)
        self._links[site.name].do(
            lambda store: claims.take(
                store,
                seen,
                self.manner.claim,
                self.world.has_ended,
                take_over=self.manner.take_over,
            )
        )

    def _keep_links(self, todo: Sequence[str]) -> None:
        """Close all connections except those of the sites that are changed next."""
        wave = next((wave for wave in self.waves if {*wave.sites} & {*todo}), None)
        first = [name for name in wave.sites if name in todo] if wave else []
        kept = first[: wave.parallel or len(first)] if wave else []
        unused = [name for name in self._links if name not in kept]
        in_sites(
            [self.inventory.sites[name] for name in unused],
            lambda site: self._links.pop(site.name).close(),
        )

    def _let_go(self, names: list[str]) -> None:
        sites = [self.inventory.sites[name] for name in names if name not in self._ended]
        in_sites(sites, self._let_go_of)

    def _let_go_of(self, site: Site) -> None:
        with contextlib.closing(self.world.connect(site)) as store:
            claims.let_go(store, self.manner.claim)

    def _is_touched(self, planned: SitePlan) -> bool:
        """Return whether an earlier run of this push wrote to the site."""
        source = planned.push.source
        return source is not None and source.push == self.manner.source.push

    def _is_open(self, name: str) -> bool:
        site = self.inventory.sites[name]
        wave = next(wave for wave in self.waves if name in wave.sites)
        moment = datetime.fromtimestamp(self.world.clocks.now(), UTC)
        return windows.is_open(wave.windows, moment, ZoneInfo(site.time_zone))
