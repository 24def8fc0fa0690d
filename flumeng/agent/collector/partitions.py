"""How far each partition of a task can be read, and which are stopped and why.

Damage stops its partition only. It is read up to the place, its ack stays there, and the place is
probed now and then, so that a repair is noticed. The same holds for a partition that its server
does not send, for one with a loss that no operator has accepted, and for one whose ack lies outside
of what it keeps. Probes run beside the batches: nothing here waits for a server.
"""

from __future__ import annotations

import logging
import textwrap
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

from flumeng.agent.collector.cuts import Cuts
from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import (
    Kind,
    LeavingOut,
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
"""A partition that was sound for so many times its last wait waits for the least time again."""
NAMED = 3
"""So many partitions are named in a status, which has to fit into a znode."""
WHY_CHARACTERS = 300


@dataclass(frozen=True)
class _Stop:
    """An unreadable place, probed again at ``look_at``. ``given_up``: its input has gone on behind
    it before."""

    offset: int
    why: str
    damaged: bool
    look_at: float
    probe: Future[None] | None = None
    given_up: bool = False


@dataclass(frozen=True)
class _Wait:
    """How long a partition was left out last; ``until`` is None while it is."""

    seconds: float
    until: float | None = None


class Partitions:
    """One for all claims of a task, since what it has learned stays true.

    Called from the task's turns and from the thread that begins a batch, never from both at once
    but for ``stop``. ``clock`` gives seconds that only grow.
    """

    def __init__(self, positions: Positions, clock: Callable[[], float] = time.monotonic) -> None:
        self._positions = positions
        self._clock = clock
        self._stops: dict[str, _Stop] = {}
        self._given_up: dict[str, _Stop] = {}
        """The last place of a partition behind which its input goes on."""
        self._waits: dict[str, _Wait] = {}
        self._troubles: dict[str, str] = {}
        self._cuts = Cuts(positions, clock)
        self._leader_epochs: Mapping[str, int | None] = {}

    @property
    def trouble(self) -> str | None:
        """The stopped partitions: where, why, and what an operator does. None without any."""
        if not self._troubles:
            return None
        said = [text for _, text in sorted(self._troubles.items())]
        more = [f"{len(said) - NAMED} more partitions stand still"] if len(said) > NAMED else []
        return "; ".join(said[:NAMED] + more)

    def open(self, spec: FlowSpec) -> None:
        """Begin a claim of a revision with ``spec``.

        A place that was given up may not be acked, and its input need not know of it any more. So
        the partition is stopped there again and probed at once: else two damaged partitions would
        make each other's batches fail.
        """
        for name, stop in self._given_up.items():
            self._stops.setdefault(name, replace(stop, look_at=self._clock()))
            self._waits.setdefault(name, _Wait(LOOK_SECONDS))
        self._given_up = {}
        self._leader_epochs = {}
        self._positions.open(spec)

    def of(self, starts: Mapping[str, int]) -> dict[str, Reach]:
        """How far each partition can be read on from ``starts``, never beyond a place known to be
        unreadable.

        Lacks partitions that cannot be reached, whose end makes no sense, or whose new leader is
        still compared.
        """
        found = self._positions.of(starts.keys())
        self._forget(starts)
        self._look_again(found)
        bounded: dict[str, Reach] = {}
        troubles: dict[str, str] = {}
        for name, start in starts.items():
            reach = found.get(name)
            cut: Standstill | None = None
            if reach is not None:
                reach, cut = self._cuts.look(name, start, self._leader_epochs.get(name), reach)
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

    def follow(self, leader_epochs: Mapping[str, int | None]) -> None:
        """Until the claim ends: the leaders that had everything below the starts, kept current by
        the task."""
        self._leader_epochs = leader_epochs

    def leave_out(self, parts: Parts) -> None:
        """Leave these out of the repeated batch, until the claim ends."""
        if parts and isinstance(self._positions, LeavingOut):
            self._positions.leave_out(parts)

    def stop(self, error: UnreadableError) -> None:
        """A batch failed there: go no further for now."""
        self._note(error.partition, error.offset, error.why, damaged=error.damaged)

    def refresh(self, partitions: Collection[str]) -> None:
        """Let ``of`` report ends from after this call."""
        self._positions.refresh(partitions)

    def close(self) -> None:
        self._positions.close()

    def _forget(self, starts: Mapping[str, int]) -> None:
        """Drop partitions of other tasks and places below the ack: at most once acks before it
        reads."""
        self._cuts.forget(starts)
        self._waits = {name: wait for name, wait in self._waits.items() if name in starts}
        for name, stop in list(self._stops.items()):
            if stop.offset < starts.get(name, stop.offset + 1):
                del self._stops[name]
                if name in starts and not stop.given_up:
                    log.error(
                        "partition %s could not be read at %d, which was acked before it was "
                        "read: %s",
                        name,
                        stop.offset,
                        stop.why,
                    )

    def _look_again(self, found: Mapping[str, Reach]) -> None:
        """Probe the places that are due, and take the results."""
        now = self._clock()
        for name, stop in list(self._stops.items()):
            if name in found and found[name].gone_from <= stop.offset < found[name].gone_below:
                del self._stops[name], self._waits[name]
                self._given_up[name] = replace(stop, given_up=True, probe=None)
                continue
            due = now >= stop.look_at and name in found and found[name].safe > stop.offset
            probe = stop.probe
            if probe is None and due:
                reach = found[name]
                probe = self._positions.probe(name, reach.address, stop.offset, reach.safe)
                self._stops[name] = replace(stop, probe=probe)
            if probe is not None and probe.done():
                self._on_probed(name, stop, probe.exception())

    def _on_probed(self, name: str, stop: _Stop, error: BaseException | None) -> None:
        if error is None:
            del self._stops[name]
            self._waits[name] = _Wait(self._waits[name].seconds, until=self._clock())
        elif isinstance(error, UnavailableError):
            self._note(name, stop.offset, stop.why, damaged=stop.damaged)
        else:
            self._note(name, stop.offset, str(error) or type(error).__name__, damaged=True)

    def _note(self, name: str, offset: int, why: str, *, damaged: bool) -> None:
        """The waits of a partition grow: a repaired one may fail again at once."""
        now = self._clock()
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
        """How far the partition can be read, and what is wrong with it."""
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
        if still is None and start < reach.gone_from:  # first what can be read before it
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
            log.info("partition %s is read on from %d", name, starts[name])
        self._troubles = troubles
