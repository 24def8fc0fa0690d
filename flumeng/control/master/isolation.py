"""Isolates flows on which the planner fails. Bisection finds such a flow, which is then *withheld*:
its tasks stay unchanged until the flow changes or a time limit passes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from flumeng.control.planner.actions import Action
from flumeng.control.planner.planner import Planner
from flumeng.control.snapshot.snapshot import Snapshot
from flumeng.control.zookeeper import Version
from flumeng.platform.garbage_collection import no_garbage_collection

log = logging.getLogger(__name__)

WITHHOLD_SECONDS = 60.0


@dataclass(frozen=True)
class _Withheld:
    why: str
    version: Version
    until: float


class IsolatingPlanner:
    """Plans all flows except withheld ones. ``clock`` is monotonic."""

    def __init__(self, make: Callable[[], Planner], clock: Callable[[], float]) -> None:
        self._make = make
        self._clock = clock
        self._planner = make()
        self._withheld: dict[str, _Withheld] = {}

    @property
    def withheld(self) -> Mapping[str, str]:
        """The flows that are not planned now, each with the reason."""
        return {flow: entry.why for flow, entry in self._withheld.items()}

    @property
    def held(self) -> Mapping[str, frozenset[str]]:
        return self._planner.held

    def withhold(self, snapshot: Snapshot, flow: str, why: str) -> None:
        """Stop planning the flow until it changes, at most for ``WITHHOLD_SECONDS``."""
        view = snapshot.flows.get(flow)
        if view is not None:
            until = self._clock() + WITHHOLD_SECONDS
            self._withheld[flow] = _Withheld(why, view.version, until)

    def plan(self, snapshot: Snapshot) -> list[Action]:
        """Plan all flows but the withheld and faulty ones. Raises the planner's error when no
        single flow is at fault."""
        self._release(snapshot)
        try:
            return self._plan(snapshot)
        except Exception:  # a fault may harm one flow only
            faulty = self._faulty(snapshot, sorted(snapshot.mine - self._withheld.keys()))
            if not faulty:
                raise
            for flow, fault in faulty.items():
                text = "flow %s cannot be planned: its tasks stay until it changes, at most %g s"
                log.error(text, flow, WITHHOLD_SECONDS, exc_info=fault)
                self.withhold(snapshot, flow, f"the planner failed: {_described(fault)}")
        return self._plan(snapshot)

    def _plan(self, snapshot: Snapshot) -> list[Action]:
        """Plan, and replace a planner that raises: its cache may be half updated."""
        try:
            with no_garbage_collection():
                if self._withheld:
                    mine = snapshot.mine - self._withheld.keys()
                    snapshot = replace(snapshot, mine=mine)
                return self._planner.plan(snapshot)
        except Exception:
            self._planner = self._make()
            raise

    def _faulty(self, snapshot: Snapshot, flows: Sequence[str]) -> dict[str, Exception]:
        """Return flows that fail when planned alone; none if planning fails without any flow."""
        if self._fault(snapshot, ()) is not None:
            return {}
        faulty: dict[str, Exception] = {}
        waiting = [flows]
        while waiting:
            some = waiting.pop()
            fault = self._fault(snapshot, some)
            if fault is None:
                continue
            if len(some) == 1:
                faulty[some[0]] = fault
            else:
                middle = len(some) // 2
                waiting += [some[middle:], some[:middle]]
        return faulty

    def _fault(self, snapshot: Snapshot, flows: Sequence[str]) -> Exception | None:
        try:
            self._make().plan(replace(snapshot, mine=frozenset(flows)))
        except Exception as error:  # any error is the fault
            return error
        return None

    def _release(self, snapshot: Snapshot) -> None:
        """Plan a withheld flow again when it was changed or removed, or its time is up."""
        now = self._clock()
        versions = {name: view.version for name, view in snapshot.flows.items()}
        self._withheld = {
            flow: entry
            for flow, entry in self._withheld.items()
            if versions.get(flow) == entry.version and now < entry.until
        }


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
