"""The readable end of each partition of a task, and stopped partitions with their reasons.

A partition is read up to a damaged place, or to one that its server does not send; its ack stays
there, and the place is probed periodically. It is also read only up to a loss that no operator has
accepted, and not at all while its ack is outside the retained events. No call waits for a server.
"""

from __future__ import annotations

import logging
import textwrap
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import (
    CutError,
    FindingCuts,
    Gone,
    Kind,
    LeavingOut,
    Paced,
    Parts,
    Positions,
    Reach,
    Standstill,
    UnreadableError,
)
from flumeng.platform.errors import UnavailableError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
LOOK_MOST_SECONDS = 30.0
SOUND = 4
"""After this many waits without an error, a partition begins with the shortest wait again."""
NAMED = 3
WHY_CHARACTERS = 300


@dataclass(frozen=True)
class _Stop:
    """An unreadable offset, probed again at ``look_at``. ``damaged``: else its server is silent.
    ``given_up``: the input read on behind it; the next claim stops there again."""

    offset: int
    why: str
    damaged: bool
    look_at: float
    probe: Future[None] | None = None
    given_up: bool = False


@dataclass(frozen=True)
class _Wait:
    seconds: float
    until: float | None = None


class Partitions:
    """The partitions of a task, shared by all its claims. Only ``stop`` is thread-safe."""

    def __init__(self, positions: Positions, clock: Callable[[], float] = time.monotonic) -> None:
        self._positions = positions
        self._clock = clock
        self._reported: deque[tuple[float, UnreadableError]] = deque()
        """Times and errors of ``stop`` that ``of`` has not noted yet."""
        self._stops: dict[str, _Stop] = {}
        self._given_up: dict[str, _Stop] = {}
        """The last offset of each partition at which its input skipped unreadable events."""
        self._waits: dict[str, _Wait] = {}
        self._troubles: dict[str, str] = {}
        self._cuts = Cuts(positions, clock)
        self._leader_epochs: Mapping[str, int | None] = {}
        self._acks_first = False

    @property
    def trouble(self) -> str | None:
        """The stopped partitions: where, why, and the remedy. None when none is stopped."""
        if not self._troubles:
            return None
        texts = [text for _, text in sorted(self._troubles.items())]
        more = [f"{len(texts) - NAMED} more partitions are stopped"] if len(texts) > NAMED else []
        return "; ".join(texts[:NAMED] + more)

    def open(self, spec: FlowSpec) -> None:
        """Begin a claim. A skipped place may not be acked: its partition is stopped there and
        probed at once. Otherwise two damaged partitions would make each other's batches fail."""
        for name, stop in self._given_up.items():
            self._stops.setdefault(name, replace(stop, look_at=self._clock()))
            self._waits.setdefault(name, _Wait(LOOK_SECONDS))
        self._given_up = {}
        self._leader_epochs = {}
        self._acks_first = spec.delivery == "at-most-once"
        self._positions.open(spec)

    def of(self, starts: Mapping[str, int]) -> dict[str, Reach]:
        """Return how far each partition can be read from ``starts``. Lacks those that are
        unreachable, have an implausible end, or a log still compared after a change of leader."""
        reaches = self._positions.of(starts.keys())
        while self._reported:
            at, error = self._reported.popleft()
            self._note(at, error.partition, error.offset, error.why, damaged=error.damaged)
        self._forget(starts)
        self._probe_stops(reaches)
        bounded: dict[str, Reach] = {}
        troubles: dict[str, str] = {}
        for name, start in starts.items():
            reach = reaches.get(name)
            cut: Standstill | None = None
            if reach is not None:
                reach, cut = self._cuts.check(name, start, self._leader_epochs.get(name), reach)
            if reach is not None:
                reach, text = self._bound(name, start, reach, cut)
                if reach is not None:
                    bounded[name] = reach
            else:
                text = self._troubles.get(name, "")
            if text:
                troubles[name] = text
        self._tell(starts, troubles)
        return bounded

    def rest(self) -> bool:
        """Return whether the input is not to be read at this time of the day."""
        return isinstance(self._positions, Paced) and self._positions.rests()

    def rate(self) -> int:
        """Return the input's limit in bytes per second; 0: none."""
        return self._positions.rate() if isinstance(self._positions, Paced) else 0

    def follow(self, leader_epochs: Mapping[str, int | None]) -> None:
        """Set the leader epochs as of the starts, for this claim; the task updates the mapping."""
        self._leader_epochs = leader_epochs

    def leave_out(self, parts: Parts) -> None:
        """Omit these parts of partitions from the repeated batch, until the claim ends."""
        if parts and isinstance(self._positions, LeavingOut):
            self._positions.leave_out(parts)

    def stop(self, error: UnreadableError) -> None:
        self._reported.append((self._clock(), error))

    def refresh(self, partitions: Collection[str]) -> None:
        """Make ``of`` report ends from after this call."""
        self._positions.refresh(partitions)

    def close(self) -> None:
        self._positions.close()

    def _forget(self, starts: Mapping[str, int]) -> None:
        """Drop foreign partitions, and stops below the ack: at-most-once acks before reading."""
        self._cuts.forget(starts)
        self._waits = {name: wait for name, wait in self._waits.items() if name in starts}
        for name, stop in list(self._stops.items()):
            if stop.offset < starts.get(name, stop.offset + 1):
                del self._stops[name]
                if name in starts and self._acks_first and not stop.given_up:
                    log.error(
                        "partition %s: the event at offset %d is lost, it was acked and then "
                        "could not be read: %s",
                        *(name, stop.offset, stop.why),
                    )

    def _probe_stops(self, reaches: Mapping[str, Reach]) -> None:
        now = self._clock()
        for name, stop in list(self._stops.items()):
            reach = reaches.get(name)
            if reach is not None and reach.gone_from <= stop.offset < reach.gone_below:
                del self._stops[name], self._waits[name]
                self._given_up[name] = replace(stop, given_up=True, probe=None)
                continue
            due = now >= stop.look_at and reach is not None and reach.safe > stop.offset
            probe = stop.probe
            if probe is None and due:
                reach = reaches[name]
                probe = self._positions.probe(name, reach.address, stop.offset, reach.safe)
                self._stops[name] = replace(stop, probe=probe)
            if probe is not None and probe.done():
                self._on_probed(name, stop, probe.exception())

    def _on_probed(self, name: str, stop: _Stop, error: BaseException | None) -> None:
        now = self._clock()
        if error is None:
            del self._stops[name]
            self._waits[name] = _Wait(self._waits[name].seconds, until=now)
        elif isinstance(error, UnavailableError):
            self._note(now, name, stop.offset, stop.why, damaged=stop.damaged)
        else:
            self._note(now, name, stop.offset, str(error) or type(error).__name__, damaged=True)

    def _note(self, now: float, name: str, offset: int, why: str, *, damaged: bool) -> None:
        """Record a stop. Its partition's waits grow: a repaired one may fail again at once."""
        last = self._waits.get(name)
        if last is None or (last.until is not None and now - last.until >= SOUND * last.seconds):
            seconds = LOOK_SECONDS
        else:
            seconds = min(2 * last.seconds, LOOK_MOST_SECONDS)
        self._waits[name] = _Wait(seconds)
        why = textwrap.shorten(why, WHY_CHARACTERS)
        self._stops[name] = _Stop(offset, why, damaged, now + seconds)

    def _bound(
        self, name: str, start: int, reach: Reach, cut: Standstill | None
    ) -> tuple[Reach | None, str]:
        stop = self._stops.get(name)
        end = reach.safe + reach.held
        safe, still = reach.safe, None
        if reach.trouble:
            return None, self._describe(Standstill("nonsense", name, start, start, reach.trouble))
        if end < start:
            return None, self._describe(Standstill("lost", name, end, start))
        if cut is not None:
            safe, still = start, cut
        elif start < reach.floor:
            safe, still = start, Standstill("gone", name, reach.floor, start)
        elif reach.held and (stop is None or reach.safe <= stop.offset):
            safe, still = max(reach.safe, start), Standstill("held", name, reach.safe, start)
        elif stop is not None:
            kind: Kind = "damaged" if stop.damaged else "unanswered"
            safe = min(reach.safe, stop.offset)
            still = Standstill(kind, name, stop.offset, start, stop.why)
        if still is None and start < reach.gone_from:  # first the readable events before it
            held = max(0, end - reach.gone_from)
            return replace(reach, safe=end - held, held=held, gone_below=0, closed=False), ""
        if still is None:
            return reach, ""
        bounded = replace(
            reach,
            safe=safe,
            held=end - safe,
            floor=0,
            closed=False,
            gone_below=min(reach.gone_below, safe),
            repeatable=0,
        )
        return bounded, self._describe(still)

    def _describe(self, still: Standstill) -> str:
        return self._positions.describe(still)

    def _tell(self, starts: Mapping[str, int], troubles: dict[str, str]) -> None:
        for name, text in troubles.items():
            if self._troubles.get(name) != text:
                log.error("%s", text)
        for name in (self._troubles.keys() & starts.keys()) - troubles.keys():
            log.info("reading of partition %s continues at offset %d", name, starts[name])
        self._troubles = troubles


@dataclass(frozen=True)
class _Search:
    start: int
    old: int
    new: int
    result: Future[Gone | None]
    again_at: float


class Cuts:
    def __init__(self, positions: Positions, clock: Callable[[], float]) -> None:
        self._positions = positions
        self._clock = clock
        self._searches: dict[str, _Search] = {}

    def forget(self, kept: Container[str]) -> None:
        self._searches = {name: search for name, search in self._searches.items() if name in kept}

    def check(
        self, name: str, start: int, epoch: int | None, reach: Reach
    ) -> tuple[Reach | None, Standstill | None]:
        """Return the reach, with its truncation if the flow skips one, and why the partition is
        stopped. No reach while unknown. Checks only if events above ``start`` are readable."""
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
        """Return the current search; start one for other arguments, or again after a failure."""
        search = self._searches.get(name)
        current = search is not None and (search.start, search.old, search.new) == (start, old, new)
        if search is None or not current or self._is_due_again(search):
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
