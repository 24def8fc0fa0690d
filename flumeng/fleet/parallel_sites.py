"""Runs the same work in many sites at once, each with a time limit. Threads are never killed: late
work continues in a daemon thread, and its result is ignored."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from flumeng.fleet.inventory import Site
from flumeng.platform.errors import FlumengError, UnavailableError

R = TypeVar("R")

AT_MOST = 64
PLACE_SECONDS = 1.0
"""Work that takes longer no longer counts towards the limit, so that the next site begins."""


def limit_seconds(site: Site) -> float:
    return site.connect_seconds + site.turn_seconds


def in_sites(
    sites: Iterable[Site], work: Callable[[Site], R], at_most: int = AT_MOST
) -> dict[str, R | FlumengError]:
    """Run ``work`` for ``at_most`` sites at once; return each site's result or error, in order.
    Slow work no longer counts towards ``at_most``, so that frozen sites do not block others. After
    ``limit_seconds`` a site has ``UnavailableError``: work that writes must end earlier by itself.
    Other errors than ``FlumengError`` are raised."""
    order = list(sites)
    waiting = deque(order)
    begun: dict[str, tuple[Site, float]] = {}
    ended: queue.SimpleQueue[tuple[str, R | Exception]] = queue.SimpleQueue()
    outcomes: dict[str, R | FlumengError] = {}
    while waiting or begun:
        now = time.monotonic()
        for name, (site, since) in list(begun.items()):
            if now - since >= limit_seconds(site):
                del begun[name]
                outcomes[name] = UnavailableError(f"no answer within {limit_seconds(site):g} s")
        places = at_most - sum(now - since < PLACE_SECONDS for _, since in begun.values())
        for _ in range(min(places, len(waiting))):
            site = waiting.popleft()
            begun[site.name] = site, now
            threading.Thread(
                target=_work, args=(site, work, ended), name=f"site-{site.name}", daemon=True
            ).start()
        try:
            name, outcome = ended.get(timeout=_seconds_left(begun, now, more=bool(waiting)))
        except queue.Empty:
            continue
        if name not in begun:
            continue  # it was late
        del begun[name]
        if isinstance(outcome, Exception) and not isinstance(outcome, FlumengError):
            raise outcome
        outcomes[name] = outcome
    return {site.name: outcomes[site.name] for site in order}


def _work(
    site: Site, work: Callable[[Site], R], ended: queue.SimpleQueue[tuple[str, R | Exception]]
) -> None:
    try:
        ended.put((site.name, work(site)))
    except Exception as error:
        ended.put((site.name, error))


def _seconds_left(begun: dict[str, tuple[Site, float]], now: float, *, more: bool) -> float:
    """Return the seconds until a site is late or, when ``more`` wait, the next may begin."""
    moments = [since + limit_seconds(site) for site, since in begun.values()]
    if more:
        moments += [since + PLACE_SECONDS for _, since in begun.values()]
    return max(0.0, min((moment for moment in moments if moment > now), default=now) - now)
