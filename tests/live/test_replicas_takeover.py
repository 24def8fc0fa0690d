"""The fate of a replicated journal when its host is gone, has lost its disk, or a replica is
damaged: real hosts, and a collector that delivers all the same.

Protects one by one the cases that ``test_replicas_chaos`` meets by chance only.
"""

from __future__ import annotations

import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flumeng.journal.replication.membership import node_of
from tests.live.replica_hosts import PORT, SESSION_SECONDS, Host, Hosts, can_make_hosts, running
from tests.live.test_replicas_chaos import lake_of
from tests.testkit.waiting import wait_for
from zkschema import paths
from zkschema.records import Journal

TEXT = """
flow: web
sources: [{{http: {{listen: "0.0.0.0:{port}"}}}}]
place: {{ingest: {{labels: {{role: web}}}}}}
durability: replicated
replicas: {{copies: {replicas}, min_in_sync: {least}}}
delivery: exactly-once
batch: {{seconds: 0.3}}
{more}
sinks: [{{files: {{path: "{lake}"}}}}]
"""

pytestmark = pytest.mark.skipif(not can_make_hosts(), reason="hosts need root and ip")


class Web:
    """The first host alone takes events. Each event has the text ``pad``; ``more`` is appended to
    the flow."""

    def __init__(self, hosts: Hosts, *, more: str = "", pad: str = "") -> None:
        self.hosts, self.more, self.pad = hosts, more, pad
        self.lake = hosts.folder / "lake"
        self.sent = 0
        self.unknown: set[int] = set()
        """Events without an answer: they may be there or not."""

    @property
    def first(self) -> Host:
        return self.hosts.all[0]

    def begin(self, least: int = 2, replicas: int = 2) -> None:
        self.hosts.command("cluster", "set", "grace_seconds", "1")
        self.first.start("ingest", "replica", label="role=web")
        for host in self.hosts.all[1:]:
            host.start("replica")
        flow = self.hosts.folder / "web.yaml"
        said = {"least": least, "replicas": replicas, "more": self.more}
        flow.write_text(TEXT.format(port=PORT, lake=self.lake, **said))
        assert "revision 1" in self.hosts.command("flow", "apply", str(flow))
        self.wait_in_sync(replicas)

    def wait_in_sync(self, replicas: int = 2) -> None:
        wait_for(
            lambda: any(len(journal.in_sync) == replicas for journal in self._open),
            "the replicas are not in sync",
        )

    def is_in_sync(self, host: Host) -> bool:
        return host.name in map(node_of, self.journal.in_sync)

    @property
    def journal(self) -> Journal:
        """The journal that takes events."""
        (journal,) = self._open
        return journal

    @property
    def _open(self) -> list[Journal]:
        return [journal for journal in self.hosts.journals.values() if not journal.closed]

    @property
    def holder(self) -> Host:
        """The node with the other replica."""
        other = next(c for c in self.journal.in_sync if not c.startswith("n1/"))
        return next(h for h in self.hosts.all if h.name == other.partition("/")[0])

    def send(self, count: int) -> None:
        """Send and wait for the answers."""
        numbers = range(self.sent, self.sent + count)
        body = "\n".join(json.dumps({"n": n, "pad": self.pad}) for n in numbers)
        connection = http.client.HTTPConnection(self.first.address, PORT, timeout=60)
        connection.request("POST", "/", body)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        self.sent += count

    def try_to_send(self, count: int) -> bool:
        """Send once without a retry; returns whether the events were answered."""
        before = self.sent
        try:
            self.send(count)
        except (AssertionError, OSError, http.client.HTTPException):
            self.unknown.update(range(before, before + count))
            self.sent = before + count
            return False
        return True

    def wait_for_delivery(self) -> None:
        """Wait until each answered event is delivered once, and none twice."""
        answered = dict.fromkeys((n for n in range(self.sent) if n not in self.unknown), 1)

        def delivered() -> bool:
            found = lake_of(self.lake)
            assert not found or max(found.values()) == 1, "some are there twice"
            return {n: count for n, count in found.items() if n not in self.unknown} == answered

        wait_for(delivered, "not each answered event is there once")

    def come_back(self, old: str) -> None:
        """The first host returns: it takes another journal, all is delivered, and the old journal
        is removed everywhere."""
        self.first.start("ingest", "replica", label="role=web")
        wait_for(lambda: len(self.hosts.journals) == 2, "no other journal is made")
        self.wait_in_sync()
        self.send(500)
        self.deliver()
        wait_for(
            lambda: list(self.hosts.journals) != [old] and len(self.hosts.journals) == 1, "it stays"
        )
        lying = [path for host in self.hosts.all for path in host.data.rglob(old)]
        wait_for(lambda: not any(path.exists() for path in lying), f"{lying} stay")

    def deliver(self) -> None:
        self.hosts.collect()
        wanted = dict.fromkeys(range(self.sent), 1)
        wait_for(lambda: lake_of(self.lake) == wanted, "not each answered event is there once")


