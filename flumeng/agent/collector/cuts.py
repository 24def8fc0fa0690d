"""Detects logs that were cut below an ack, as KIP-320 describes for Kafka's consumers.

A server that elects a leader without all committed events cuts the log, and other events get the
offsets of those that were read. So the first time that a partition has another leader than its ack
names, its log is compared, beside the batches. Nothing is read meanwhile.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Container
from concurrent.futures import Future
from dataclasses import dataclass, replace

from flumeng.connectors.api.ranged import CutError, FindingCuts, Gone, Positions, Reach, Standstill

LOOK_SECONDS = 1.0
"""Between two tries to compare."""
WHY_CHARACTERS = 300


@dataclass(frozen=True)
class _Search:
    """For a cut below ``start`` since leader ``old``, in the log of leader ``new``; by epochs."""

    start: int
    old: int
    new: int
    result: Future[Gone | None]
    again_at: float


class Cuts:
    """Those of the partitions of one task. ``clock`` gives seconds that only grow."""

    def __init__(self, positions: Positions, clock: Callable[[], float]) -> None:
        self._positions = positions
        self._clock = clock
        self._searches: dict[str, _Search] = {}

    def forget(self, kept: Container[str]) -> None:
        """All but those of ``kept``."""
        self._searches = {name: one for name, one in self._searches.items() if name in kept}

    def look(
        self, name: str, start: int, epoch: int | None, reach: Reach
    ) -> tuple[Reach | None, Standstill | None]:
        """The reach, with its cut if there is one that the flow passes over, and else why the
        partition stands still. No reach: it is not known yet.

        Where nothing lies above ``start``, or what lies there is deleted, nothing is compared yet.
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
        """The one that runs or is done; a new one where that was of something else, or failed."""
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
