"""Detects logs that were cut below an ack, as KIP-320 describes for Kafka's consumers.

A leader elected without all committed events cuts the log, and other events get the offsets of
those already read. So when a partition's leader is not the one of its ack, its log is compared,
beside the batches, and nothing is read meanwhile.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Container
from concurrent.futures import Future
from dataclasses import dataclass, replace

from flumeng.connectors.api.ranged import CutError, FindingCuts, Gone, Positions, Reach, Standstill

LOOK_SECONDS = 1.0
"""Between two attempts to compare."""
WHY_CHARACTERS = 300


@dataclass(frozen=True)
class _Search:
    """A search for a cut below ``start`` between the leader epochs ``old`` and ``new``."""

    start: int
    old: int
    new: int
    result: Future[Gone | None]
    again_at: float


class Cuts:
    """The cuts of one task's partitions. ``clock`` gives seconds that only grow."""

    def __init__(self, positions: Positions, clock: Callable[[], float]) -> None:
        self._positions = positions
        self._clock = clock
        self._searches: dict[str, _Search] = {}

    def forget(self, kept: Container[str]) -> None:
        """Drop all partitions but ``kept``."""
        self._searches = {name: one for name, one in self._searches.items() if name in kept}

    def look(
        self, name: str, start: int, epoch: int | None, reach: Reach
    ) -> tuple[Reach | None, Standstill | None]:
        """The reach, with its cut if the flow skips one, and why the partition is stopped. Without
        a reach it is not known yet.

        Nothing is compared where nothing lies above ``start``, or what lies there is deleted.
        """
        below = max(reach.floor, reach.gone_below)
        new = reach.leader_epoch
        if epoch is None or new is None or new == epoch or not below <= start < reach.safe:
            return reach, None
        search = self._search(name, start, epoch, new)
        if not search.result.done():
            return None, None
        error = search.result.exception()
        if error is None:
            return replace(reach, cut=search.result.result()), None
        why = textwrap.shorten(str(error) or type(error).__name__, WHY_CHARACTERS)
        if isinstance(error, CutError):
            return reach, Standstill("lost", name, error.end, start, why)
        return reach, Standstill("unanswered", name, start, start, why)

    def _search(self, name: str, start: int, old: int, new: int) -> _Search:
        """The running or finished search; a new one for other arguments, or after a failure."""
        search = self._searches.get(name)
        known = search is not None and (search.start, search.old, search.new) == (start, old, new)
        if search is None or not known or self._is_due_again(search):
            assert isinstance(self._positions, FindingCuts), f"{name} has leaders"
            result = self._positions.find_cut(name, start, old)
            search = _Search(start, old, new, result, self._clock() + LOOK_SECONDS)
            self._searches[name] = search
        return search

    def _is_due_again(self, search: _Search) -> bool:
        if not search.result.done() or self._clock() < search.again_at:
            return False
        error = search.result.exception()
        return error is not None and not isinstance(error, CutError)