def damage(segment: Path) -> None:
    """Flip a bit, also while the file is written."""
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with running(tmp_path) as hosts:
        yield Web(hosts)


@pytest.mark.long
def test_journal_of_a_lost_host_is_closed_collected_and_removed(web: Web) -> None:
    """Its journal is led, closed, collected to its end and removed; when the host is back it makes
    another one, and nothing is left of the first."""
    web.begin()
    web.send(1000)
    (old,) = web.hosts.journals
    web.first.kill()
    wait_for(lambda: web.hosts.journals[old].closed, "nobody ends the journal")
    assert web.hosts.journals[old].primary != "n1"
    assert web.hosts.journals[old].end == 1000
    web.come_back(old)


def test_lost_disk_loses_no_event(web: Web) -> None:
    web.begin()
    web.send(1000)
    (old,) = web.hosts.journals
    web.first.kill()
    shutil.rmtree(web.first.data / "journals")
    web.first.start("ingest", "replica", label="role=web")
    wait_for(lambda: web.hosts.journals[old].primary != "n1", "a lost disk leads on")
    web.wait_in_sync()
    web.send(500)
    web.deliver()


@pytest.mark.long
def test_lost_host_of_a_replica_delays_senders_no_longer_than_its_session(web: Web) -> None:
    """And the 2 s or so until another host has a replica, however long the grace period is."""
    web.begin()
    web.send(1000)
    web.hosts.command("cluster", "set", "grace_seconds", "60")
    web.holder.kill()
    began = time.monotonic()
    wait_for(lambda: web.try_to_send(10), "nobody takes events")
    held = time.monotonic() - began
    print(f"senders were held for {held:.1f} s")
    assert held < SESSION_SECONDS + 15
    web.wait_in_sync()
    web.hosts.collect()
    web.wait_for_delivery()


@pytest.mark.long
def test_damaged_replica_is_recreated_from_the_primary(tmp_path: Path) -> None:
    """There is no third host, which would get a replica in its place."""
    with running(tmp_path, 2) as hosts:
        _recreate(Web(hosts))


def _recreate(web: Web) -> None:
    web.begin()
    web.send(1000)
    (name,), holder = web.hosts.journals, web.holder
    before = web.journal.in_sync
    holder.kill()
    (segment,) = (holder.data / "copies" / name).glob("*.segment")
    damage(segment)
    holder.start("replica")
    wait_for(lambda: web.journal.in_sync not in (before, before[:1]), "it is not recreated")
    assert (holder.data / "copies" / f".{name}.damaged").exists()
    web.wait_in_sync()
    web.send(500)
    said = web.hosts.command("journal", "promote", name, "--to", holder.name)
    assert f"{holder.name} is the primary" in said, said
    wait_for(lambda: web.hosts.journals[name].closed, "nobody ends the journal")
    web.deliver()


@pytest.mark.long
def test_replica_with_a_damaged_old_segment_is_recreated_without_a_reader(web: Web) -> None:
    """A worker that starts opens such a replica, and checks all of it."""
    web.begin()
    web.send(1000)
    (name,), holder = web.hosts.journals, web.holder
    web.first.kill_worker()  # each term begins a segment
    wait_for(lambda: web.try_to_send(10), "nobody takes events")
    web.wait_in_sync()
    before = web.journal.in_sync
    first, *later = sorted((holder.data / "copies" / name).glob("*.segment"))
    assert later
    damage(first)
    holder.kill_worker()
    aside = holder.data / "copies" / f".{name}.damaged"
    wait_for(aside.exists, "nobody has looked at it")
    wait_for(lambda: web.journal.in_sync not in (before, before[:1]), "it is not recreated")
    web.wait_in_sync()
    web.first.kill()
    wait_for(lambda: web.hosts.journals[name].primary == holder.name, "it does not lead")
    web.hosts.collect()
    web.wait_for_delivery()


