"""Notes what discovery learns of a link in ``/flows/FLOW/link``, for ``flumeng status``. It writes
only news, and the time of the last renewal now and then."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from flumeng.config.component import RemoteFlow
from flumeng.connectors.sites.gateways import SilentError
from flumeng.control.commands.lease_breaks import link_of
from flumeng.control.zookeeper import ABSENT, Store
from flumeng.journal.serving.gateway_wire import Broken, LeaseAnswer
from flumeng.platform.errors import FlumengError
from flumeng.platform.metrics import table
from flumeng.platform.metrics.table import Reading
from zkschema import paths
from zkschema.records import Break, Gap, Link

SLOW_SECONDS = 2.0
"""A link counts as slow from this mean time of answers on, until it is half as long."""
UNSTEADY_SECONDS = 120.0
KEPT_WEIGHT = 0.7
KEPT_DOWNS = 20
WHY_CHARACTERS = 600
SHARES = (0.5, 0.8, 1.0)
UNCOUNTED = "the lease had ended, and the site has no record of it"


class LinkNotes:
    """The notes of one flow. One thread at a time writes them. ``wall``: epoch seconds."""

    def __init__(
        self,
        store: Store,
        flow: str,
        remote: RemoteFlow,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._flow = flow
        self._remote = remote
        self._wall = wall
        self._clock = clock
        self._mean_seconds = 0.0
        self._downs = 0
        self.ahead_seconds = 0.0
        """By how much the site's clocks are ahead of those here."""
        self._renewed_at = clock()
        self._last: Link | None = None

    @property
    def unsteady(self) -> bool:
        """Whether the link was down lately: then it is looked at more often, to see it flap."""
        downs = self._last.downs if self._last else ()
        return bool(downs) and 0 <= self._wall() - downs[-1] < UNSTEADY_SECONDS

    def renewed(self, renew: Callable[[], LeaseAnswer]) -> LeaseAnswer:
        """Renew the lease by ``renew``, whose errors go through, and note the answer."""
        began = self._clock()
        answer = renew()
        seconds = self._clock() - began
        if answer.time:
            self.ahead_seconds = answer.time + seconds / 2 - self._wall()
        mean = KEPT_WEIGHT * self._mean_seconds + (1 - KEPT_WEIGHT) * seconds
        self._mean_seconds = mean if self._mean_seconds else seconds
        self._renewed_at = self._clock()
        self._note(lambda link, now: answered(link, answer, self._mean_seconds, now))
        return answer

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an error as the reason for which the link is down."""
        try:
            yield
        except FlumengError as error:
            why, silent = str(error), isinstance(error, SilentError)
            self._note(lambda link, now: failed(link, why, now, silent=silent))
            raise

    def readings(self) -> Iterator[Reading]:
        """Yield the link's metrics. Thread-safe."""
        link, labels = self._last, (self._remote.site, self._flow)
        if link is None:
            return
        silent = self._clock() - self._renewed_at
        lost = link.broke.events if link.broke and link.broke.id != link.acknowledged else 0
        yield table.LINK_UP.of(not link.down_since, *labels)
        yield table.LINK_DOWNS.of(self._downs, *labels)
        yield table.LINK_ANSWER_SECONDS.of(self._mean_seconds, *labels)
        yield table.LINK_TIME.of(silent / link.keep_seconds, *labels)
        yield table.LINK_ROOM.of(link.room, *labels)
        yield table.LINK_LOST.of(lost, *labels)

    def _note(self, change: Callable[[Link, float], Link]) -> None:
        """Write the changed notes, if that is due. An error is left to the next search."""
        with suppress(FlumengError):
            found = link_of(self._store, self._flow)
            remote = self._remote
            blank = Link(site=remote.site, source=remote.flow, keep_seconds=remote.keep_seconds)
            before = found.value if found else blank
            current = replace(
                before, site=remote.site, source=remote.flow, keep_seconds=remote.keep_seconds
            )
            after = change(current, self._wall())
            self._downs += bool(after.down_since and not before.down_since)
            self._last = after
            if found is None or after != before:
                expect = found.version if found else ABSENT
                self._store.write(paths.link(self._flow), after, expect)


def failed(link: Link, why: str, now: float, *, silent: bool = False) -> Link:
    """Return the notes after a failure. A changed reason is noted, the same one not again."""
    link = replace(link, why=textwrap.shorten(why, WHY_CHARACTERS), silent=silent)
    if link.down_since:
        return link
    return replace(link, down_since=now, downs=(*link.downs, now)[-KEPT_DOWNS:])


def answered(link: Link, answer: LeaseAnswer, mean_seconds: float, now: float) -> Link:
    """Return the notes after a renewal. Only the time of renewal and the amounts may be old."""
    slow = mean_seconds >= (SLOW_SECONDS / 2 if link.answer_seconds else SLOW_SECONDS)
    after = replace(
        link,
        down_since=0.0,
        silent=False,
        answer_seconds=(link.answer_seconds or round(mean_seconds, 1)) if slow else 0.0,
        broke=_broke(link, answer, now),
    )
    stale = not 0 <= now - link.renewed < stale_seconds(link.keep_seconds)
    if after == link and not stale and _reached(link.room) == _reached(answer.room):
        return link
    return replace(
        after, renewed=now, room=round(answer.room, 4), events=answer.events, bytes=answer.bytes
    )


def stale_seconds(keep_seconds: float) -> float:
    """Return how old the noted time of renewal may be."""
    return max(10.0, min(300.0, keep_seconds / 100))


def _reached(share: float) -> int:
    return sum(share >= least for least in SHARES)


def _broke(link: Link, answer: LeaseAnswer, now: float) -> Break | None:
    told = answer.broke
    if told is None and answer.ended:
        told = Broken(answer.id, UNCOUNTED, 0.0, 0, at_least=True)
    if told is None or (link.broke is not None and link.broke.id == told.id):
        return link.broke
    return Break(
        id=told.id,
        reader="",
        why=told.why,
        time=now - told.seconds_ago,
        events=told.events,
        gaps=tuple(Gap(journal=name, start=start, end=end) for name, start, end in told.gaps),
        at_least=told.at_least,
    )
