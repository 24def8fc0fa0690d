"""The same work in many sites at once, each with a limit of its own: a frozen one costs no other.

Nothing here ends a thread: the work of a site that is given up goes on until its own calls end, and
what it brings then is thrown away. Its thread does not keep the process from ending.
"""

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
"""For so long the work of a site holds one of the places; then it goes on beside them."""


def limit_seconds(site: Site) -> float:
    """How long all work in a site may take that is one look at it, or one change of it."""
    return site.connect_seconds + site.turn_seconds


def in_sites(
    sites: Iterable[Site], work: Callable[[Site], R], at_most: int = AT_MOST
) -> dict[str, R | FlumengError]:
    """What the work gave in each site, or why it could not: by name, in the order of ``sites``.

    ``work`` runs in a thread for each site. There are ``at_most`` places to begin in; work that
    lasts longer than ``PLACE_SECONDS`` leaves its place to the next, so that many frozen sites do
    not keep the others waiting. A site has ``limit_seconds`` from when its work begins and is then
    given up with ``UnavailableError``: work that writes must end sooner by itself. An error that is
    no ``FlumengError`` is raised here.
    """
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
            continue  # it was given up before
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
    """Until the next site is late or, when ``more`` wait, until the next place is free."""
    moments = [since + limit_seconds(site) for site, since in begun.values()]
    if more:
        moments += [since + PLACE_SECONDS for _, since in begun.values()]
    return max(0.0, min((one for one in moments if one > now), default=now) - now)
