"""Acks that lie below what their journals keep: told, and moved on by an operator."""

from __future__ import annotations

import pytest

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.publisher import Publisher
from flumeng.control.commands.acks import advance_acks
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY, Path, transaction, tree
from flumeng.platform.errors import ConflictError
from tests.testkit.command_line import Reached, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
SIGN = ("ann", "", 0.0)
KEPT = {"lost": Reached(500, 900), "anew": Reached(70, 80), "sound": Reached(40, 60)}
ACKED = {"lost": 100, "sound": 40}


def name_of(what: str) -> str:
    return f"web.n1.0.{what}"


@pytest.fixture
def store() -> FakeStore:
    """Flow web with journals on n1, which is live and answers, and one on n2, which is down."""
    store = FakeStore()
    tree.init(store)
    apply_flow(Operator(store, *SIGN), FLOW)
    live = records.LiveNode(
        uuid="n1", incarnation="i", pid=1, version="0", since=0.0, addresses=("n1:1",)
    )
    store.write(paths.live_node("n1"), live, ABSENT)
    for name in (*map(name_of, KEPT), "web.n2.0.away"):
        node = name.split(".")[1]
        journal = records.Journal(flow="web", node=node, primary=node, term=1, in_sync=(node,))
        store.write(paths.journal(name), journal, ABSENT)
    for what, offset in ACKED.items():
        ack = records.Ack(epoch=3, offset=offset)
        store.write(paths.ack("web", "main", name_of(what)), ack, ABSENT)
    return store


@pytest.fixture
def shell(store: FakeStore) -> Shell:
    return Shell(store.tree, {"n1:1": {name_of(what): kept for what, kept in KEPT.items()}})


def acks(store: FakeStore) -> dict[str, tuple[int, int]]:
    """Epoch and offset."""
    found = {what: store.read(paths.ack("web", "main", name_of(what))) for what in KEPT}
    return {what: (ack.value.epoch, ack.value.offset) for what, ack in found.items() if ack}


def test_one_is_moved_to_what_its_journal_keeps_and_its_epoch_stays(
    shell: Shell, store: FakeStore
) -> None:
    led = records.Ack(epoch=3, offset=ACKED["lost"], leader_epoch=5)
    store.write(paths.ack("web", "main", name_of("lost")), led, ANY)
    done = shell.run("ack", "advance", name_of("lost"), "--reason", "zk restored")
    assert done.exit_code == 0
    assert done.stdout == (
        "journal web.n1.0.lost of flow web goes on at seq 500: 400 events below are not in it any "
        "more (cursor main was at 100)\n"
    )
    assert acks(store) == {"lost": (3, 500), "sound": (3, 40)}
    moved = store.read(paths.ack("web", "main", name_of("lost")))
    assert moved is not None
    assert moved.value.leader_epoch is None, "the offset is an operator's"


def test_what_was_discovered_is_listed_beside_journals(shell: Shell, store: FakeStore) -> None:
    found = {
        "p0@broker": records.Partition(start=5),
        "p1@broker": records.Partition(start=5, end=9),
        "p2@broker": records.Partition(end=9),
    }
    store.write(paths.partitions("web"), records.Partitions(partitions=found), ABSENT)
    store.write(paths.ack("web", "main", "p2@broker"), records.Ack(epoch=3, offset=7), ABSENT)
    rows = {row["partition"]: row for row in shell.json("ack", "list")}
    assert {name: (row["end"], row["lag"]) for name, row in rows.items()} == {
        "p0@broker": (None, None),
        "p1@broker": (9, 4),
        "p2@broker": (9, 2),
        name_of("lost"): (900, 800),
        name_of("anew"): (80, 80),
        name_of("sound"): (60, 20),
        "web.n2.0.away": (None, None),
    }


def test_what_a_newer_flumeng_keeps_in_an_ack_stays(shell: Shell, store: FakeStore) -> None:
    path = paths.ack("web", "main", name_of("lost"))
    store.write(path, records.Ack(epoch=3, offset=100, extra={"newer": 1}), ANY)
    assert shell.run("ack", "advance", name_of("lost")).exit_code == 0
    found = store.read(path)
    assert found is not None
    assert found.value == records.Ack(epoch=3, offset=500, extra={"newer": 1})


