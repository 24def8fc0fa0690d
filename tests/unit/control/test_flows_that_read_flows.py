"""Flows that read flows: their cursors, the journals kept for them, and deletions."""

from __future__ import annotations

import pytest

from flumeng.agent.node.claim import Claim
from flumeng.agent.node.registration import Identity, Registration
from flumeng.config import SpecError, parse_flow
from flumeng.connectors.api.finding import Before, Offer
from flumeng.connectors.flows.finder import FlowFinder
from flumeng.connectors.flows.options import FlowSource
from flumeng.control.commands.flows import apply_flow, apply_flows, delete_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.revisions import RefusedError, next_revisions
from flumeng.control.master.execution import carry_out
from flumeng.control.planner.actions import Drop
from flumeng.control.snapshot.partitions import ack_path
from flumeng.control.snapshot.snapshot import Snapshot
from flumeng.control.zookeeper import ABSENT, tree
from flumeng.fleet.site_copy import copy_site
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.client import JournalClient
from flumeng.platform.errors import ConflictError, UnavailableError, UserError
from tests.testkit.cluster import add_journal, come_live
from tests.testkit.light_nodes import ClaimsInMemory
from tests.testkit.scripted_store import ScriptedStore
from tests.testkit.store import FakeStore
from zkschema import paths, records

WEB = "flow: web\nsources: [{syslog: {listen: '127.0.0.1:5514'}}]\nsinks: [noop]\n"
COPY = "flow: copy\nsources: [{flow: {name: web}}]\nsinks: [noop]\n"
KAFKA = "flow: kafka\nsources: [{kafka: {brokers: ['k:9092'], topics: [t]}}]\nsinks: [noop]\n"
JOURNAL = "web.n1.0.ab"
OTHER = "web.n2.0.cd"
BY = ("a", "", 0.0)


def journal(store: FakeStore, name: str = JOURNAL, end: int | None = None) -> None:
    node = name.split(".")[1]
    add_journal(store, name, flow="web", node=node, in_sync=(), closed=end is not None, end=end)
    come_live(store, node, f"{node}:1", version="1")


def test_cursor_is_created_with_the_flow_and_removed_with_it(store: FakeStore) -> None:
    list(apply_flows(Operator(store, *BY), {"copy": COPY, "web": WEB}))
    assert store.children(paths.acks("web")) == ["copy", "main"]
    with pytest.raises(ConflictError, match="web is read by copy"):
        delete_flow(Operator(store, *BY), "web")
    with pytest.raises(ConflictError, match="web is read by copy"):
        delete_flow(Operator(store, *BY), "web", discard=True)
    store.write(ack_path("copy", f"{JOURNAL}@flow"), records.Ack(epoch=1, offset=3), ABSENT)
    delete_flow(Operator(store, *BY), "copy")
    nothing = Snapshot({}, {}, {}, frozenset(), frozenset())
    carry_out(store, [Drop("copy", ("it is drained",))], nothing)
    assert store.children(paths.acks("web")) == ["main"]
    delete_flow(Operator(store, *BY), "web")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (COPY.replace("web", "wbe"), "reads flow wbe, which does not exist"),
        (COPY.replace("copy", "again").replace("web", "kafka"), "which has no journals"),
    ],
)
def test_unreadable_input_flow_is_refused(store: FakeStore, text: str, why: str) -> None:
    list(apply_flows(Operator(store, *BY), {"web": WEB, "kafka": KAFKA}))
    with pytest.raises(RefusedError, match=why):
        apply_flow(Operator(store, *BY), text.replace("flow: copy", "flow: again"))


def test_flow_cannot_change_the_flow_that_it_reads(store: FakeStore) -> None:
    list(apply_flows(Operator(store, *BY), {"web": WEB, "copy": COPY}))
    apply_flow(Operator(store, *BY), WEB.replace("web", "other").replace("5514", "5515"))
    with pytest.raises(RefusedError, match="reads flow web, which keeps its unread events"):
        apply_flow(Operator(store, *BY), COPY.replace("web", "other"))
    assert apply_flow(Operator(store, *BY), COPY.replace("noop", "console")).revision == 2


def test_push_creates_the_cursors_of_a_reader(store: FakeStore) -> None:
    list(apply_flows(Operator(store, *BY), {"web": WEB, "copy": COPY}))
    changed, other = COPY.replace("noop", "console"), COPY.replace("copy", "other")
    one, two = next_revisions(copy_site(store), {"copy": changed, "other": other})
    assert (one.number, one.cursors) == (2, ())
    assert [getattr(write, "path", None) for write in two.cursors] == [
        paths.flow("web"),
        paths.cursor("web", "other"),
    ]


def test_a_flow_that_reads_a_flow_has_no_other_source() -> None:
    with pytest.raises(SpecError, match="cannot read itself"):
        parse_flow(COPY.replace("web", "copy"))
    with pytest.raises(SpecError, match="has no other source"):
        parse_flow(COPY.replace("[{flow", "[{syslog: {listen: '127.0.0.1:1'}}, {flow"))


