"""The promise between sites: whatever is killed or cut, each event that the source has accepted is
in the other site's lake exactly once, also over takeovers of replicated journals at the source.

``FLUMENG_RELAY_EVENTS`` events are sent at least, and the killing goes on until then.
``FLUMENG_CHAOS_SEED`` says how.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.errors import FlumengError
from tests.live.chaos import chaos_seconds, chaos_seed
from tests.live.replica_hosts import PORT, can_make_hosts, running
from tests.live.test_relay import SiteCluster
from tests.live.test_replicas_chaos import Sender as HostSender
from tests.live.test_replicas_chaos import Trouble, lake_of
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
TAKEOVER_SECONDS = 60.0
FLAPS = 5
NYC = ("node", "collector", "master", "zookeeper")
FRA = (*NYC, "ingest", "gateway")
REST_SECONDS = (1.0, 4.0)
PROGRESS_SECONDS = 90.0
LOOK_SECONDS = 0.5
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

REPLICATED = """
flow: web
sources: [{{http: {{listen: "0.0.0.0:{port}"}}}}]
durability: replicated
replicas: {{copies: 2, min_in_sync: 2}}
sinks: [noop]
"""


class Sender(threading.Thread):
    """Sends each number once: at least ``events``, and until ``enough``. ``answered``: accepted; of
    ``unknown`` ones the answer is lost."""

    def __init__(self, port: int, events: int, pause_seconds: float) -> None:
        super().__init__(name="sender", daemon=True)
        self.answered: set[int] = set()
        self.unknown: set[int] = set()
        self.enough = threading.Event()
        self._port, self._events, self._pause_seconds = port, events, pause_seconds

    def run(self) -> None:
        number = 0
        while len(self.answered) < self._events or not self.enough.is_set():
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
    """Kills processes of ``reader``, of its source unless that is None, and spoils ``link``.
    ``done`` counts what was done."""

    def __init__(
        self, reader: SiteCluster, source: SiteCluster | None, link: WideLink, seed: int
    ) -> None:
        self.link, self.chance = link, random.Random(seed)
        self._reader = reader
        killed = {reader: NYC} | ({source: FRA} if source else {})
        self.done: Counter[str] = Counter()
        self._left: list[str] = []
        self._strikes: dict[str, Callable[[], None]] = {
            f"{site.name} {kind}": partial(self._kill, site, kind)
            for site, kinds in killed.items()
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
        while not enough():
            self.strike()

    def strike(self) -> None:
        """Do the next thing; all in random order, each as often."""
        if not self._left:
            self._left = list(self._strikes)
            self.chance.shuffle(self._left)
        what = self._left.pop()
        self._strikes[what]()
        self.done[what] += 1
        time.sleep(self.chance.uniform(*REST_SECONDS))
        self._see_progress()

    def _see_progress(self) -> None:
        """Return when events have arrived: collectors may start more slowly than kills come."""
        before, until = self._acked(), time.monotonic() + PROGRESS_SECONDS
        while time.monotonic() < until and self._acked() in (before, None):
            time.sleep(LOOK_SECONDS)

    def _acked(self) -> Mapping[str, int] | None:
        with contextlib.suppress(FlumengError):
            return acks(self._reader, "copy")
        return None

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
def nyc(tmp_path: Path) -> Iterator[SiteCluster]:
    site = SiteCluster(tmp_path / "nyc", "nyc")
    with contextlib.ExitStack() as stack:
        site.start_all()
        stack.callback(site.stop)
        site.start("gateway node")
        with contextlib.closing(connect(site.hosts)) as store:
            name_cluster(Operator(store, "test", "", 0.0), site.name)
        yield site


@pytest.fixture
def fra(tmp_path: Path) -> Iterator[SiteCluster]:
    site = SiteCluster(tmp_path / "fra", "fra")
    with contextlib.ExitStack() as stack:
        site.start_all()
        stack.callback(site.stop)
        site.start("gateway node")
        with contextlib.closing(connect(site.hosts)) as store:
            name_cluster(Operator(store, "test", "", 0.0), site.name)
        apply(site, WEB.format(port=site.syslog_port))
        wait_for(lambda: site.listens(site.syslog_port), "no source", seconds=120)
        yield site


@contextlib.contextmanager
def linked(nyc: SiteCluster, gateways: Sequence[str]) -> Iterator[WideLink]:
    """The link from ``nyc`` to gateways of ``fra``, and the flow that reads over it."""
    with contextlib.closing(WideLink(gateways)) as link:
        with contextlib.closing(connect(nyc.hosts)) as store:
            add_site(Operator(store, "test", "", 0.0), "fra", link.proxies, "")
        apply(nyc, COPY.format(lake=nyc.lake, dead=nyc.dead))
        yield link


def apply(site: SiteCluster, text: str) -> None:
    with contextlib.closing(connect(site.hosts)) as store:
        apply_flow(Operator(store, "test", "", 0.0), text)


def acks(site: SiteCluster, flow: str, cursor: str = "main") -> Mapping[str, int]:
    with contextlib.closing(connect(site.hosts)) as store:
        return acks_of(store, flow, cursor)


@pytest.mark.long
def test_each_accepted_event_is_in_the_other_sites_lake_once(
    fra: SiteCluster, nyc: SiteCluster
) -> None:
    began = time.monotonic()
    with linked(nyc, fra.gateways) as link:
        chaos = Chaos(nyc, fra, link, chaos_seed())
        sender = Sender(fra.syslog_port, EVENTS, SENDING_SECONDS * BATCH / EVENTS)
        sender.start()
        wait_for(lambda: bool(nyc.copied()), "nothing arrives", seconds=300)
        chaos.run(lambda: len(sender.answered) >= EVENTS and chaos.done.total() >= STRIKES_AT_LEAST)
        sender.enough.set()
        sender.join()
        wait_for(
            lambda: sender.answered <= nyc.copied().keys(),
            lambda: (
                f"{len(sender.answered - nyc.copied().keys())} are missing: {nyc.command('status')}"
            ),
            seconds=FLUSH_SECONDS,
            pause_seconds=1.0,
        )
        wait_for(
            lambda: sum(acks(fra, "web").values()) == sum(acks(fra, "web", "nyc:copy").values()),
            "the lease does not follow the acks",
            seconds=FLUSH_SECONDS,
            pause_seconds=1.0,
        )
        found = nyc.copied()
        print(
            f"{len(sender.answered)} accepted, {len(sender.unknown)} unknown, "
            f"{len(found.keys() & sender.unknown)} of them accepted; {chaos.done.total()} strikes "
            f"in {time.monotonic() - began:.0f} s, {link.carried} bytes carried: {chaos.done}"
        )
    require_once(found, nyc)
    assert found.keys() <= sender.answered | sender.unknown


@pytest.mark.long
@pytest.mark.skipif(not can_make_hosts(), reason="hosts need root and ip")
def test_events_of_replicated_journals_arrive_once_over_takeovers(
    nyc: SiteCluster, tmp_path: Path
) -> None:
    (tmp_path / "hosts").mkdir()
    seed = chaos_seed()
    takeovers: set[tuple[str, int]] = set()
    with running(tmp_path / "hosts") as hosts:
        hosts.command("cluster", "set", "grace_seconds", "1")
        hosts.command("site", "name", "fra")
        for host in hosts.all:
            host.start()
        hosts.collect()
        gateway = f"{hosts.address}:{hosts.start_gateway()}"
        flow = tmp_path / "web.yaml"
        flow.write_text(REPLICATED.format(port=PORT))
        assert "revision 1" in hosts.command("flow", "apply", str(flow))
        wait_for(
            lambda: sum(len(j.in_sync) >= 2 for j in hosts.journals.values()) == len(hosts.all),
            "no replicas are in sync",
        )
        with linked(nyc, [gateway]) as link:
            numbers = itertools.count()
            senders = [HostSender(host, numbers) for host in hosts.all]
            for sender in senders:
                sender.start()
            wait_for(lambda: bool(lake_of(nyc.lake)), "nothing arrives", seconds=300)
            chaos, trouble = Chaos(nyc, None, link, seed), Trouble(hosts, random.Random(seed))
            until = time.monotonic() + max(TAKEOVER_SECONDS, chaos_seconds())
            while time.monotonic() < until:
                trouble.run(10.0)
                chaos.strike()
                chaos.strike()
                takeovers |= {(n, j.term) for n, j in hosts.journals.items() if j.term > 1}
            for sender in senders:
                sender.enough.set()
            for sender in senders:
                sender.join()
            answered = {n for sender in senders for n in sender.answered}
            wait_for(
                lambda: answered <= lake_of(nyc.lake).keys(),
                lambda: (
                    f"{len(answered - lake_of(nyc.lake).keys())} are missing: "
                    f"{nyc.command('status')}"
                ),
                seconds=FLUSH_SECONDS,
                pause_seconds=1.0,
            )
    print(f"{len(answered)} accepted, {len(takeovers)} takeovers: {chaos.done} {trouble.done}")
    assert takeovers
    require_once(lake_of(nyc.lake), nyc)


def require_once(found: Counter[int], site: SiteCluster) -> None:
    twice = [number for number, times in found.items() if times > 1]
    assert not twice, f"{len(twice)} events are there more than once: {twice[:10]}"
    letters = list(site.dead.rglob("*.json.zst"))
    assert not letters, f"events were given up: {letters}"