def test_all_are_moved_that_need_it_also_those_that_nobody_has_claimed(
    shell: Shell, store: FakeStore
) -> None:
    before = store.dump()
    assert [row["journal"] for row in shell.json("ack", "advance", "--all", "--dry-run")] == [
        name_of("anew"),
        name_of("lost"),
    ]
    assert store.dump() == before
    assert len(shell.json("ack", "advance", "--all")) == 2
    assert acks(store) == {"lost": (3, 500), "anew": (0, 70), "sound": (3, 40)}
    assert shell.run("ack", "advance", "--all").stdout == (
        "no ack lies below what its journal keeps\n"
    )


@pytest.mark.parametrize(
    "path",
    [paths.journal(name_of("sound")), paths.ack("web", "main", name_of("sound"))],
    ids=["journal", "ack"],
)
def test_what_cannot_be_read_is_named_and_ends_nothing_else(
    shell: Shell, store: FakeStore, path: Path
) -> None:
    store.tree.znodes[str(path)].data = b"{"
    done = shell.run("ack", "advance", "--all")
    assert done.exit_code == 0
    assert f"{path}: " in done.stderr
    assert {offset for _, offset in acks_but(store, "sound").values()} == {500, 70}
    alone = shell.run("ack", "advance", name_of("sound"))
    assert (alone.exit_code, f"{path}: " in alone.stderr) == (1, True)
    other = shell.run("ack", "advance", name_of("lost"))
    assert other.exit_code == 2, "it was moved before"


def acks_but(store: FakeStore, left_out: str) -> dict[str, tuple[int, int]]:
    found = {
        what: store.read(paths.ack("web", "main", name_of(what)))
        for what in KEPT
        if what != left_out
    }
    return {what: (ack.value.epoch, ack.value.offset) for what, ack in found.items() if ack}


def test_a_journal_of_a_flow_that_is_gone_is_left_alone(shell: Shell, store: FakeStore) -> None:
    orphan = records.Journal(flow="gone", node="n1", primary="n1", term=1, in_sync=("n1",))
    store.write(paths.journal("gone.n1.0.aa"), orphan, ABSENT)
    shell.positions["n1:1"] = {**shell.positions["n1:1"], "gone.n1.0.aa": Reached(5, 9)}
    assert len(shell.json("ack", "advance", "--all")) == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "name the journals, or take --all"),
        (("--all", name_of("lost")), 2, "name the journals, or take --all"),
        ((name_of("sound"),), 2, "keeps everything from its ack on: nothing to pass over"),
        ((name_of("sond"),), 2, 'there is no journal "web.n1.0.sond"; did you mean'),
        (("web.n2.0.away",), 4, "node n2 does not answer: only it knows what web.n2.0.away keeps"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(
    shell: Shell, store: FakeStore, words: tuple[str, ...], code: int, said: str
) -> None:
    before = store.dump()
    done = shell.run("ack", "advance", *words)
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
    assert store.dump() == before


def test_an_ack_that_moves_meanwhile_is_not_overwritten(store: FakeStore) -> None:
    """Its owner claims it, say, between the look and the write."""

    class Claimed(FakeStore):
        def commit(self, writes):  # type: ignore[no-untyped-def]
            Acks.claim(store, Publisher(store), "web", 3, [name_of("lost")])
            return super().commit(writes)

    with pytest.raises(ConflictError):
        advance_acks(Operator(Claimed(store.tree), *SIGN), {name_of("lost"): 500})
    assert acks(store)["lost"] == (3, 100)


def test_thousands_are_moved_in_bounded_transactions(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "MOST_WRITES", 1)
    floors = {name_of(what): kept.floor for what, kept in KEPT.items()}
    before = len(store.children(paths.audits()))
    assert len(advance_acks(Operator(store, *SIGN), floors).advanced) == 2
    assert len(store.children(paths.audits())) == before + 2
    assert acks(store)["lost"] == (3, 500)
