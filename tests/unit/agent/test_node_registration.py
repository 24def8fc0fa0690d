"""The node's own znodes: its name, its live znode, and the journals that are needed."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from flumeng.agent.node.claim import Claim, SupplantedError
from flumeng.agent.node.registration import HeldError, Identity, Registration
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.platform.errors import ConflictError, UnavailableError, UserError
from tests.testkit.cluster import add_journal, new_cluster
from tests.testkit.light_nodes import ClaimsInMemory
from tests.testkit.scripted_store import ScriptedStore
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths, records

JOURNAL = "web.n1.0.ab"
FLOW = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:5514"}}]
sinks: [{console: {}}]
"""


DISK = ClaimsInMemory()


@pytest.fixture
def cluster() -> FakeTree:
    DISK.kept, DISK.full = Claim(), False
    return new_cluster().tree


def identity(uuid: str = "u1") -> Identity:
    return Identity("n1", uuid, ("ingest",), "", {})


def local(*, closed: bool = False, end: int | None = None) -> dict[str, dict[str, Any]]:
    return {JOURNAL: {"flow": "web", "term": 1, "closed": closed, "end": end}}


def test_a_second_host_with_the_same_name_is_refused(cluster: FakeTree) -> None:
    Registration(FakeStore(cluster), identity("u1"), DISK).register()
    Registration(FakeStore(cluster), identity("u1"), DISK).register()
    with pytest.raises(UserError, match=r"another --name.*decommission n1 --discard"):
        Registration(FakeStore(cluster), identity("u2"), DISK).register()


