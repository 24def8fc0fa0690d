"""The data source for Spark without Spark: offsets, options, and cursors of readers that are no
flows: their owners, the events that are kept for them, and their end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.agent.pyspark import planning
from flumeng.agent.pyspark.options import NAMES, Options
from flumeng.control.commands.acks import delete_cursor
from flumeng.control.commands.cursors import Cursor
from flumeng.control.commands.flows import apply_flow, delete_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.revisions import RefusedError
from flumeng.control.master.daemon import Master
from flumeng.control.zookeeper import ABSENT, ANY, tree
from flumeng.platform.errors import ConflictError, UnavailableError, UserError
from tests.testkit.cluster import add_journal, come_live
from tests.testkit.command_line import Reached, Shell
from tests.testkit.scripted_store import ScriptedStore, concerns, fail, nothing, once
from tests.testkit.store import FakeStore
from zkschema import paths, records
from zkschema.verify import verify

BY = ("a", "", 0.0)
WEB = "flow: web\nsources: [{syslog: {listen: '127.0.0.1:5514'}}]\nsinks: [noop]\n"
COPY = "flow: copy\nsources: [{flow: {name: web}}]\nsinks: [noop]\n"
A, B = "web.n1.0.aa", "web.n1.0.bb"
NOON = 1_700_000_000.0

positions = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 1000))


@given(positions, positions, st.integers(1, 500))
def test_batch_is_limited_and_offsets_never_decrease(
    start: dict[str, int], reached: dict[str, int], most: int
) -> None:
    at = planning.ordered(start)
    wanted = {name: max(at.get(name, 0), reached.get(name, 0)) for name in {*at, *reached}}
    for _ in range(4000):
        end = planning.limited(at, reached, most)
        events = sum(end[name] - at.get(name, 0) for name in end)
        assert all(end.get(name, 0) >= offset for name, offset in at.items())
        assert events <= most
        if not events:
            break
        at = end
    assert at == planning.ordered(wanted)
    assert list(at) == sorted(at), "Spark compares offsets as text"


@given(positions, positions, st.integers(1, 500))
def test_splits_cover_exactly_the_range_between_two_offsets(
    start: dict[str, int], end: dict[str, int], events: int
) -> None:
    wanted = planning.ranges(start, end)
    parts = planning.splits(wanted, events)
    assert all(sum(piece.events for piece in part) == events for part in parts[:-1])
    read = [(p.partition, seq) for part in parts for p in part for seq in range(p.start, p.end)]
    assert read == [(n, seq) for n in sorted(end) for seq in range(start.get(n, 0), end[n])]


def test_option_names_are_case_insensitive() -> None:
    given = {name.lower(): "7000" for name in NAMES}
    given |= {"flow": "web", "cursor": "report", "startfrom": "latest", "failondataloss": "False"}
    found = Options.parse(given | {"zookeeper": "h:1/c"})
    assert found == Options("h:1/c", "web", "report", "latest", 7000.0, 7000, False)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"flow": ""}, "name the flow to read"),
        ({"zookeeper": ""}, "zookeeper"),
        ({"startFrom": "now"}, "earliest or latest"),
        ({"keepSeconds": "5"}, "60 or more"),
        ({"keepSeconds": "nan"}, "60 or more"),
        ({"maxEventsPerBatch": "many"}, "is a number"),
        ({"maxEventsPerBatch": "0"}, "1 or more"),
        ({"failOnDataLoss": "no"}, "true or false"),
        ({"cursor": "a b"}, "cursor 'a b'"),
        ({"cursor": "main"}, "choose another name"),
        ({"path": "/x"}, 'no option "path"'),
    ],
)
def test_invalid_option_is_refused(
    given: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLUMENG_ZK", raising=False)
    with pytest.raises(UserError, match=why):
        Options.parse({"zookeeper": "h:1/c", "flow": "web", **given})


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    store.tree.clock = lambda: NOON
    tree.init(store)
    apply_flow(Operator(store, *BY), WEB)
    for name in (A, B):
        journal(store, name)
    return store


def journal(store: FakeStore, name: str) -> None:
    add_journal(store, name, flow="web", node="n1", in_sync=())


def take(store: FakeStore, begin: dict[str, int] | None = None, wall: float = NOON) -> Cursor:
    return Cursor.take(
        store, "web", "report", keep_seconds=100.0, begin=lambda: begin or {}, wall=lambda: wall
    )


def test_cursor_begins_once_and_continues_where_it_is(store: FakeStore) -> None:
    cursor = take(store, {A: 5})
    assert (cursor.existed, cursor.offsets()) == (False, {A: 5})
    cursor.commit({A: 9, B: 3})
    cursor.commit({A: 7})
    again = take(store, {A: 1})
    assert (again.existed, again.offsets()) == (True, {A: 9, B: 3})


def test_only_the_last_taker_of_a_cursor_moves_it(store: FakeStore) -> None:
    first = take(store)
    second = take(store)
    writes: list[Callable[[], None]] = [lambda: first.commit({A: 9}), first.renew]
    for write in writes:
        with pytest.raises(ConflictError, match="two readers cannot share one"):
            write()
    second.commit({A: 4})
    assert second.offsets() == {A: 4}


def test_reader_overtaken_between_its_look_and_its_write_moves_nothing(store: FakeStore) -> None:
    overtaken = ScriptedStore(
        store.tree, before_commit=once(lambda: take(store), concerns(paths.ack("web", "report", A)))
    )
    cursor = Cursor.take(
        overtaken, "web", "report", keep_seconds=100.0, begin=dict, wall=lambda: NOON
    )
    with pytest.raises(ConflictError, match="was taken by"):
        cursor.commit({A: 9})
    assert cursor.offsets() == {}


def test_commit_whose_answer_was_lost_can_be_repeated(store: FakeStore) -> None:
    mute = ScriptedStore(store.tree)
    cursor = Cursor.take(mute, "web", "report", keep_seconds=100.0, begin=dict, wall=lambda: NOON)
    mute.after_commit = fail(UnavailableError("no answer"))
    with pytest.raises(UnavailableError):
        cursor.commit({A: 9})
    mute.after_commit = nothing
    cursor.commit({A: 12})
    assert cursor.offsets() == {A: 12}


def test_acks_of_removed_journals_go_once_no_commit_names_them(store: FakeStore) -> None:
    cursor = take(store, {A: 5, B: 5})
    store.remove(paths.journal(A), ANY)
    cursor.commit({A: 5, B: 6})
    assert cursor.offsets() == {A: 5, B: 6}
    cursor.commit({B: 7})
    assert cursor.offsets() == {B: 7}
    cursor.commit({A: 5, B: 7})
    assert cursor.offsets() == {B: 7}, "one that is not registered gets none"


@pytest.mark.slow
def test_a_cursor_of_many_journals_is_made_in_parts(store: FakeStore) -> None:
    begin = {f"web.n1.0.{number:08x}": number + 1 for number in range(2500)}
    for name in begin:
        journal(store, name)
    cursor = take(store, begin)
    assert cursor.offsets() == begin
    cursor.commit({name: offset + 1 for name, offset in begin.items()})
    assert sum(cursor.offsets().values()) == sum(begin.values()) + 2500
    delete_cursor(Operator(store, *BY), "web", "report")
    assert store.children(paths.acks("web")) == ["main"]


def test_interrupted_creation_of_a_cursor_is_repeated_or_deleted(store: FakeStore) -> None:
    for _ in range(2):
        store.write(paths.cursor("web", "report"), None, ABSENT)
        store.write(paths.ack("web", "report", A), records.Ack(epoch=0, offset=3), ABSENT)
        delete_cursor(Operator(store, *BY), "web", "report")
    store.write(paths.cursor("web", "report"), None, ABSENT)
    store.write(paths.ack("web", "report", A), records.Ack(epoch=0, offset=3), ABSENT)
    assert take(store, {A: 8}).offsets() == {A: 8}


def test_flow_and_cursor_cannot_have_the_same_name(store: FakeStore) -> None:
    take(store)
    report = COPY.replace("flow: copy", "flow: report")
    with pytest.raises(RefusedError, match="`flumeng cursor end web report`"):
        apply_flow(Operator(store, *BY), report)
    delete_cursor(Operator(store, *BY), "web", "report")
    apply_flow(Operator(store, *BY), report)
    with pytest.raises(UserError, match="a flow is named report"):
        take(store)
    with pytest.raises(UserError, match="`flumeng flow delete report`"):
        delete_cursor(Operator(store, *BY), "web", "report")


def test_flow_with_readers_is_not_deleted_and_the_error_lists_them(store: FakeStore) -> None:
    cursor = take(store)
    apply_flow(Operator(store, *BY), COPY)
    with pytest.raises(ConflictError) as refused:
        delete_flow(Operator(store, *BY), "web")
    assert "is read by copy, report" in str(refused.value)
    assert "(`flumeng cursor end web report`)" in str(refused.value)
    delete_flow(Operator(store, *BY), "copy")
    delete_cursor(Operator(store, *BY), "web", "report")
    with pytest.raises(ConflictError, match="was removed"):
        cursor.commit({A: 1})


def test_masters_remove_cursors_that_were_not_renewed_in_time(store: FakeStore) -> None:
    moment = [0.0]
    store.tree.clock = lambda: NOON + moment[0]
    master = Master(FakeStore(store.tree), "m1", lambda: moment[0], lambda: 0.0)
    cursor = take(store, {A: 5})
    master.tick()
    moment[0] = 90.0
    master.tick()
    take(store, wall=NOON + 90.0)
    moment[0] = 160.0
    master.tick()
    assert cursor.offsets() == {A: 5}, "it was renewed"
    moment[0] = 260.0  # a master counts from when it last saw its own record written: at 90 s
    master.tick()
    moment[0] = 330.0
    said = master.tick()
    assert "cursor report of web is removed" in said
    assert store.children(paths.acks("web")) == ["main"]
    assert store.children(paths.leases()) == []
    assert verify(store.dump()) == []


def test_unreadable_lease_is_kept_and_shown(store: FakeStore) -> None:
    take(store, {A: 5})
    store.tree.znodes[str(paths.lease("web", "report"))].data = b"{"
    master = Master(FakeStore(store.tree), "m1", lambda: 0.0, lambda: NOON + 1e6)
    master.tick()
    assert store.children(paths.acks("web")) == ["main", "report"]
    row = shell(store).json("cursor", "list")[0]
    assert (row["cursor"], row["until"]) == ("report", None)
    assert "/leases/web@report" in row["problem"]


def shell(store: FakeStore) -> Shell:
    if not store.exists(paths.live_node("n1")):
        come_live(store, "n1", "n1:1")
    return Shell(store.tree, {"n1:1": {A: Reached(0, 20), B: Reached(0, 30)}})


def test_operator_lists_readers_of_a_flow_and_removes_a_cursor(store: FakeStore) -> None:
    apply_flow(Operator(store, *BY), COPY)
    take(store, {A: 5})
    at = shell(store)
    lines = at.run("cursor", "list").stdout.splitlines()
    assert lines[0].split("\t") == [
        "FLOW", "CURSOR", "READER", "AGE", "KEPT FOR", "JOURNALS", "LAG", "BYTES", "USED",
        "PROBLEM",
    ]  # fmt: skip
    assert lines[1].split("\t") == [
        "web", "copy", "flow copy", "-", "-", "2", "50", "5.0 kB", "room 0%", "-",
    ]  # fmt: skip
    cells = lines[2].split("\t")
    assert (cells[1], *cells[4:9]) == (
        "report", "100 s", "2", "45", "4.5 kB", "time 0%, room 0%",
    )  # fmt: skip
    assert at.run("cursor", "list", "copy").stdout.splitlines() == lines[:1]
    done = at.run("cursor", "end", "web", "report", "--reason", "notebook is gone")
    assert (
        done.stdout == "cursor report of flow web has ended: no events are kept for it any more\n"
    )
    for words, why in (
        (("web", "report"), 'flow web has no cursor "report"'),
        (("web", "main"), "the flow's own cursor"),
        (("wbe", "report"), 'there is no flow "wbe"'),
    ):
        refused = at.run("cursor", "end", *words)
        assert refused.exit_code == 2
        assert why in refused.stderr


def test_a_lease_without_its_cursor_is_an_orphan(store: FakeStore) -> None:
    take(store)
    store.remove(paths.cursor("web", "report"), ANY)
    found = shell(store).run("schema", "verify")
    assert "/leases/web@report" in found.stdout
