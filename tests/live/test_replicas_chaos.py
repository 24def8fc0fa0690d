"""A replicated flow at full speed, while its hosts, wires and disks fail in any order.

Protects that every event whose sender was answered is in the lake exactly once, whichever of the
hosts that had it is killed, frozen, cut off or without power (F10 to F14), and that no event is
there twice. ``FLUMENG_REPLICAS_SECONDS`` says for how long, ``FLUMENG_REPLICAS_SEED`` how.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.live.one_host import delivered
from tests.live.replica_hosts import FLOW, PORT, Host, Hosts, can_make_hosts, running
from tests.testkit.certificates import Certificates
from tests.testkit.waiting import wait_for

SECONDS = float(os.environ.get("FLUMENG_REPLICAS_SECONDS", "60"))
SEED = int(os.environ.get("FLUMENG_REPLICAS_SEED", "1"))
BATCH = 100
ANSWER_SECONDS = 10.0

FLOW_TEXT = """
flow: web
sources: [{{http: {{listen: "0.0.0.0:{port}"}}}}]
durability: replicated
replicas: {{copies: {replicas}, min_in_sync: 2}}
delivery: exactly-once
batch: {{seconds: 0.5}}
{more}
sinks: [{{files: {{path: "{lake}"}}}}]
"""

ENCRYPTED = "journal: {encryption: {key: '${secret:journal}'}}"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not can_make_hosts(), reason="hosts need root and ip"),
]


class Sender(threading.Thread):
    """Sends numbered events to one host; each number is sent once and never again."""

    def __init__(self, host: Host, numbers: itertools.count[int]) -> None:
        super().__init__(daemon=True)
        self.answered: list[int] = []
        self.unknown = 0
        self.enough = threading.Event()
        self._host, self._numbers = host, numbers

    def run(self) -> None:
        connection: http.client.HTTPConnection | None = None
        while not self.enough.is_set():
            numbers = [next(self._numbers) for _ in range(BATCH)]
            body = "\n".join(json.dumps({"n": n, "pad": "x" * 80}) for n in numbers)
            try:
                if connection is None:
                    address = self._host.address
                    connection = http.client.HTTPConnection(address, PORT, timeout=ANSWER_SECONDS)
                connection.request("POST", "/", body)
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                self.unknown += BATCH
                if connection is not None:
                    connection.close()
                connection = None
                self.enough.wait(0.2)
                continue
            if answer.status == 200:
                self.answered += numbers
            else:
                self.unknown += BATCH
                self.enough.wait(0.1)


class Trouble:
    """Applies one fault after another to hosts; ``heal`` ends those that last."""

    def __init__(self, hosts: Hosts, rng: random.Random) -> None:
        self.hosts, self.rng = hosts, rng
        self.done: Counter[str] = Counter()
        self._kinds = [
            self._worker_killed,
            self._host_killed,
            self._worker_frozen,
            self._host_frozen,
            self._wires_cut,
            self._cut_one_way,
            self._cut_from_zookeeper,
            self._power_cut,
        ]

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            kinds = self._kinds.copy()
            self.rng.shuffle(kinds)
            for kind in kinds:
                if time.monotonic() < until:
                    self.done[kind.__name__.strip("_")] += 1
                    kind(self.rng.choice(self.hosts.all))
                    time.sleep(self.rng.uniform(1.0, 4.0))

    def _worker_killed(self, host: Host) -> None:
        host.kill_worker()

    def _host_killed(self, host: Host) -> None:
        host.kill()
        time.sleep(self.rng.choice([0.5, 8.0]))
        host.start()

    def _worker_frozen(self, host: Host) -> None:
        pids = host.pause(worker_only=True)
        time.sleep(self.rng.choice([2.0, 8.0]))
        host.resume(pids)

    def _host_frozen(self, host: Host) -> None:
        pids = host.pause()
        time.sleep(self.rng.choice([2.0, 9.0]))
        host.resume(pids)

    def _wires_cut(self, host: Host) -> None:
        for other in self.hosts.all:
            if other is not host:
                host.cut_to(other.address)
                other.cut_to(host.address)
        self._wait_and_heal()

    def _cut_one_way(self, host: Host) -> None:
        others = [other for other in self.hosts.all if other is not host]
        host.cut_to(self.rng.choice(others).address)
        self._wait_and_heal()

    def _cut_from_zookeeper(self, host: Host) -> None:
        host.cut_to(self.hosts.address)
        self._wait_and_heal()

    def _power_cut(self, host: Host) -> None:
        host.lose_power(self.rng)
        time.sleep(self.rng.choice([0.0, 8.0]))
        host.start()

    def _wait_and_heal(self) -> None:
        time.sleep(self.rng.choice([2.0, 9.0]))
        for host in self.hosts.all:
            host.heal()


def lake_of(folder: Path) -> Counter[int]:
    files = delivered(folder)
    if not files:
        return Counter()
    bodies = ds.dataset(files).to_table(columns=["body"])["body"].to_pylist()
    return Counter(json.loads(body)["n"] for body in bodies)


@pytest.mark.parametrize(("replicas", "secured"), [(2, True), (3, False)], ids=["2-secured", "3"])
def test_every_answered_event_is_in_the_lake_once(
    tmp_path: Path, certificates: Certificates, replicas: int, secured: bool
) -> None:
    """In a secured cluster, with encrypted events, and in an open one."""
    rng = random.Random(SEED)
    with running(tmp_path, certificates=certificates if secured else None) as hosts:
        flow = tmp_path / "web.yaml"
        more = ENCRYPTED if secured else ""
        lake = tmp_path / "lake"
        flow.write_text(FLOW_TEXT.format(port=PORT, lake=lake, replicas=replicas, more=more))
        hosts.command("cluster", "set", "grace_seconds", "1")
        for host in hosts.all:
            host.give_key("5c" * 32)
            host.start()
        hosts.collect()
        assert "revision 1" in hosts.command("flow", "apply", str(flow))
        wait_for(
            lambda: sum(len(j.in_sync) >= 2 for j in hosts.journals.values()) == len(hosts.all),
            "no replicas are in sync",
        )
        numbers = itertools.count()
        senders = [Sender(host, numbers) for host in hosts.all]
        for sender in senders:
            sender.start()
        trouble = Trouble(hosts, rng)
        trouble.run(SECONDS)
        before = [len(sender.answered) for sender in senders]
        wait_for(
            lambda: all(len(s.answered) > n for s, n in zip(senders, before, strict=True)),
            "a host takes nothing any more",
        )
        for sender in senders:
            sender.enough.set()
        for sender in senders:
            sender.join()
        answered = {n for sender in senders for n in sender.answered}
        print(f"{len(answered)} answered, {sum(s.unknown for s in senders)} unknown", trouble.done)
        with contextlib.suppress(AssertionError):
            wait_for(lambda: answered <= lake_of(tmp_path / "lake").keys(), "some are missing")
        try:
            wait_for(hosts.acked, "something is not delivered")
        except AssertionError:
            print(hosts.command("journal", "list"))
            print(hosts.journals)
            raise
        found = lake_of(tmp_path / "lake")
        missing = sorted(answered - found.keys())
        assert not missing, f"{len(missing)} answered events are missing: {missing[:10]}"
        twice = [n for n, times in found.items() if times > 1]
        assert not twice, f"{len(twice)} events are there more than once: {twice[:10]}"
        assert FLOW in hosts.command("flow", "list")
