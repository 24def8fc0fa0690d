"""The journals of one task: how far each can be read, and which of them stand still, and why.

Damage in one journal stops that journal only. It is read up to the place, its ack stays there, and
the place is tried again now and then, so that a repair is noticed. The same goes for one that its
server does not send, though it says how far the journal reaches; for one that waits at a loss which
no operator has accepted; and for one whose ack lies outside of what it keeps. Places are tried
beside the batches: nothing here waits for a server.
"""

from __future__ import annotations

import logging
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

from flumeng.collector.fetch import UnreadableError
from flumeng.collector.positions import Reach
from flumeng.errors import UnavailableError
from flumeng.journal.names import node_of

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
LOOK_MOST_SECONDS = 30.0
SOUND = 4
"""A journal that was sound for so many times its last wait waits for the least time again."""
NAMED = 3
"""So many journals are named in a status, the others counted: it must fit into a znode."""
WHY_CHARACTERS = 300


class Reachable(Protocol):
    """The servers of journals; see ``WatchedJournals``. No call waits for one of them."""

    def of(self, journals: Iterable[str]) -> dict[str, Reach]: ...

    def refresh(self, journals: Collection[str]) -> None: ...

    def probe(self, journal: str, address: str, start: int, end: int) -> Future[None]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Stop:
    """A place that could not be read; it is tried again at ``look_at``, and with ``probe``."""

    seq: int
    why: str
    damaged: bool
    look_at: float
    probe: Future[None] | None = None


@dataclass(frozen=True)
class _Wait:
    """How long a journal was left out last; ``until`` is None while it is."""

    seconds: float
    until: float | None = None


class Journals:
    """One for all claims of a task, since what it has learned stays true.

    Called from the task's turns and from the thread that begins a batch, never from both at once
    but for ``stop``. ``clock`` gives seconds that only grow.
    """

    def __init__(self, reachable: Reachable, clock: Callable[[], float] = time.monotonic) -> None:
        self._reachable = reachable
        self._clock = clock
        self._stops: dict[str, _Stop] = {}
        self._waits: dict[str, _Wait] = {}
        self._troubles: dict[str, str] = {}

    @property
    def trouble(self) -> str | None:
        """Which journals stand still, where, why, and what an operator does; None: none."""
        if not self._troubles:
            return None
        said = [text for _, text in sorted(self._troubles.items())]
        more = [f"{len(said) - NAMED} more journals stand still"] if len(said) > NAMED else []
        return "; ".join(said[:NAMED] + more)

    def of(self, starts: Mapping[str, int]) -> dict[str, Reach]:
        """How far each journal can be read that is to be read on from ``starts``.

        Never beyond a place that is known to be unreadable. Lacks those that cannot be reached now,
        and those whose end makes no sense.
        """
        found = self._reachable.of(starts)
        self._forget(starts)
        self._look_again(found)
        bounded: dict[str, Reach] = {}
        troubles: dict[str, str] = {}
        for name, start in starts.items():
            if name in found:
                reach, text = self._bound(name, start, found[name])
                if reach is not None:
                    bounded[name] = reach
            else:
                text = self._troubles.get(name, "")
            if text:
                troubles[name] = text
        self._tell(starts, troubles)
        return bounded

    def stop(self, error: UnreadableError) -> None:
        """A batch has failed there: go no further for now."""
        self._note(error.journal, error.seq, error.why, damaged=error.damaged)

    def refresh(self, journals: Collection[str]) -> None:
        """What ``of`` says of them next is from after this call."""
        self._reachable.refresh(journals)

    def close(self) -> None:
        self._reachable.close()

    def _forget(self, starts: Mapping[str, int]) -> None:
        """What is no longer ours, and what lies behind us: at most once acks before it reads."""
        self._waits = {name: wait for name, wait in self._waits.items() if name in starts}
        for name, stop in list(self._stops.items()):
            if stop.seq < starts.get(name, stop.seq + 1):
                del self._stops[name]
                if name in starts:
                    log.error(
                        "journal %s could not be read at seq %d, which was acked before it was "
                        "read: %s",
                        name,
                        stop.seq,
                        stop.why,
                    )

    def _look_again(self, found: Mapping[str, Reach]) -> None:
        """Try the places that are due, and see what has become of those that were tried."""
        now = self._clock()
        for name, stop in list(self._stops.items()):
            due = now >= stop.look_at and name in found and found[name].safe > stop.seq
            probe = stop.probe
            if probe is None and due:
                reach = found[name]
                probe = self._reachable.probe(name, reach.address, stop.seq, reach.safe)
                self._stops[name] = replace(stop, probe=probe)
            if probe is not None and probe.done():
                self._on_probed(name, stop, probe.exception())

    def _on_probed(self, name: str, stop: _Stop, error: BaseException | None) -> None:
        if error is None:
            del self._stops[name]
            self._waits[name] = _Wait(self._waits[name].seconds, until=self._clock())
        elif isinstance(error, UnavailableError):
            self._note(name, stop.seq, stop.why, damaged=stop.damaged)
        else:
            self._note(name, stop.seq, str(error) or type(error).__name__, damaged=True)

    def _note(self, name: str, seq: int, why: str, *, damaged: bool) -> None:
        """The waits of a journal grow: what was healed may be as bad again at once."""
        now = self._clock()
        last = self._waits.get(name)
        if last is None or (last.until is not None and now - last.until >= SOUND * last.seconds):
            seconds = LOOK_SECONDS
        else:
            seconds = min(2 * last.seconds, LOOK_MOST_SECONDS)
        self._waits[name] = _Wait(seconds)
        why = textwrap.shorten(why, WHY_CHARACTERS)
        self._stops[name] = _Stop(seq, why, damaged, now + seconds)

    def _bound(self, name: str, start: int, reach: Reach) -> tuple[Reach | None, str]:
        """As far as the journal can be read, and what is wrong with it."""
        stop = self._stops.get(name)
        end = reach.safe + reach.held
        node = node_of(name)
        if reach.trouble:
            return None, f"journal {name} stands still: {reach.trouble}"
        if end < start:
            return None, (
                f"journal {name} ends at seq {end}, but {start} is acked: it has lost events that "
                f"were safe; on node {node}: `flumeng journal verify`"
            )
        if start < reach.floor:
            return Reach(reach.address, start, end - start), (
                f"journal {name} keeps nothing below seq {reach.floor}, and only {start} is acked: "
                "its ack was lost, or its oldest segments were; to go on with what is there: "
                "`flumeng ack advance`"
            )
        if reach.held and (stop is None or reach.safe <= stop.seq):
            safe = max(reach.safe, start)
            return Reach(reach.address, safe, end - safe), (
                f"journal {name} stops at seq {reach.safe}, where events are lost, which nobody "
                f"has accepted; on node {node}: `flumeng journal repair --accept-loss`"
            )
        if stop is not None:
            safe = min(reach.safe, stop.seq)
            bounded = Reach(reach.address, safe, end - safe)
            if not stop.damaged:
                return bounded, f"journal {name} waits at seq {stop.seq}: {stop.why}"
            return bounded, (
                f"journal {name} stops at seq {stop.seq}: {stop.why}; on node {node}: `flumeng "
                "journal verify`, then `repair`"
            )
        return reach, ""

    def _tell(self, starts: Mapping[str, int], troubles: dict[str, str]) -> None:
        for name, text in troubles.items():
            if self._troubles.get(name) != text:
                log.error("%s", text)
        for name in (self._troubles.keys() & starts.keys()) - troubles.keys():
            log.info("journal %s is read on from seq %d", name, starts[name])
        self._troubles = troubles
