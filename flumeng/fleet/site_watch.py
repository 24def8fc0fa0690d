"""Asks all sites of an inventory in the background, and keeps the last answer of each. A site that
does not answer delays no other one, and is not asked again before its last attempt has ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flumeng.control.queries import counters, health, journals
from flumeng.control.zookeeper import Store
from flumeng.fleet.inventory import Inventory, Site
from flumeng.fleet.inventory.files import read_inventory
from flumeng.fleet.inventory.rendering import render
from flumeng.fleet.parallel_sites import in_sites
from flumeng.fleet.resources import Resources
from flumeng.fleet.site_copy import copy_site
from flumeng.fleet.site_status import SiteStatus, site_status
from flumeng.platform import processes
from flumeng.platform.errors import FlumengError

log = logging.getLogger(__name__)

SECONDS = 30.0
"""Between two rounds."""
AT_MOST = 16
"""Sites that are asked at once; each asks its nodes."""

Row = Mapping[str, Any]


class SiteWatch:
    """See ``flumeng.console.console.Sites``. Thread-safe. ``clock``: seconds since the epoch."""

    def __init__(
        self,
        directory: Path,
        connect: Callable[[Site], Store],
        clock: Callable[[], float],
        accounts: journals.Ask = journals.ask_worker,
        counts: counters.Ask = counters.ask_worker,
    ) -> None:
        self._directory, self._connect, self._clock = directory, connect, clock
        self._accounts, self._counts = accounts, counts
        self._lock = threading.Lock()
        self._rows: dict[str, Row] = {}
        self._asking: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sites", daemon=True)
        self.problem = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def rows(self) -> Sequence[Row]:
        with self._lock:
            return [*self._rows.values()]

    def ask(self) -> None:
        """Ask each site that is not being asked, and wait for their answers or time limits."""
        try:
            inventory = read_inventory(self._directory)
            wanted = render(inventory)
        except FlumengError as error:
            self.problem = str(error)
            return
        self.problem = ""
        self._keep_only(inventory)
        due = [site for site in inventory.sites.values() if site.name not in self._asking]
        outcomes = in_sites(due, lambda site: self._ask(site, wanted[site.name]), AT_MOST)
        for name, outcome in outcomes.items():
            if isinstance(outcome, FlumengError):
                self._put(SiteStatus(name, str(outcome)))

    def _keep_only(self, inventory: Inventory) -> None:
        waves = {name: wave.name for wave in inventory.waves for name in wave.sites}
        with self._lock:
            self._rows = {
                name: {**self._rows.get(name, _row(SiteStatus(name))), "wave": waves.get(name, "")}
                for name in inventory.sites
            }

    def _ask(self, site: Site, wanted: Resources) -> None:
        """Ask a site, and keep its answer at once, without waiting for others."""
        self._asking.add(site.name)
        try:
            with closing(self._connect(site)) as store:
                copy = copy_site(store)
                state = health.status(copy, self._accounts, self._counts, self._clock())
                status = site_status(site.name, wanted, copy, state, processes.has_ended)
            self._put(status, state)
        finally:
            self._asking.discard(site.name)

    def _put(self, status: SiteStatus, state: Mapping[str, Any] | None = None) -> None:
        """Keep an answer. An error keeps the answer before it, with its time."""
        with self._lock:
            before = self._rows.get(status.site)
            if before is None:
                return  # no longer in the inventory
            if status.error and before["asked"] is not None:
                self._rows[status.site] = {**before, "error": status.error}
                return
            asked = None if status.error else self._clock()
            self._rows[status.site] = {**_row(status, state, asked), "wave": before["wave"]}

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.ask()
            except Exception as error:  # no site may end the thread
                log.exception("the sites could not be asked")
                self.problem = f"{type(error).__name__}: {error}"
            self._stop.wait(SECONDS)


def _row(
    status: SiteStatus, state: Mapping[str, Any] | None = None, asked: float | None = None
) -> Row:
    return {
        **asdict(status),
        "wave": "",
        "asked": asked,
        "reads": state["links"] if state else (),
        "leases": state["leases"] if state else (),
    }
