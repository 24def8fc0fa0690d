"""A preview shows the later moves: compared with masters and obedient nodes on a fake store."""

from __future__ import annotations

import pytest

from flumeng.control.commands import preview
from flumeng.control.commands.flows import apply_flow, delete_flow
from flumeng.control.commands.nodes import set_node_desired
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ANY
from flumeng.platform.errors import ConflictError, UserError
from tests.testkit.cluster import add_journal, add_node, new_cluster
from tests.testkit.command_line import Shell
from tests.testkit.store import FakeStore
from tests.unit.control.obedient_nodes import settle
from zkschema import paths, records

FLOW = """
flow: {name}
sources: [{{syslog: {{listen: "127.0.0.1:5514"}}}}]
place: {{collect: {{tasks: {tasks}}}}}
sinks: [noop]
"""
NODES = ("n1", "n2", "n3")


@pytest.fixture
def store() -> FakeStore:
    """Flows a and b with three collect tasks each, at rest on three nodes."""
    store = new_cluster()
    for name in NODES:
        add_node(store, name)
    for name in ("a", "b"):
        apply(store, name, 3)
    settle(store)
    return store


def text(name: str, tasks: int) -> str:
    return FLOW.format(name=name, tasks=tasks)


def apply(store: FakeStore, name: str, tasks: int) -> None:
    apply_flow(Operator(store, "a", "", 0.0), text(name, tasks))


def where(store: FakeStore) -> dict[str, tuple[str | None, int]]:
    """Task -> its node and its flow's revision."""
    found = {}
    for name in store.children(paths.flows()):
        flow, plan = store.read(paths.flow(name)), store.read(paths.plan(name))
        assert flow is not None
        for task_name, task in (plan.value.tasks if plan else {}).items():
            found[f"{name}/{task_name}"] = (task.node, flow.value.revision)
    return found


def expected_moves(
    before: dict[str, tuple[str | None, int]], after: dict[str, tuple[str | None, int]]
) -> set[tuple[str, str | None, str | None]]:
    nothing = (None, 0)
    return {
        (key, before.get(key, nothing)[0], after.get(key, nothing)[0])
        for key in {*before, *after}
        if before.get(key) != after.get(key)
    }


def moves(found: preview.Preview) -> set[tuple[str, str | None, str | None]]:
    return {(move.task, move.before, move.after) for move in found.moves}


@pytest.mark.parametrize("node", NODES)
def test_drain_moves_the_tasks_of_its_preview(store: FakeStore, node: str) -> None:
    before, data = where(store), dict(store.dump())
    found = preview.drain(store, node)
    assert store.dump() == data, "a preview wrote something"
    set_node_desired(Operator(store, "a", "", 0.0), node, "draining")
    settle(store)
    assert moves(found) == expected_moves(before, where(store))
    assert {move.before for move in found.moves} == {node}
    assert {move.what for move in found.moves} == {"ends", "moves"}
    assert any(node in reason for reason in found.why)
    assert preview.drain(store, node) == preview.Preview((), ()), "it is draining already"


@pytest.mark.parametrize(
    ("name", "tasks", "what"),
    [("a", 5, {"starts", "takes revision 2"}), ("a", 1, {"ends", "takes revision 2"}),
     ("c", 2, {"starts"})],
)  # fmt: skip
def test_apply_moves_the_tasks_of_its_preview(
    store: FakeStore, name: str, tasks: int, what: set[str]
) -> None:
    before, data = where(store), dict(store.dump())
    found = preview.apply(store, {name: text(name, tasks)})
    assert store.dump() == data, "a preview wrote something"
    apply(store, name, tasks)
    settle(store)
    assert moves(found) == expected_moves(before, where(store))
    assert {move.what for move in found.moves} == what


def test_preview_of_a_rollout_reaches_its_end(store: FakeStore) -> None:
    """Tasks take it one by one, in many more rounds than are looked at."""
    slowly = "rollout: {max_parallel: 1}\n"
    apply_flow(Operator(store, "a", "", 0.0), text("c", 130) + slowly)
    settle(store)
    found = preview.apply(store, {"c": text("c", 130) + slowly + "batch: {seconds: 3}\n"})
    taken = [move.task for move in found.moves if move.what == "takes revision 2"]
    assert (len(taken), found.complete) == (133, True)


def test_incomplete_preview_is_reported_as_incomplete(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "ROUNDS", 1)
    assert not preview.drain(store, "n1").complete
    shown = Shell(store.tree).run("node", "drain", "n1", "--dry-run").stdout
    assert shown.splitlines()[-1] == "this preview is incomplete: more would follow"


def test_flow_with_an_unreadable_plan_has_no_moves(store: FakeStore) -> None:
    before = preview.apply(store, {"a": text("a", 4)})
    store.tree.znodes[str(paths.plan("b"))].data = b"{"
    after = preview.apply(store, {"a": text("a", 4)})
    assert {move.task.partition("/")[0] for move in before.moves} == {"a"}
    assert {move.task.partition("/")[0] for move in after.moves} == {"a"}


def test_preview_of_an_unchanged_text_has_no_moves(store: FakeStore) -> None:
    assert preview.apply(store, {"a": text("a", 3)}) == preview.Preview((), ())


def test_moves_that_happen_without_the_change_are_left_out(store: FakeStore) -> None:
    """n3 died a moment ago; its tasks move with or without the change."""
    store.remove(paths.live_node("n3"), ANY)
    assert {move.before for move in preview.drain(store, "n1").moves} == {"n1"}
    assert preview.apply(store, {"a": text("a", 3)}) == preview.Preview((), ())


def test_preview_of_a_drain_of_the_last_node_shows_waiting_tasks(store: FakeStore) -> None:
    for name in ("n2", "n3"):
        set_node_desired(Operator(store, "a", "", 0.0), name, "draining")
    settle(store)
    found = preview.drain(store, "n1")
    stay = {move.task: move.what for move in found.moves if "collect" in move.task}
    assert len(stay) == 6
    assert set(stay.values()) <= {
        "is released and waits: no other live node may run it",
        "moves",
        "waits: no live node may run it",
    }


def test_preview_makes_the_checks_of_the_change(store: FakeStore) -> None:
    with pytest.raises(UserError, match='did you mean "n1"'):
        preview.drain(store, "n11")
    with pytest.raises(ConflictError, match="not at revision 7"):
        preview.apply(store, {"a": text("a", 1)}, 7)


def test_refused_apply_has_no_preview(store: FakeStore) -> None:
    delete_flow(Operator(store, "a", "", 0.0), "a")
    add_journal(store, "c.n1.0.ab")
    for name, said in (("a", "is being deleted"), ("c", "still has journals")):
        with pytest.raises(ConflictError, match=said):
            apply(store, name, 2)
        with pytest.raises(ConflictError, match=said):
            preview.apply(store, {name: text(name, 2)})


def test_preview_after_a_rollback_has_the_next_revision(store: FakeStore) -> None:
    apply(store, "a", 2)
    flow = store.read(paths.flow("a"))
    assert flow is not None
    store.write(paths.flow("a"), records.Flow(revision=1, went_back="it failed"), flow.version)
    settle(store)
    moves = preview.apply(store, {"a": text("a", 3) + "# right"}).moves
    assert {move.what for move in moves} == {"takes revision 3"}