def test_removed_status_is_rewritten_at_the_next_look(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    registration = Registration(store, identity(), DISK)
    registration.register()
    status = records.NodeStatus(assignment_version=3)
    registration.report(status)
    store.remove(paths.status("n1"), ANY)
    registration.register()
    registration.report(status)
    found = store.read(paths.status("n1"))
    assert found is not None
    assert found.value == status


def test_capacity_counts_at_the_first_registration_only(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    for slots in (16.0, 32.0):
        me = Identity("n1", "u1", ("ingest",), "", {}, {"slots": slots})
        Registration(store, me, DISK).register()
        found = store.read(paths.node("n1"))
        assert found is not None
        assert found.value.capacity == {"slots": 16.0}


def test_a_znode_left_by_the_last_session_is_replaced(cluster: FakeTree) -> None:
    """It would go when that session ends, and then the node would look dead."""
    old, new = FakeStore(cluster), FakeStore(cluster)
    Registration(old, identity(), DISK).announce(("h:1",))
    Registration(new, identity(), DISK).announce(("h:2",))
    old.expire()
    found = new.read(paths.live_node("n1"))
    assert found is not None
    assert (found.value.addresses, found.session) == (("h:2",), new.session)


def test_after_an_expiry_the_node_is_live_again(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    registration = Registration(store, identity(), DISK)
    registration.announce(("h:1",))
    store.expire()
    assert not store.exists(paths.live_node("n1"))
    registration.announce(("h:1",))
    found = store.read(paths.live_node("n1"))
    assert found is not None
    assert found.session == store.session


def test_a_journal_is_needed_until_it_is_closed_and_acked_to_its_end(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    apply_flow(Operator(store, "a", "", 0.0), FLOW)
    registration = Registration(store, identity(), DISK)
    ack = paths.ack("web", "main", JOURNAL)

    registration.journals.enter(local())
    store.write(ack, records.Ack(epoch=1, offset=7), ABSENT)
    assert (registration.journals.acks().acks, registration.journals.acks().unneeded) == (
        {JOURNAL: 7},
        (),
    )
    registration.journals.enter(local(closed=True, end=8))
    assert registration.journals.acks().unneeded == ()
    store.write(ack, records.Ack(epoch=1, offset=8), ANY)
    assert registration.journals.acks().unneeded == (JOURNAL,)

    registration.journals.deregister([JOURNAL])
    assert not store.exists(paths.journal(JOURNAL))
    assert not store.exists(ack)


def test_a_closed_journal_of_a_flow_that_is_absent_is_needed_until_it_is_acked(
    cluster: FakeTree,
) -> None:
    """An import may have brought back a tree that lacks the flow."""
    registration = Registration(FakeStore(cluster), identity(), DISK)
    registration.journals.enter(local(closed=True, end=8))
    assert registration.journals.acks().unneeded == ()
    assert registration.absent(["web"]) == ["web"]


def test_a_status_is_written_only_when_it_changed(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    registration = Registration(store, identity(), DISK)
    registration.register()
    status = records.NodeStatus(assignment_version=1)
    for _ in range(3):
        registration.report(status)
    found = store.read(paths.status("n1"))
    assert found is not None
    assert found.version.number == 0


def losing_replies(cluster: FakeTree, *, first: bool) -> ScriptedStore:
    """The reply to every other write is lost, beginning with the first or the second one."""
    lost = itertools.cycle((first, not first))

    def after_commit(_writes: object) -> None:
        if next(lost):
            raise UnavailableError("ConnectionLoss")

    return ScriptedStore(cluster, after_commit=after_commit)


def test_writes_whose_replies_are_lost_are_recognised(cluster: FakeTree) -> None:
    """As the node does: after a conflict it looks again, and else it retries."""
    store = losing_replies(cluster, first=True)
    apply_flow(Operator(FakeStore(cluster), "a", "", 0.0), FLOW)
    node = Registration(store, identity(), DISK)
    told = records.NodeStatus(assignment_version=1)
    steps: list[Callable[[], object]] = [
        node.register,
        lambda: node.announce(("h:1",)),
        lambda: node.report(told),
        lambda: node.journals.enter(local()),
        lambda: node.journals.enter(local(closed=True, end=0)),
        lambda: node.journals.deregister(node.journals.acks().unneeded),
    ]
    for step in steps:
        for _ in range(4):
            try:
                step()
            except ConflictError:
                node.reread()
            except UnavailableError:
                continue
    live = store.read(paths.live_node("n1"))
    assert live is not None
    assert live.session == store.session
    status = store.read(paths.status("n1"))
    assert status is not None
    assert status.value == told
    assert store.children(paths.journals()) == []


def test_report_that_may_have_been_written_is_not_taken_for_the_one_before(
    cluster: FakeTree,
) -> None:
    store = losing_replies(cluster, first=False)
    node = Registration(store, identity(), DISK)
    before, between = (records.NodeStatus(assignment_version=n) for n in (1, 2))
    Registration(FakeStore(cluster), identity(), DISK).register()
    node.report(before)
    with pytest.raises(UnavailableError):
        node.report(between)
    node.report(before)
    found = store.read(paths.status("n1"))
    assert found is not None
    assert found.value == before


def test_node_reads_the_journals_that_it_made_and_no_others(cluster: FakeTree) -> None:
    """Hundreds of nodes that start at once would read the journals of all, each of them."""

    store = ScriptedStore(cluster)
    Registration(FakeStore(cluster), identity(), DISK).journals.enter(local())
    for other in ("web.n11.0.ab", "web.x.n1.0.ab", "n1.n2.1.ab"):
        add_journal(store, other, flow="web", node="n2")
    registration = Registration(store, identity(), DISK)
    registration.journals.enter(local())
    assert [path.name for wanted in store.reads for path in wanted] == [JOURNAL]


def test_journals_move_with_their_disk_when_its_node_is_renamed(cluster: FakeTree) -> None:
    """Such as that of a host that is renamed. Two that run are two copies of one disk."""
    before, store = FakeStore(cluster), FakeStore(cluster)
    apply_flow(Operator(store, "a", "", 0.0), FLOW)
    old = Registration(before, identity(), DISK)
    old.announce(("h:1",))
    old.journals.enter(local())
    renamed = Registration(store, Identity("n9", "u1", ("ingest",), "", {}), DISK)
    renamed.journals.enter(local())
    assert "n1, which is live" in renamed.znodes.problems[str(paths.journal(JOURNAL))]
    assert renamed.journals.registered == {}
    before.expire()
    renamed.announce(("h:1",))
    renamed.journals.enter(local())
    copy = Registration(before, identity(), DISK)
    copy.journals.enter(local())
    assert "n9, which is live" in copy.znodes.problems[str(paths.journal(JOURNAL))]
    assert copy.journals.registered == {}

    renamed.reread()
    renamed.journals.enter(local(closed=True, end=0))
    found = store.read(paths.journal(JOURNAL))
    assert found is not None
    assert (found.value.primary, found.value.closed) == ("n9", True)
    renamed.journals.deregister(renamed.journals.acks().unneeded)
    assert not store.exists(paths.journal(JOURNAL))


def test_only_the_requested_journals_are_read(cluster: FakeTree) -> None:
    registration = Registration(FakeStore(cluster), identity(), DISK)
    registration.journals.enter({f"web.n1.0.{n}": local()[JOURNAL] for n in range(3)})
    store = FakeStore(cluster)
    store.write(paths.acks("web"), None, ABSENT)
    store.write(paths.cursor("web", "main"), None, ABSENT)
    for n in range(3):
        ack = paths.ack("web", "main", f"web.n1.0.{n}")
        store.write(ack, records.Ack(epoch=1, offset=n), ABSENT)
    assert registration.journals.acks(["web.n1.0.2", "web.other.0.1"]).acks == {"web.n1.0.2": 2}


def test_removed_live_znode_is_restored_at_the_next_look(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    registration = Registration(store, identity(), DISK)
    registration.register()
    registration.announce(("h:1",))
    store.remove(paths.live_node("n1"), ANY)
    registration.announce(("h:1",))
    registration.register()
    registration.announce(("h:1",))
    found = store.read(paths.live_node("n1"))
    assert found is not None
    assert found.session == store.session
    for _ in range(3):
        registration.register()
        registration.announce(("h:1",))
    again = store.read(paths.live_node("n1"))
    assert again is not None
    assert again.version == found.version, "what is right is not written"


DAMAGED = [b"{", b"", b'{"v": 99}', b"[]", b"\x1f\x8b broken"]


@pytest.mark.parametrize("data", DAMAGED)
def test_own_unreadable_records_are_rewritten(cluster: FakeTree, data: bytes) -> None:
    store = FakeStore(cluster)
    Registration(store, identity(), DISK).register()
    told = records.NodeStatus(assignment_version=3)
    Registration(store, identity(), DISK).report(told)
    Registration(store, identity(), DISK).announce(("h:1",))
    for path in ("/nodes/n1/status", "/live/nodes/n1"):
        cluster.znodes[path].data = data
    registration = Registration(store, identity(), DISK)
    registration.report(told)
    registration.announce(("h:2",))
    status, live = store.read(paths.status("n1")), store.read(paths.live_node("n1"))
    assert status is not None
    assert live is not None
    assert (status.value, live.value.addresses) == (told, ("h:2",))


@pytest.mark.parametrize("data", DAMAGED)
def test_unreadable_journal_or_ack_harms_no_other(cluster: FakeTree, data: bytes) -> None:
    """It is neither written over nor taken for drained."""
    store, other = FakeStore(cluster), "web.n1.0.cd"
    apply_flow(Operator(store, "a", "", 0.0), FLOW)
    closed = {name: local(closed=True, end=5)[JOURNAL] for name in (JOURNAL, other)}
    Registration(store, identity(), DISK).journals.enter(closed)
    for name in (JOURNAL, other):
        store.write(paths.ack("web", "main", name), records.Ack(epoch=1, offset=5), ABSENT)
    for path in (str(paths.journal(JOURNAL)), str(paths.ack("web", "main", JOURNAL))):
        before, cluster.znodes[path].data = cluster.znodes[path].data, data
        registration = Registration(store, identity(), DISK)
        registration.journals.enter(closed)
        assert registration.journals.acks().unneeded == (other,)
        assert list(registration.znodes.problems) == [path]
        assert cluster.znodes[path].data == data
        cluster.znodes[path].data = before
        registration.reread()
        registration.journals.enter(closed)
        assert set(registration.journals.acks().unneeded) == {JOURNAL, other}
        assert registration.znodes.problems == {}


def test_claim_whose_reply_was_lost_is_recognised(cluster: FakeTree) -> None:
    """Also the one that is made again in a tree that was brought back."""
    Registration(FakeStore(cluster), identity(), DISK).register()
    exported = cluster.znodes["/nodes/n1"].data
    Registration(FakeStore(cluster), identity(), DISK).register()
    store = losing_replies(cluster, first=False)
    running = Registration(store, identity(), DISK)
    running.register()
    cluster.znodes["/nodes/n1"].data = exported
    with pytest.raises(UnavailableError):
        running.register()
    running.register()
    running.report(records.NodeStatus(assignment_version=1))


def copy_of(disk: ClaimsInMemory) -> ClaimsInMemory:
    copy = ClaimsInMemory()
    copy.kept = disk.kept
    return copy


def test_copy_of_a_data_directory_is_refused_when_another_process_went_on(
    cluster: FakeTree,
) -> None:
    Registration(FakeStore(cluster), identity(), DISK).register()
    copy = copy_of(DISK)
    Registration(FakeStore(cluster), identity(), DISK).register()
    with pytest.raises(
        SupplantedError, match=r"number 1 was the last with it, and start 2.*used last"
    ):
        Registration(FakeStore(cluster), identity(), copy).register()
    Registration(FakeStore(cluster), identity(), DISK).register()


def test_supplanted_node_writes_nothing_any_more(cluster: FakeTree) -> None:
    """It finds out at its next look, and until then each of its writes is refused."""
    store = FakeStore(cluster)
    apply_flow(Operator(store, "a", "", 0.0), FLOW)
    first = Registration(store, identity(), DISK)
    first.register()
    first.announce(("h:1",))
    first.journals.enter(local(closed=True, end=0))
    other = FakeStore(cluster)
    Registration(other, identity(), copy_of(DISK)).register()
    before = dict(cluster.znodes)
    writes: list[Callable[[], object]] = [
        lambda: first.report(records.NodeStatus(assignment_version=9)),
        lambda: first.announce(("h:9",)),
        lambda: first.journals.enter({"web.n1.0.new": local()[JOURNAL]}),
        lambda: first.journals.deregister([JOURNAL]),
    ]
    for write in writes:
        with pytest.raises(ConflictError, match="/nodes/n1 was changed"):
            write()
    assert cluster.znodes == before
    with pytest.raises(SupplantedError, match="from a copy"):
        first.register()


def boot_in_another_pid_namespace() -> str:
    """The boot of a container on this host, with pids of its own."""
    code = "from flumeng.platform.processes import boot; print(boot())"
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        pytest.skip(f"no pid namespace can be made here: {ran.stderr}")
    return ran.stdout.strip()


def test_live_node_is_not_supplanted_by_its_copy(cluster: FakeTree) -> None:
    """A node live in another boot may still run; the znode of an ended process counts for
    nothing."""
    store = FakeStore(cluster)
    first = Registration(store, identity(), DISK)
    first.register()
    first.announce(("h:1",))
    live = store.read(paths.live_node("n1"))
    assert live is not None
    for boot, pid, held in (
        (live.value.boot, 1, True),
        (live.value.boot, 2**22 + 1, False),
        (boot_in_another_pid_namespace(), os.getpid(), True),
        ("of another host", 2**22 + 1, True),
    ):
        changed = replace(live.value, boot=boot, pid=pid)
        store.write(paths.live_node("n1"), changed, ANY)
        if held:
            with pytest.raises(HeldError, match="node n1 is live"):
                Registration(FakeStore(cluster), identity(), DISK).register()
        else:
            Registration(FakeStore(cluster), identity(), DISK).register()


def test_a_full_disk_keeps_no_node_from_registering(cluster: FakeTree) -> None:
    Registration(FakeStore(cluster), identity(), DISK).register()
    before, DISK.full = DISK.kept, True
    Registration(FakeStore(cluster), identity(), DISK).register()
    found = FakeStore(cluster).read(paths.node("n1"))
    assert found is not None
    assert (found.value.claims, found.value.claimant) == (before.number, before.token)
    DISK.full = False
    Registration(FakeStore(cluster), identity(), DISK).register()


def test_an_operator_may_change_a_node_that_runs(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    registration = Registration(store, identity(), DISK)
    registration.register()
    found = store.read(paths.node("n1"))
    assert found is not None
    store.write(paths.node("n1"), replace(found.value, labels={"role": "web"}), ANY)
    registration.register()
    registration.announce(("h:1",))


def test_node_registers_again_in_an_imported_tree(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    old = Registration(store, identity(), DISK)
    old.register()
    exported = cluster.znodes["/nodes/n1"].data
    for _ in range(3):
        running = Registration(store, identity(), DISK)
        running.register()
    cluster.znodes["/nodes/n1"].data = exported
    running.register()
    copy = copy_of(DISK)
    Registration(store, identity(), DISK).register()
    with pytest.raises(SupplantedError):
        Registration(store, identity(), copy).register()


def test_seen_position_is_that_of_the_fastest_reader(cluster: FakeTree) -> None:
    """A decided range counts as read, since it is repeated exactly."""
    store = FakeStore(cluster)
    registration = Registration(store, identity(), DISK)
    for flow in ("web", "other"):
        apply_flow(Operator(store, "a", "", 0.0), FLOW.replace("web", flow))
    decided, unread = "web.n1.0.cd", "other.n1.0.ef"
    store.write(paths.cursor("web", "slow"), None, ABSENT)
    store.write(paths.ack("web", "main", JOURNAL), records.Ack(epoch=1, offset=70), ABSENT)
    store.write(paths.ack("web", "slow", JOURNAL), records.Ack(epoch=1, offset=30), ABSENT)
    store.write(paths.ack("web", "main", decided), records.Ack(epoch=1, offset=10), ABSENT)
    ranges = {decided: (10, 50), "web.n2.0.gh": (0, 5)}
    intent = records.Intent(epoch=1, series="s", number=1, revision=1, splits=1, ranges=ranges)
    store.write(paths.intent("web", "collect.0"), intent, ABSENT)
    seen = registration.journals.seen([JOURNAL, decided, unread])
    assert seen == {JOURNAL: 70, decided: 50, unread: 0}


def test_seen_position_is_unknown_when_the_ack_is_unreadable(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    registration = Registration(store, identity(), DISK)
    apply_flow(Operator(store, "a", "", 0.0), FLOW)
    path = paths.ack("web", "main", JOURNAL)
    store.write(path, records.Ack(epoch=1, offset=70), ABSENT)
    store.tree.znodes[str(path)].data = b"garbage"
    assert registration.journals.seen([JOURNAL]) == {JOURNAL: None}


def test_record_of_a_removed_journal_goes_whatever_cursor_is_made_meanwhile(
    cluster: FakeTree,
) -> None:
    store = FakeStore(cluster)
    apply_flow(Operator(store, "a", "", 0.0), FLOW)
    journals = Registration(store, identity(), DISK).journals
    journals.enter(local(closed=True, end=8))
    store.write(paths.ack("web", "main", JOURNAL), records.Ack(epoch=1, offset=8), ABSENT)
    journals.clear_up(journals.acks().unneeded, [JOURNAL])
    assert store.exists(paths.journal(JOURNAL)), "its files are there"
    store.write(paths.cursor("web", "nyc:copy"), None, ABSENT)
    assert journals.acks().unneeded == ()
    journals.clear_up((), [])
    assert not store.exists(paths.journal(JOURNAL))
