"""``flumeng cursor``, and links and leases in ``status``, ``top`` and ``flow lag``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.zookeeper import ABSENT
from tests.testkit.cluster import acks_of, add_journal, come_live, new_cluster
from tests.testkit.command_line import NOON, Reached, Shell
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.records import Ack, Break, Breaks, Gap, Lease, Link

J = "web.n1.0.0a1b2c3d"
WEB = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
COPY = "flow: copy\nsources: [flow: {site: fra, name: web}]\nsinks: [noop]\n"
GAPS = (Gap(journal=J, start=40, end=100),)
BROKE = Break(id="b", reader="flow copy of site nyc", why="why", time=NOON, events=60, gaps=GAPS)


@pytest.fixture
def store() -> FakeStore:
    """The site fra, whose flow web has 100 events; nyc has read 40."""
    store = new_cluster()
    store.tree.clock = lambda: NOON - 300
    operator = Operator(store, "ann", "", NOON)
    name_cluster(operator, "fra")
    apply_flow(operator, WEB)
    add_journal(store, J)
    come_live(store, "n1", "n1:7000")
    store.write(paths.cursor("web", "nyc:copy"), None, ABSENT)
    store.write(paths.ack("web", "nyc:copy", J), Ack(epoch=0, offset=40), ABSENT)
    store.write(paths.ack("web", "main", J), Ack(epoch=1, offset=100), ABSENT)
    lease = Lease(holder="h", reader="flow copy of site nyc", keep_seconds=1000.0, renewed=NOON)
    store.write(paths.lease("web", "nyc:copy"), lease, ABSENT)
    return store


@pytest.fixture
def shell(store: FakeStore) -> Shell:
    return Shell(store.tree, positions={"n1:7000": {J: Reached(0, 100)}})


def test_list_shows_what_a_lease_holds(shell: Shell) -> None:
    line = shell.run("cursor", "list").output.splitlines()[1].split("\t")
    assert line == [
        "web", "nyc:copy", "flow copy of site nyc", "5 min", "17 min", "1", "60", "6.0 kB",
        "time 30%, room 0%", "-",
    ]  # fmt: skip
    (row,) = shell.json("cursor", "list", "web")
    assert (row["site"], row["reads_as"], row["lag"], row["bytes"]) == ("nyc", "copy", 60, 6000)
    assert (row["age_seconds"], row["keep_seconds"], row["time"]) == (300.0, 1000.0, 0.3)


def test_show_has_each_journal_and_the_last_gap(shell: Shell, store: FakeStore) -> None:
    store.write(paths.breaks("web"), Breaks(cursors={"nyc:copy": BROKE}), ABSENT)
    shown = shell.run("cursor", "show", "web", "nyc:copy").output
    assert "renewed  5 min ago, 30% of 17 min" in shown
    assert "keeps    60 events, 6.0 kB, 0% of a journal's room" in shown
    assert f"{J}\t40\t0\t100\t60\t6.0 kB\t0%" in shown
    assert "lost     60 events" in shown
    assert f"{J}\t40\t99\t60" in shown
    assert shell.json("cursor", "show", "web", "nyc:copy")["broke"]["events"] == 60
    unknown = shell.run("cursor", "show", "web", "nyc:cpy")
    assert unknown.exit_code == 2
    assert "nyc:copy" in unknown.stderr


def test_ended_lease_is_gone_and_remembered_with_the_reason(shell: Shell, store: FakeStore) -> None:
    done = shell.run("cursor", "end", "web", "nyc:copy", "--reason", "no room")
    assert done.output.startswith("cursor nyc:copy of flow web has ended")
    assert not store.exists(paths.lease("web", "nyc:copy"))
    shown = shell.run("cursor", "show", "web", "nyc:copy").output
    assert "it has ended" in shown
    assert "ann@ops ended the lease: no room" in shown
    assert "gap" in shell.json("status")["causes"][-1]["about"]
    acknowledged = shell.run("cursor", "acknowledge", "web", "nyc:copy").output
    assert acknowledged == "the loss of 60 events is no longer reported\n"
    assert shell.run("cursor", "show", "web", "nyc:copy").exit_code == 2


def test_old_name_of_the_command_still_ends_a_cursor(shell: Shell, store: FakeStore) -> None:
    assert shell.run("cursor", "delete", "web", "nyc:copy").exit_code == 0
    assert acks_of(store, "web", "main") == {J: 100}
    assert not store.exists(paths.lease("web", "nyc:copy"))


def test_status_and_top_show_leases(shell: Shell) -> None:
    for command in ("status", "top"):
        shown = shell.run(command).output
        assert "copy of nyc\tweb\t5 min\ttime 30%, room 0%\t60\t6.0 kB" in shown, command


@pytest.fixture
def reader(store: FakeStore) -> FakeStore:
    """The site nyc, whose flow copy reads fra."""
    del store
    made = new_cluster()
    operator = Operator(made, "ann", "", NOON)
    name_cluster(operator, "nyc")
    add_site(operator, "fra", ["g1:9003"], "")
    apply_flow(operator, COPY)
    link = Link(
        site="fra", source="web", keep_seconds=1000.0, renewed=NOON - 300, room=0.3, events=60,
        bytes=6000,
    )  # fmt: skip
    made.write(paths.link("copy"), link, ABSENT)
    return made


def test_reader_shows_its_link(reader: FakeStore) -> None:
    shell = Shell(reader.tree)
    for command in ("status", "top"):
        shown = shell.run(command).output
        assert "copy\tweb of fra\tup\t0\ttime 30%, room 30%\t6.0 kB" in shown, command
    line = "its link to flow web of site fra is up; lease renewed within 5 min, 30% of 17 min used"
    for words in (("flow", "lag", "copy"), ("flow", "show", "copy")):
        assert line in shell.run(*words).output, words
    assert shell.json("flow", "lag", "copy")["link"]["state"] == "up"


def test_gap_at_the_reader_is_acknowledged(reader: FakeStore) -> None:
    shell = Shell(reader.tree)
    assert shell.run("cursor", "acknowledge", "copy").exit_code == 2
    found = reader.read(paths.link("copy"))
    assert found is not None
    reader.write(paths.link("copy"), replace(found.value, broke=BROKE), found.version)
    assert "lost 60 events" in shell.run("status").output
    assert shell.run("cursor", "acknowledge", "copy").exit_code == 0
    assert "lost 60 events" not in shell.run("status").output
