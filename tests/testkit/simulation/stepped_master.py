"""The real master, whose ticks are called for.

The division of flows among masters only saves work: plans stay whole because their versions are
compared. So in some worlds every master takes every flow for its own while times are rough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flumeng.control.master.daemon import Master
from flumeng.control.master.isolation import IsolatingPlanner
from flumeng.control.planner.actions import Action
from flumeng.control.planner.planner import Planner
from flumeng.control.snapshot.snapshot import Snapshot


class Greedy(Planner):
    """Takes all flows for its own while ``grabs`` returns true."""

    def __init__(self, grabs: Callable[[], bool]) -> None:
        super().__init__()
        self._grabs = grabs

    def plan(self, snapshot: Snapshot) -> list[Action]:
        if self._grabs():
            snapshot = replace(snapshot, mine=snapshot.plannable)
        return super().plan(snapshot)


class SteppedMaster(Master):
    """A master whose ticks the simulation calls."""

    def grab(self, grabs: Callable[[], bool]) -> None:
        self._planner = IsolatingPlanner(lambda: Greedy(grabs), self._clock)

    @property
    def woken(self) -> bool:
        return not self._wakes.empty()

    def turn(self) -> str:
        """One tick; returns its sentence. Errors that a master survives are failures here."""
        while self.woken:
            self._wakes.get()
        sentence = self.attempt()
        self.measures.health.turned(next_within_seconds=self.wait_seconds)
        failed = [why for why in self.troubles.values() if "planner failed" in why]
        assert not failed, failed
        return sentence
