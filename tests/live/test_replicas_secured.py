"""Replicas of journals in a secured cluster: a host that is to hold one may read the leader's name,
and the leader since a promotion may write its own, without an administrator.

Protects that replicated journals survive their host where every znode has an access list.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flumeng.control.commands.cluster import verify_cluster
from flumeng.control.zookeeper import AccessStore
from tests.live.replica_hosts import can_make_hosts, running
from tests.live.test_replicas_takeover import Web
from tests.testkit.certificates import Certificates
from tests.testkit.waiting import wait_for
from zkschema import paths

pytestmark = pytest.mark.skipif(not can_make_hosts(), reason="hosts need root and ip")


@pytest.fixture
def web(tmp_path: Path, certificates: Certificates) -> Iterator[Web]:
    with running(tmp_path, certificates=certificates) as hosts:
        yield Web(hosts)


@pytest.mark.long
def test_lost_host_loses_no_event_and_comes_back(web: Web) -> None:
    web.begin()
    web.send(1000)
    (old,) = web.hosts.journals
    web.first.kill()
    wait_for(lambda: web.hosts.journals[old].closed, "nobody ends the journal")
    leader = web.hosts.journals[old].primary
    assert leader != "n1"
    wait_for(lambda: may(web, old)[leader] == "rw", "the leader may not write")
    assert verify_cluster(web.hosts.store) == []
    web.come_back(old)


def may(web: Web, journal: str) -> dict[str, str]:
    """Node -> its permissions on the record of a journal."""
    assert isinstance(web.hosts.store, AccessStore)
    (found,) = web.hosts.store.access_lists([str(paths.journal(journal))])
    prefix = "x509:CN=node:"
    return {
        who.removeprefix(prefix).partition(",")[0]: said
        for who, said in found or ()
        if who.startswith(prefix)
    }
