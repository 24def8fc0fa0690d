"""A host is restored from a backup of its data directory that was taken while its node ran.

Protects that no event is lost that is answered after that, and that no reader skips one: the
restored journals end before events that readers, or other replicas, have seen of them.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.replica_hosts import PORT, Host, can_make_hosts, running
from tests.live.test_replicas_chaos import lake_of
from tests.live.test_replicas_takeover import Web
from tests.testkit.waiting import wait_for

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not can_make_hosts(), reason="hosts need root and ip"),
]

TEXT = """
flow: {flow}
sources: [{source}]
place: {{ingest: {{labels: {{role: web}}}}}}
durability: disk
delivery: exactly-once
batch: {{seconds: 0.3}}
sinks: [{{files: {{path: "{lake}"}}}}]
"""


class OnDisk(Web):
    """A host without replicas; one flow receives, another reads ``lines``."""

    written = 0

    @property
    def lines(self) -> Path:
        return self.hosts.folder / "lines.log"

    @property
    def lines_lake(self) -> Path:
        return self.hosts.folder / "lines"

    def start_flows(self) -> None:
        self.hosts.command("cluster", "set", "grace_seconds", "1")
        self.first.start("ingest", label="role=web")
        self.lines.touch()
        sources = {
            "web": (f'http: {{listen: "0.0.0.0:{PORT}"}}', self.lake),
            "lines": (f'tail: {{paths: ["{self.lines}"]}}', self.lines_lake),
        }
        for flow, (source, lake) in sources.items():
            file = self.hosts.folder / f"{flow}.yaml"
            file.write_text(TEXT.format(flow=flow, source=f"{{{source}}}", lake=lake))
            assert "revision 1" in self.hosts.command("flow", "apply", str(file))
        wait_for(lambda: listens(self.first), "nothing listens")

    def write_and_send(self, count: int) -> None:
        """As many lines as events."""
        with self.lines.open("a") as file:
            for number in range(self.written, self.written + count):
                file.write(json.dumps({"n": number}) + "\n")
        self.written += count
        send_until_answered(self, count)

    def wait_for_lines(self) -> None:
        """Wait until each line is there; lines after the backup may be there twice."""
        wanted = set(range(self.written))
        wait_for(lambda: lake_of(self.lines_lake).keys() == wanted, "lines are lost")


def listens(host: Host) -> bool:
    try:
        socket.create_connection((host.address, PORT), timeout=1.0).close()
    except OSError:
        return False
    return True


def send_until_answered(web: Web, count: int) -> None:
    """Send with retries: a returned host closes its port once more where it gives a journal up."""
    wait_for(lambda: web.try_to_send(count), "no sender is answered")


def back_up(host: Host) -> Path:
    backup = host.data.with_name("backup")
    shutil.copytree(host.data, backup)
    return backup


def restore(host: Host, backup: Path) -> None:
    host.kill()
    shutil.rmtree(host.data)
    shutil.copytree(backup, host.data)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[OnDisk]:
    with running(tmp_path, 1) as hosts:
        yield OnDisk(hosts)


@pytest.mark.parametrize("silent", [False, True], ids=["", "while ZooKeeper is away"])
def test_restored_host_loses_no_event_that_it_answers(plain: OnDisk, silent: bool) -> None:
    """With the collector on another host, and with events that are answered at once when it is
    back."""
    plain.start_flows()
    plain.hosts.collect()
    plain.write_and_send(1000)
    plain.wait_for_delivery()
    backup = back_up(plain.first)
    plain.write_and_send(1000)
    plain.wait_for_delivery()
    plain.wait_for_lines()
    wait_for(plain.hosts.acked, "what is delivered is not acked")
    restore(plain.first, backup)
    if silent:
        plain.hosts.zookeeper.kill()
    plain.first.start("ingest", label="role=web")
    plain.write_and_send(1000)
    if silent:
        plain.hosts.zookeeper.start()
    plain.wait_for_delivery()
    plain.wait_for_lines()
    wait_for(
        lambda: "takes no more events" in plain.hosts.command("node", "story", "n1"),
        "the story does not tell of the journal that ends",
    )


def test_restored_primary_leaves_the_lead_to_a_replica_with_more_events(tmp_path: Path) -> None:
    """Nothing of it was delivered yet, so that no ack tells how far the journal went."""
    with running(tmp_path, 2) as hosts:
        web = Web(hosts)
        web.begin(least=1)
        web.send(1000)
        backup = back_up(web.first)
        web.send(1000)
        restore(web.first, backup)
        web.first.start("ingest", "replica", label="role=web")
        send_until_answered(web, 1000)
        hosts.collect()
        web.wait_for_delivery()


def test_restored_copy_is_recreated_before_it_counts_as_in_sync(tmp_path: Path) -> None:
    """Its primary knows it as one that has all."""
    with running(tmp_path, 2) as hosts:
        web = Web(hosts)
        web.begin(least=2)
        web.send(1000)
        holder = web.holder
        backup = back_up(holder)
        web.send(1000)
        (name,) = hosts.journals
        before = web.journal.in_sync
        restore(holder, backup)
        holder.start("replica")
        wait_for(lambda: web.journal.in_sync not in (before, before[:1]), "it counts as before")
        web.send(1000)
        web.first.kill()
        wait_for(lambda: hosts.journals[name].closed, "nobody ends the journal")
        web.deliver()
