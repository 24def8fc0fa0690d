"""The fate of replicated journals when ZooKeeper was lost and an export is imported in its place,
while their nodes run on.

Protects that no replica is removed because an older export does not know its journal, and that
journals go on under records that were recreated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.replica_hosts import can_make_hosts, running
from tests.live.test_replicas_takeover import Web
from tests.testkit.certificates import Certificates
from tests.testkit.waiting import wait_for

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not can_make_hosts(), reason="hosts need root and ip"),
]


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with running(tmp_path) as hosts:
        yield Web(hosts)


def export(web: Web, *, without: str = "") -> Path:
    """Export as ``schema export`` does, or as before that journal was created."""
    document = json.loads(web.hosts.command("schema", "export"))
    znodes = document["znodes"]
    document["znodes"] = {k: v for k, v in znodes.items() if not without or without not in k}
    file = web.hosts.folder / "export.json"
    file.write_text(json.dumps(document))
    return file


def replace_tree(web: Web, file: Path) -> None:
    """Replace ZooKeeper's tree by the content of the export."""
    web.hosts.lose_zookeeper()
    said = web.hosts.command("schema", "import", str(file))
    assert "imported" in said, said


def test_journals_continue_after_an_import_while_their_nodes_run(web: Web) -> None:
    """A replica that is frozen then leaves those in sync, and joins again."""
    web.begin(least=1)
    web.hosts.collect()
    web.send(1000)
    web.wait_for_delivery()
    wait_for(web.hosts.acked, "what is delivered is not acked")
    (name,), holder = web.hosts.journals, web.holder
    term = web.journal.term
    replace_tree(web, export(web))
    wait_for(lambda: web.journal.term > term, "nobody leads under the new record")
    web.send(500)
    frozen = holder.pause()
    wait_for(
        lambda: web.try_to_send(100) and not web.is_in_sync(holder),
        "a replica that is frozen is waited for",
    )
    holder.resume(frozen)
    web.wait_in_sync()
    web.wait_for_delivery()
    assert list(web.hosts.journals) == [name]


def test_replicas_of_a_journal_missing_in_the_import_are_kept_and_collected(
    tmp_path: Path, certificates: Certificates
) -> None:
    """The host that had made it is gone for good; with the operator's word a replica leads. In a
    secured cluster, where the record that is recreated needs its access list too."""
    with running(tmp_path, certificates=certificates) as hosts:
        _collect_what_is_left(Web(hosts))


def _collect_what_is_left(web: Web) -> None:
    web.begin()
    web.send(1000)
    (name,), holder = web.hosts.journals, web.holder
    file = export(web, without=name)
    web.first.kill()
    replace_tree(web, file)
    wait_for(lambda: f"({name})" in web.hosts.command("status"), "nobody says what is kept")
    said = web.hosts.command("journal", "promote", name, "--to", holder.name, "--unclean")
    assert "reaches up to seq 1000" in said, said
    web.hosts.command("journal", "promote", name, "--to", holder.name, "--unclean", "--yes")
    web.deliver()
    wait_for(lambda: not (holder.data / "copies" / name).exists(), "it stays")
    assert name not in web.hosts.command("status")


def test_replica_that_left_does_not_lead_though_the_import_lists_it_in_sync(tmp_path: Path) -> None:
    """The host that leads is the last to be live again, so that masters look for another one."""
    with running(tmp_path, 2) as hosts:
        _lead_with_less(Web(hosts))


def _lead_with_less(web: Web) -> None:
    web.begin(least=1)
    web.send(1000)
    (name,), holder = web.hosts.journals, web.holder
    file = export(web)
    away = holder.pause()
    wait_for(
        lambda: web.try_to_send(100) and not web.is_in_sync(holder),
        "a replica that is frozen is waited for",
    )
    web.send(300)
    frozen = web.first.pause()
    replace_tree(web, file)
    holder.resume(away)
    wait_for(lambda: holder.name in web.hosts.live, "the host of the replica is not live")
    time.sleep(5.0)
    assert web.hosts.journals[name].primary == "n1", "a replica leads that lacks answered events"
    web.first.resume(frozen)
    web.wait_in_sync()
    web.hosts.collect()
    web.wait_for_delivery()


def test_journal_given_up_by_its_recorded_host_is_collected_elsewhere(tmp_path: Path) -> None:
    """That host is live, and reports that it has the journal no more."""
    with running(tmp_path, 2) as hosts:
        _collect_what_was_given_up(Web(hosts))


def _collect_what_was_given_up(web: Web) -> None:
    web.begin()
    web.send(1000)
    (name,), holder = web.hosts.journals, web.holder
    file = export(web)
    web.first.kill()
    wait_for(lambda: web.hosts.journals[name].closed, "nobody ends the journal")
    web.first.start("ingest", "replica", label="role=web")
    given_up = web.first.data / "journals" / "0" / name
    wait_for(lambda: not given_up.exists() and len(web.hosts.journals) == 2, "it is kept")
    web.wait_in_sync()
    replace_tree(web, file)
    wait_for(lambda: "is damaged or lost" in web.hosts.command("status"), "nobody says so")
    said = web.hosts.command("journal", "promote", name, "--to", holder.name, "--unclean", "--yes")
    assert "in a new lineage" in said, said
    web.deliver()
