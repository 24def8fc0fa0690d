"""Acks below the floor of their journals: reported, and advanced by an operator."""

from __future__ import annotations

import pytest

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.publisher import Publisher
from flumeng.control.commands.acks import advance_acks
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY, Path
from flumeng.control.zookeeper.transaction import MOST_WRITES
from flumeng.platform.errors import ConflictError
from tests.testkit.cluster import add_journal, come_live, new_cluster
from tests.testkit.command_line import Reached, Shell
from tests.testkit.scripted_store import ScriptedStore
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
    store = new_cluster()
    apply_flow(Operator(store, *SIGN), FLOW)
    come_live(store, "n1", "n1:1")
    for name in (*map(name_of, KEPT), "web.n2.0.away"):
        node = name.split(".")[1]
        add_journal(store, name, flow="web", node=node)
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


def test_ack_is_advanced_to_its_journals_floor_and_keeps_its_epoch(
    shell: Shell, store: FakeStore
) -> None:
    led = records.Ack(epoch=3, offset=ACKED["lost"], leader_epoch=5)
    store.write(paths.ack("web", "main", name_of("lost")), led, ANY)
    done = shell.run("ack", "advance", name_of("lost"), "--reason", "zk restored")
    assert done.exit_code == 0
    assert done.stdout == (
        "journal web.n1.0.lost of flow web goes on at seq 500: 400 events before it are gone "
        "(cursor main was at 100)\n"
    )
    assert acks(store) == {"lost": (3, 500), "sound": (3, 40)}
    moved = store.read(paths.ack("web", "main", name_of("lost")))
    assert moved is not None
    assert moved.value.leader_epoch is None, "the offset is an operator's"


def test_ack_of_joined_lines_is_advanced_to_what_is_delivered_already(
    shell: Shell, store: FakeStore
) -> None:
    joined = records.Joined(offset=ACKED["lost"], emitted=620, rules="r")
    ack = records.Ack(epoch=3, offset=ACKED["lost"], joined=joined)
    store.write(paths.ack("web", "main", name_of("lost")), ack, ANY)
    assert shell.run("ack", "advance", name_of("lost")).exit_code == 0
    moved = store.read(paths.ack("web", "main", name_of("lost")))
    assert moved is not None
    assert moved.value == records.Ack(epoch=3, offset=620)


def test_discovered_partitions_are_listed_beside_journals(shell: Shell, store: FakeStore) -> None:
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


def test_unknown_fields_in_an_ack_are_kept(shell: Shell, store: FakeStore) -> None:
    path = paths.ack("web", "main", name_of("lost"))
    store.write(path, records.Ack(epoch=3, offset=100, extra={"newer": 1}), ANY)
    assert shell.run("ack", "advance", name_of("lost")).exit_code == 0
    found = store.read(path)
    assert found is not None
    assert found.value == records.Ack(epoch=3, offset=500, extra={"newer": 1})


def test_all_lagging_acks_are_advanced_also_of_unclaimed_journals(
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
    done = shell.run("ack", "advance", "--all")
    assert "node n2 does not answer" in done.stderr and "ack is not changed" in done.stderr
    assert done.stdout == ("no ack is below the oldest event of its journal\n")


@pytest.mark.parametrize(
    "path",
    [paths.journal(name_of("sound")), paths.ack("web", "main", name_of("sound"))],
    ids=["journal", "ack"],
)
def test_unreadable_ack_is_named_and_stops_no_other(
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


def test_journal_of_a_removed_flow_is_left_alone(shell: Shell, store: FakeStore) -> None:
    add_journal(store, "gone.n1.0.aa")
    shell.positions["n1:1"] = {**shell.positions["n1:1"], "gone.n1.0.aa": Reached(5, 9)}
    assert len(shell.json("ack", "advance", "--all")) == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "name the journals, or use --all"),
        (("--all", name_of("lost")), 2, "name the journals, or use --all"),
        ((name_of("sound"),), 2, "has all events from its ack on: there is nothing to skip"),
        ((name_of("sond"),), 2, 'there is no journal "web.n1.0.sond"; did you mean'),
        (
            ("web.n2.0.away",),
            4,
            "node n2 does not answer: only it knows the events of web.n2.0.away",
        ),
    ],
)
def test_impossible_advance_is_refused_and_changes_nothing(
    shell: Shell, store: FakeStore, words: tuple[str, ...], code: int, said: str
) -> None:
    before = store.dump()
    done = shell.run("ack", "advance", *words)
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
    assert store.dump() == before


def test_ack_that_moves_meanwhile_is_not_overwritten(store: FakeStore) -> None:
    """Its owner claims it, say, between the look and the write."""

    def claim(_writes: object) -> None:
        Acks.claim(store, Publisher(store), "web", 3, [name_of("lost")])

    late = ScriptedStore(store.tree, before_commit=claim)
    with pytest.raises(ConflictError):
        advance_acks(Operator(late, *SIGN), {name_of("lost"): 500})
    assert acks(store)["lost"] == (3, 100)


def test_thousands_of_acks_are_advanced_in_bounded_transactions(store: FakeStore) -> None:
    floors = {}
    for number in range(MOST_WRITES + 1):
        name = f"web.n1.0.{number:08x}"
        add_journal(store, name, flow="web", node="n1")
        store.write(paths.ack("web", "main", name), records.Ack(epoch=3, offset=100), ABSENT)
        floors[name] = 500
    before = len(store.children(paths.audits()))
    assert len(advance_acks(Operator(store, *SIGN), floors).advanced) == len(floors)
    assert len(store.children(paths.audits())) == before + 2
    found = store.read(paths.ack("web", "main", name))
    assert found is not None
    assert found.value.offset == 500