@pytest.mark.long
def test_damaged_primary_hands_over(web: Web) -> None:
    web.begin()
    web.send(1000)
    (name,) = web.hosts.journals
    web.first.kill()
    (segment,) = (web.first.data / "journals" / "0" / name).glob("*.segment")
    damage(segment)
    web.first.start("ingest", "replica", label="role=web")
    wait_for(lambda: web.hosts.journals[name].primary != "n1", "a damaged replica leads on")
    wait_for(lambda: len(web.hosts.journals) == 2, "no other journal is made")
    web.wait_in_sync()
    web.send(500)
    web.deliver()


@pytest.mark.long
def test_damage_of_a_running_primary_hands_over_once_a_reader_meets_it(web: Web) -> None:
    """Senders go on meanwhile; events that were not answered may be there, or not."""
    web.begin()
    web.send(1000)
    (name,), worker = web.hosts.journals, web.first.worker
    folder = web.first.data / "journals" / "0"
    (segment,) = (folder / name).glob("*.segment")
    damage(segment)
    web.send(500)
    assert web.hosts.journals[name].primary == "n1"
    web.hosts.collect()
    wait_for(
        lambda: web.try_to_send(10) and web.hosts.journals[name].primary != "n1",
        "a damaged replica leads on",
    )
    wait_for(lambda: web.try_to_send(10) and len(web.hosts.journals) == 2, "no other is made")
    web.wait_in_sync()
    web.send(500)
    assert web.first.worker == worker, "it was started anew"
    assert (folder / f".{name}.damaged" / segment.name).exists()
    web.wait_for_delivery()
    print(f"{web.sent} events, {len(web.unknown)} of unknown outcome")


@pytest.mark.long
def test_operator_gives_up_events_that_no_replica_in_sync_has(tmp_path: Path) -> None:
    """The replica had left those in sync, and there is no third host; with the operator's word the
    rest is there, and collected."""
    with running(tmp_path, 2) as hosts:
        _give_up(Web(hosts))


def _give_up(web: Web) -> None:
    web.begin(least=1)
    web.send(1000)
    (name,), holder = web.hosts.journals, web.holder
    holder.kill()
    wait_for(lambda: len(web.journal.in_sync) == 1, "it stays in sync")
    web.send(300)
    web.first.kill()
    holder.start("replica")
    live = paths.live_node("n1")
    wait_for(lambda: not web.hosts.store.exists(live), "a host that was killed is live")
    said = web.hosts.command("journal", "promote", name, "--to", holder.name)
    assert "unclean" in said, said
    said = web.hosts.command("journal", "promote", name, "--to", holder.name, "--unclean", "--yes")
    wait_for(lambda: web.hosts.journals[name].closed, f"nobody ends the journal: {said}")
    assert web.hosts.journals[name].end == 1000
    web.sent = 1000
    web.deliver()


@pytest.mark.long
def test_third_replica_leads_when_the_second_primary_dies_before_telling_it(web: Web) -> None:
    """With events that were never answered at the end of each log: the remaining replica leads with
    all of them, though it never learned the begin of the second one's term."""
    web.begin(replicas=3)
    web.send(1000)
    (old,) = web.hosts.journals
    second, third = web.hosts.all[1:]
    second.cut_to(third.address)
    third.cut_to(second.address)
    third.cut_to(web.first.address)
    sending = threading.Thread(target=web.try_to_send, args=(300,))
    sending.start()
    time.sleep(1.0)
    web.first.kill()
    sending.join()
    assert len(web.unknown) == 300
    wait_for(lambda: web.hosts.journals[old].primary != "n1", "nobody leads")
    leads = second if web.hosts.journals[old].primary == second.name else third
    left = third if leads is second else second
    wait_for(lambda: f"journal {old} is primary here: term" in leads.said, "it does not begin")
    leads.kill()
    assert {node_of(replica) for replica in web.hosts.journals[old].in_sync} == {
        leads.name,
        left.name,
    }
    wait_for(lambda: web.hosts.journals[old].primary == left.name, "the last one does not lead")
    second.heal()
    third.heal()
    web.first.start("ingest", "replica", label="role=web")
    leads.start("replica")
    web.wait_in_sync(3)
    web.send(500)
    web.hosts.collect()
    web.wait_for_delivery()
