"""Replicas of journals in a secured cluster: who is to hold one may read who leads it, and who
leads since a promotion may say so, without an administrator.

Protects that replicated journals survive their host where every znode has an access list.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flumeng.control.commands.cluster import verify_cluster
from flumeng.control.zookeeper import AccessStore
from tests.live.one_host import eventually
from tests.live.replica_hosts import can_make_hosts, running
from tests.live.test_replicas_takeover import Web
from tests.testkit.certificates import Certificates
from zkschema import paths

pytestmark = pytest.mark.skipif(not can_make_hosts(), reason="hosts need root and ip")


@pytest.fixture
def web(tmp_path: Path, certificates: Certificates) -> Iterator[Web]:
    with running(tmp_path, certificates=certificates) as hosts:
        yield Web(hosts)


def test_a_host_that_is_gone_loses_nothing_and_comes_back(web: Web) -> None:
    web.begin()
    web.send(1000)
    (old,) = web.hosts.journals
    web.first.kill()
    eventually(lambda: web.hosts.journals[old].closed, "nobody ends the journal")
    leader = web.hosts.journals[old].primary
    assert leader != "n1"
    eventually(lambda: may(web, old)[leader] == "rw", "the leader may not write")
    assert verify_cluster(web.hosts.store) == []
    web.come_back(old)


def may(web: Web, journal: str) -> dict[str, str]:
    """Node -> what it may do with the record of a journal."""
    assert isinstance(web.hosts.store, AccessStore)
    (found,) = web.hosts.store.access_lists([str(paths.journal(journal))])
    prefix = "x509:CN=node:"
    return {
        who.removeprefix(prefix).partition(",")[0]: said
        for who, said in found or ()
        if who.startswith(prefix)
    }
