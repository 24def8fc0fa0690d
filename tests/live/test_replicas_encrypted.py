"""A replicated flow whose events are encrypted, and a replica that leads without its key at first.

Protects that answered events are delivered once by the remaining host, as soon as that has the
secret, and that no disk ever has an event in plain text.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from flumeng.journal.log.encryption import Key
from tests.live.replica_hosts import PORT, Host, Hosts, can_make_hosts, running
from tests.live.test_replicas_chaos import lake_of
from tests.live.test_replicas_takeover import Web
from tests.testkit.waiting import wait_for

KEY = "5c" * 31 + "a9"
MARKER = os.urandom(24).hex()

pytestmark = pytest.mark.skipif(not can_make_hosts(), reason="hosts need root and ip")


def nothing_is_in_plain_text(hosts: Hosts) -> None:
    """No block of a replica's disk has plain text, not even free blocks; no file of another process
    either, except the lake."""
    os.sync()
    disks = [host.power.place.with_name("disk") for host in hosts.all]
    others = [path for path in hosts.folder.iterdir() if path.name != "lake"]
    own = [path for path in others if not path.name.startswith(("power", "secrets"))]
    for text in (MARKER, KEY):
        found = subprocess.run(
            ["grep", "-rlaF", "-e", text, *disks, *own], capture_output=True, text=True, check=False
        )
        assert found.returncode == 1, found.stdout + found.stderr


@pytest.mark.long
def test_encrypted_events_are_delivered_by_the_replica_once_its_key_is_there(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as hosts:
        _take_over(Web(hosts, more="journal: {encryption: {key: '${secret:journal}'}}", pad=MARKER))


def _take_over(web: Web) -> None:
    hosts = web.hosts
    web.first.give_key(KEY)
    web.begin()
    web.send(1000)
    _restart_worker(web)
    web.send(1000)
    web.wait_in_sync()
    (old,), holder = hosts.journals, web.holder
    (kept,) = (holder.data / "copies").iterdir()
    assert list(kept.glob("*.segment"))
    nothing_is_in_plain_text(hosts)
    web.first.kill()
    wait_for(lambda: hosts.journals[old].closed, "nobody ends the journal")
    assert (hosts.journals[old].primary, hosts.journals[old].end) == (holder.name, 2000)

    hosts.collect()
    _wait_for_the_key(web, old, holder, "there is no secret journal: set FLUMENG_SECRET_JOURNAL")
    holder.give_key("6d" * 32)
    other = Key.parse("6d" * 32, "").id
    _wait_for_the_key(web, old, holder, f"${{secret:journal}} is key {other}")
    nothing_is_in_plain_text(hosts)

    holder.give_key(KEY)
    web.deliver()
    wait_for(lambda: hosts.journals[old].gone, "it stays, though nobody needs it")
    wait_for(lambda: not kept.exists(), "its events stay")
    assert "readers wait" not in hosts.command("status")
    nothing_is_in_plain_text(hosts)


def _restart_worker(web: Web) -> None:
    (name,), term = web.hosts.journals, web.journal.term
    web.first.kill_worker()
    wait_for(lambda: web.hosts.journals[name].term > term, "no worker begins again")
    wait_for(lambda: _listens(web.first), "nobody listens")


def _listens(host: Host) -> bool:
    try:
        socket.create_connection((host.address, PORT), timeout=1.0).close()
    except OSError:
        return False
    return True


def _wait_for_the_key(web: Web, journal: str, holder: Host, why: str) -> None:
    key = Key.parse(KEY, "").id
    said = f"readers wait, since key {key} is not on this node: {why}"
    sentence = f"node {holder.name}: journal {journal}: {said}"
    wait_for(lambda: sentence in web.hosts.command("status"), web.hosts.command("status"))
    assert f"closed: {said}" in web.hosts.command("journal", "list")
    assert not lake_of(web.lake)
