"""The promise between sites: whatever is killed or cut, each event that the source has accepted is
in the other site's lake exactly once.

``FLUMENG_RELAY_EVENTS`` events are sent, a million in the long run of CI, and the killing goes on
until then. ``FLUMENG_CHAOS_SEED`` says how.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.chaos import chaos_seed
from tests.live.test_relay import SiteCluster
from tests.testkit.cluster import acks_of
from tests.testkit.waiting import wait_for
from tests.testkit.wide_link import WideLink

EVENTS = int(os.environ.get("FLUMENG_RELAY_EVENTS", "20000"))
BATCH = 100
ANSWER_SECONDS = 20.0
THROTTLED_BYTES = 200_000.0
STRIKES_AT_LEAST = 20
SENDING_SECONDS = 150.0
"""Pauses of the sender in all: it sends while things are killed."""
FLAPS = 5
NYC = ("node", "collector", "master", "zookeeper")
FRA = (*NYC, "ingest", "gateway")
REST_SECONDS = (1.0, 4.0)
FLUSH_SECONDS = 600.0
WEB = """
flow: web
sources: [{{http: {{listen: "127.0.0.1:{port}"}}}}]
journal: {{max_bytes: 4294967296}}
sinks: [noop]
"""
COPY = """
flow: copy
sources: [{{flow: {{site: fra, name: web, discovery_seconds: 0.5}}}}]
delivery: exactly-once
batch: {{seconds: 0.3, events: 20000}}
sinks: [{{files: {{path: "{lake}"}}}}]
dead_letters: {{files: {{path: "{dead}", format: json}}}}
"""


class Sender(threading.Thread):
    """Sends each number once. ``answered``: accepted; of ``unknown`` ones the answer is lost."""

    def __init__(self, port: int, events: int, pause_seconds: float) -> None:
        super().__init__(name="sender", daemon=True)
        self.answered: set[int] = set()
        self.unknown: set[int] = set()
        self._port, self._events, self._pause_seconds = port, events, pause_seconds

    def run(self) -> None:
        number = 0
        while len(self.answered) < self._events:
            numbers = range(number, number + BATCH)
            number += BATCH
            body = "\n".join(f"tcp={n} {'x' * 120}" for n in numbers)
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS)
            try:
                connection.request("POST", "/", body)
                accepted = connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                accepted = False
            finally:
                connection.close()
            (self.answered if accepted else self.unknown).update(numbers)
            time.sleep(self._pause_seconds if accepted else 0.3)


class Chaos:
    """``fra`` is read by ``nyc`` over ``link``. ``done`` counts what was done to them."""

    def __init__(self, fra: SiteCluster, nyc: SiteCluster, link: WideLink, seed: int) -> None:
        self.fra, self.nyc, self.link = fra, nyc, link
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self._strikes: dict[str, Callable[[], None]] = {
            f"{site.name} {kind}": partial(self._kill, site, kind)
            for site, kinds in ((fra, FRA), (nyc, NYC))
            for kind in kinds
        }
        self._strikes |= {
            "link cut": partial(self._spoil, link.cut),
            "link flapping": self._flap,
            "link frozen": partial(self._spoil, link.freeze),
            "link one-way": partial(self._spoil, partial(link.freeze, answers_only=True)),
            "link slow": partial(self._spoil, partial(link.throttle, THROTTLED_BYTES)),
        }

    def run(self, enough: Callable[[], bool]) -> None:
        """Strike in random order, each kind as often, until ``enough``."""
        left: list[str] = []
        while not enough():
            if not left:
                left = list(self._strikes)
                self.chance.shuffle(left)
            what = left.pop()
            self._strikes[what]()
            self.done[what] += 1
            time.sleep(self.chance.uniform(*REST_SECONDS))
        self.link.heal()

    def _kill(self, site: SiteCluster, kind: str) -> None:
        if site.kill(kind):
            time.sleep(self.chance.uniform(0.0, 1.0))
            if kind in ("node", "master", "zookeeper"):
                site.start(kind)

    def _flap(self) -> None:
        for _ in range(FLAPS):
            self.link.reset()
            time.sleep(1.0)

    def _spoil(self, spoil: Callable[[], None]) -> None:
        spoil()
        time.sleep(self.chance.uniform(1.0, 8.0))
        self.link.heal()


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[Chaos]:
    fra, nyc = SiteCluster(tmp_path / "fra", "fra"), SiteCluster(tmp_path / "nyc", "nyc")
    with contextlib.ExitStack() as stack:
        link = WideLink(fra.gateways)
        stack.callback(link.close)
        for site in (fra, nyc):
            site.start_all()
            stack.callback(site.stop)
            site.start("gateway node")
            with contextlib.closing(connect(site.hosts)) as store:
                name_cluster(Operator(store, "test", "", 0.0), site.name)
        apply(fra, WEB.format(port=fra.syslog_port))
        with contextlib.closing(connect(nyc.hosts)) as store:
            add_site(Operator(store, "test", "", 0.0), "fra", link.proxies, "")
        wait_for(lambda: fra.listens(fra.syslog_port), "no source", seconds=120)
        apply(nyc, COPY.format(lake=nyc.lake, dead=nyc.dead))
        yield Chaos(fra, nyc, link, chaos_seed())


def apply(site: SiteCluster, text: str) -> None:
    with contextlib.closing(connect(site.hosts)) as store:
        apply_flow(Operator(store, "test", "", 0.0), text)


def acks(site: SiteCluster, flow: str, cursor: str = "main") -> Mapping[str, int]:
    with contextlib.closing(connect(site.hosts)) as store:
        return acks_of(store, flow, cursor)


@pytest.mark.long
def test_each_accepted_event_is_in_the_other_sites_lake_once(chaos: Chaos) -> None:
    began = time.monotonic()
    sender = Sender(chaos.fra.syslog_port, EVENTS, SENDING_SECONDS * BATCH / EVENTS)
    sender.start()
    wait_for(lambda: bool(chaos.nyc.copied()), "nothing arrives", seconds=300)
    chaos.run(lambda: not sender.is_alive() and chaos.done.total() >= STRIKES_AT_LEAST)
    sender.join()
    wait_for(
        lambda: sender.answered <= chaos.nyc.copied().keys(),
        lambda: (
            f"{len(sender.answered - chaos.nyc.copied().keys())} are missing: "
            f"{chaos.nyc.command('status')}"
        ),
        seconds=FLUSH_SECONDS,
        pause_seconds=1.0,
    )
    wait_for(
        lambda: (
            sum(acks(chaos.fra, "web").values()) == sum(acks(chaos.fra, "web", "nyc:copy").values())
        ),
        "the lease does not follow the acks",
        seconds=FLUSH_SECONDS,
        pause_seconds=1.0,
    )
    found = chaos.nyc.copied()
    print(
        f"{len(sender.answered)} accepted, {len(sender.unknown)} unknown, "
        f"{len(found.keys() & sender.unknown)} of them accepted; {chaos.done.total()} strikes in "
        f"{time.monotonic() - began:.0f} s, {chaos.link.carried} bytes over the link: {chaos.done}"
    )
    twice = [number for number, times in found.items() if times > 1]
    assert not twice, f"{len(twice)} events are there more than once: {twice[:10]}"
    assert found.keys() <= sender.answered | sender.unknown
    letters = list(chaos.nyc.dead.rglob("*.json.zst"))
    assert not letters, f"events were given up: {letters}"
