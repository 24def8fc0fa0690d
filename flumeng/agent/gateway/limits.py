"""Rates and streams of other sites at one gateway. Streams of a site share a token bucket by
priority, and streams of one flow another. Gateways do not share buckets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from flumeng.config.policy import Subscriber
from flumeng.journal.log.errors import ThrottledError
from flumeng.journal.serving.wire import NO_CHOKE, Choke
from flumeng.platform.rate_limit import RateLimit

PATIENCE_SECONDS = 5.0
"""A stream that has waited for so long comes before those of higher priority."""
MOST_SECONDS = 20.0
"""The longest wait of a stream; far readers give up after 30 s without events."""
LOOK_SECONDS = 1.0
KEPT = 1000
"""Sites and flows whose buckets are kept; with more all begin again."""


@dataclass(eq=False)
class _Turn:
    """A stream that waits to send."""

    priority: int
    since: float

    def rank(self, now: float) -> tuple[int, int, float]:
        if now - self.since > PATIENCE_SECONDS:
            return 0, 0, self.since
        return 1, -self.priority, self.since


class _Bucket:
    """A token bucket whose next tokens go to the first of the waiting streams. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._limit = RateLimit(1.0, clock())
        self._free_at = float("-inf")
        self._waiting: list[_Turn] = []

    def take(self, nbytes: int, rate: float, priority: int, ended: threading.Event) -> bool:
        """Wait until ``nbytes`` may be sent at ``rate``. Returns False after ``MOST_SECONDS``, or
        when ``ended`` is set."""
        turn = _Turn(priority, self._clock())
        with self._changed:
            self._waiting.append(turn)
            try:
                while (now := self._clock()) - turn.since < MOST_SECONDS and not ended.is_set():
                    first = min(self._waiting, key=lambda each: each.rank(now))
                    if first is turn and now >= self._free_at:
                        self._limit.rate = rate
                        self._free_at = now + self._limit.take(nbytes, now)
                        return True
                    left = self._free_at - now if first is turn else LOOK_SECONDS
                    self._changed.wait(min(max(left, 0.001), LOOK_SECONDS))
                return False
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()


@dataclass
class _Site:
    """A subscriber's bucket, and its running streams. ``changed`` guards ``streams``."""

    bucket: _Bucket
    changed: threading.Condition = field(default_factory=threading.Condition)
    streams: int = 0


class Limits:
    """The limits of all subscribers of a gateway. Thread-safe. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sites: dict[str, _Site] = {}
        self._flows: dict[tuple[str, str], _Bucket] = {}

    @contextmanager
    def stream(self, site: str, granted: Subscriber, ended: threading.Event) -> Iterator[None]:
        """Hold one of the site's streams; waits for one. Raises ThrottledError."""
        of = self._site(site)
        until = self._clock() + MOST_SECONDS
        with of.changed:
            while granted.streams is not None and of.streams >= granted.streams:
                if ended.is_set() or self._clock() >= until:
                    raise ThrottledError(
                        f"subscriber {site} reads {of.streams} streams at once, as many as the "
                        "gateway's policy file allows (`streams`)"
                    )
                of.changed.wait(LOOK_SECONDS)
            of.streams += 1
        try:
            yield
        finally:
            with of.changed:
                of.streams -= 1
                of.changed.notify_all()

    def take(
        self,
        site: str,
        nbytes: int,
        granted: Subscriber,
        choke: Choke = NO_CHOKE,
        ended: threading.Event | None = None,
    ) -> None:
        """Wait until a stream may send ``nbytes``. Raises ThrottledError after MOST_SECONDS."""
        ended = ended or threading.Event()
        if choke.bytes_per_second:
            bucket = self._flow(site, choke.reader)
            if not bucket.take(nbytes, choke.bytes_per_second, 0, ended):
                raise _late(f"flow {choke.reader} of {site}", choke.bytes_per_second)
        rates = [rate for rate in (granted.bytes_per_second, choke.link_bytes_per_second) if rate]
        if rates and not self._site(site).bucket.take(nbytes, min(rates), choke.priority, ended):
            raise _late(f"site {site}", min(rates))

    def _site(self, name: str) -> _Site:
        with self._lock:
            if len(self._sites) >= KEPT and name not in self._sites:
                self._sites.clear()
            return self._sites.setdefault(name, _Site(_Bucket(self._clock)))

    def _flow(self, site: str, reader: str) -> _Bucket:
        with self._lock:
            if len(self._flows) >= KEPT and (site, reader) not in self._flows:
                self._flows.clear()
            return self._flows.setdefault((site, reader), _Bucket(self._clock))


def lowest_rate(granted: Subscriber, choke: Choke) -> int:
    """Return the lowest rate that limits a stream; 0 without a limit."""
    rates = (granted.bytes_per_second, choke.link_bytes_per_second, choke.bytes_per_second)
    return min(filter(None, rates), default=0)


def _late(who: str, rate: float) -> ThrottledError:
    return ThrottledError(
        f"the limit of {who}, {rate:.0f} bytes/s, is used up by its other streams; reading goes on"
    )