def test_journal_is_kept_for_the_slowest_of_its_readers(store: FakeStore) -> None:
    list(apply_flows(Operator(store, *BY), {"web": WEB, "copy": COPY}))
    claims = ClaimsInMemory()
    claims.kept, claims.full = Claim(), False
    node = Registration(store, Identity("n1", "u1", ("ingest",), "", {}), claims)
    node.register()
    node.journals.enter({JOURNAL: {"flow": "web", "term": 1, "closed": True, "end": 9}})
    store.write(ack_path("web", JOURNAL), records.Ack(epoch=1, offset=9), ABSENT)
    assert (node.journals.acks().acks, node.journals.acks().unneeded) == ({}, ())
    assert node.journals.acks().delivered == {JOURNAL: 9}
    mine = ack_path("copy", f"{JOURNAL}@flow")
    version = store.write(mine, records.Ack(epoch=1, offset=4), ABSENT)
    assert (node.journals.acks().acks, node.journals.acks().unneeded) == ({JOURNAL: 4}, ())
    store.write(mine, records.Ack(epoch=1, offset=9), version)
    assert (node.journals.acks().acks, node.journals.acks().unneeded) == ({JOURNAL: 9}, (JOURNAL,))
    assert node.journals.acks().delivered == {}, "nobody is slower than the flow"


POSITIONS = {
    "n1:1": {JOURNAL: Position(1, 5, 20, closed=False)},
    "n2:1": {OTHER: Position(1, 0, 7, closed=False)},
}


def finder(store: FakeStore, silent: str = "", **options: str) -> FlowFinder:
    """The finder of the flow web; the server at ``silent`` does not answer."""

    class Server(JournalClient):
        def __init__(self, address: str) -> None:
            super().__init__(address)
            self.address = address

        def positions(self) -> dict[str, Position]:
            if self.address == silent:
                raise UnavailableError("silent")
            return POSITIONS[self.address]

    return FlowFinder(FlowSource("web", **options), store, Server)  # type: ignore[arg-type]


def test_journals_begin_at_their_floor_or_end(store: FakeStore) -> None:
    apply_flow(Operator(store, *BY), WEB)
    journal(store)
    journal(store, OTHER, end=7)
    found = finder(store).find(Before())
    assert found.offers == {f"{JOURNAL}@flow": Offer(5), f"{OTHER}@flow": Offer(0, 7)}
    found = finder(store, start_from="latest").find(Before())
    assert found.offers == {f"{JOURNAL}@flow": Offer(20), f"{OTHER}@flow": Offer(7, 7)}
    later = Before([f"{JOURNAL}@flow"], ["flow web"])
    found = finder(store, start_from="latest").find(later)
    assert found.offers[f"{OTHER}@flow"] == Offer(0, 7)


def test_journal_of_a_silent_server_is_offered_later(store: FakeStore) -> None:
    apply_flow(Operator(store, *BY), WEB)
    journal(store)
    journal(store, OTHER)
    found = finder(store, "n2:1").find(Before())
    assert found.offers == {f"{JOURNAL}@flow": Offer(5)}
    assert found.troubles == (f"the server of the journal {OTHER} does not answer",)
    known = Before([f"{JOURNAL}@flow", f"{OTHER}@flow", "web.n3.0.ef@flow"], ["flow web"])
    found = finder(store, "n2:1").find(known)
    assert found.offers.keys() == {f"{JOURNAL}@flow", f"{OTHER}@flow"}
    assert found.gone == {"web.n3.0.ef@flow"}


def test_unreadable_journal_is_read_on_and_harms_no_other(store: FakeStore) -> None:
    apply_flow(Operator(store, *BY), WEB)
    journal(store)
    journal(store, OTHER)
    store.tree.znodes[str(paths.journal(OTHER))].data = b"{"
    known = Before([f"{OTHER}@flow"], ["flow web"])
    found = finder(store).find(known)
    assert found.offers == {f"{JOURNAL}@flow": Offer(5), f"{OTHER}@flow": Offer(0)}
    assert not found.gone


@pytest.mark.slow
def test_many_flows_list_the_journals_once() -> None:
    store = ScriptedStore()
    tree.init(store)
    apply_flow(Operator(store, *BY), WEB)
    journal(store)
    store.listings.clear()
    for one in [finder(store) for _ in range(1000)]:
        assert one.find(Before()).offers == {f"{JOURNAL}@flow": Offer(5)}
        one.close()
    assert store.listings.count([paths.journals()]) < 50


def test_missing_flow_is_reported(store: FakeStore) -> None:
    assert finder(store).find(Before()).lacks == ("there is no flow web",)


def test_read_flow_has_no_index_of_times(store: FakeStore) -> None:
    with pytest.raises(UserError, match="not from a time"):
        finder(store).offsets([f"{JOURNAL}@flow"], "2026-11-22T08:00:00Z")
