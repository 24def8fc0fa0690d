"""``flow reset``: a flow without running tasks goes on elsewhere, and no owner of before may move
its acks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from flumeng.agent.collector.ack import Acks, SupersededError
from flumeng.agent.collector.publisher import Publisher
from flumeng.connectors.api.ranged import Range
from flumeng.control.commands.acks import reset_acks
from flumeng.control.commands.flows import apply_flow, delete_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY, Versioned
from flumeng.platform.errors import ConflictError
from tests.testkit.cluster import add_journal, add_node, new_cluster
from tests.testkit.command_line import NOON, Reached, Shell
from tests.testkit.scripted_store import ScriptedStore, concerns, once
from tests.testkit.store import FakeStore
from zkschema import paths, records

TEXT = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
ADDRESS = "n1:1"
A, B = "web.n1.0.aa", "web.n1.0.bb"
ORDERS = "orders.3.MkTRfQ2n@kafka"
NINE = "2026-11-22T09:00:00+00:00"
REACHED = {A: Reached(20, 900), B: Reached(0, 500), ORDERS: Reached(1000, 9000)}


@pytest.fixture
def store() -> FakeStore:
    """Flow web, paused: two journals and a discovered partition, acked up to 100, 200 and 5000."""
    store = new_cluster()
    apply_flow(Operator(store, "ann", "", 0.0), TEXT)
    add_node(store, "n1", ("collect",), addresses=(ADDRESS,), discovery="n1:2")
    store.write(paths.plan("web"), discovering(7), ABSENT)
    for name in (A, B):
        add_journal(store, name, flow="web", node="n1")
    found = records.Partitions(partitions={ORDERS: records.Partition(start=1500)})
    store.write(paths.partitions("web"), found, ABSENT)
    for name, offset in ((A, 100), (B, 200), (ORDERS, 5000)):
        ack = records.Ack(epoch=7, offset=offset)
        store.write(paths.ack("web", "main", name), ack, ABSENT)
    set_flow_state(Operator(store, "ann", "", 0.0), "web", "suspended")
    return store


@pytest.fixture
def shell(store: FakeStore) -> Shell:
    shell = Shell(store.tree, {ADDRESS: {name: REACHED[name] for name in (A, B)}})
    shell.kept[ORDERS] = {"earliest": 1000, "latest": 9000, NINE: 4000}
    return shell


def discovering(epoch: int, **more: records.PlannedTask) -> records.Plan:
    task = records.PlannedTask(kind="discover", node="n1", epoch=1, state="assigned")
    return records.Plan(epoch=epoch, tasks={"discover.0": task, **more})


def read(store: FakeStore, partition: str) -> Versioned[records.Ack]:
    found = store.read(paths.ack("web", "main", partition))
    assert found is not None
    return found


def acks(store: FakeStore) -> dict[str, tuple[int, int]]:
    """Epoch and offset."""
    found = {name: read(store, name).value for name in REACHED}
    return {name: (ack.epoch, ack.offset) for name, ack in found.items()}


def to(shell: Shell, point: str, *words: str) -> Any:
    return shell.run("flow", "reset", "web", "--to", point, "--yes", *words)


def test_reset_shows_skipped_and_repeated_events_and_asks(shell: Shell, store: FakeStore) -> None:
    before = store.dump()
    asked = shell.run("flow", "reset", "web", "--to", "latest", typed="n\n")
    assert (asked.exit_code, store.dump()) == (1, before)
    assert asked.stdout.splitlines() == [
        "PARTITION\tACK\tTO\tSKIPPED\tREPEATED",
        f"{ORDERS}\t5000\t9000\t4000\t0",
        f"{A}\t100\t900\t800\t0",
        f"{B}\t200\t500\t300\t0",
    ]
    assert asked.stderr.startswith(
        "5100 events skipped and 0 repeated in 3 partitions. Go on? [y/N]:"
    )
    done = shell.run("flow", "reset", "web", "--to", "latest", typed="y\n")
    assert done.exit_code == 0
    assert acks(store) == {A: (8, 900), B: (8, 500), ORDERS: (8, 9000)}
    assert done.stdout.splitlines()[-1] == (
        "flow web: 5100 events skipped and 0 repeated in 3 partitions (resume it with `flumeng "
        "flow resume web`)"
    )


def test_earliest_is_the_floor_of_each_partition(shell: Shell, store: FakeStore) -> None:
    found = shell.json("flow", "reset", "web", "--to", "earliest", "--yes")
    assert acks(store) == {A: (8, 20), B: (8, 0), ORDERS: (8, 1000)}
    assert found == {
        "flow": "web",
        "partitions": 3,
        "accepted": {},
        "resets": [
            {"partition": ORDERS, "before": 5000, "after": 1000, "skipped": 0,
             "repeated": 4000},
            {"partition": A, "before": 100, "after": 20, "skipped": 0,
             "repeated": 80},
            {"partition": B, "before": 200, "after": 0, "skipped": 0,
             "repeated": 200},
        ],
    }  # fmt: skip


def test_reset_to_the_present_ack_is_no_change(shell: Shell, store: FakeStore) -> None:
    before = store.dump()
    done = to(shell, f"{A}=100,{B}=200,orders.3=5000")
    assert (done.exit_code, store.dump()) == (0, before)
    assert done.stdout == "flow web is at these offsets already, in 3 partitions\n"


def test_reset_gives_an_epoch_above_those_of_the_acks(shell: Shell, store: FakeStore) -> None:
    """Also above one that is not in the plan, as after the import of an older export."""
    store.write(paths.ack("web", "main", B), records.Ack(epoch=11, offset=200), ANY)
    assert to(shell, f"{A}=900,{B}=0").exit_code == 0
    assert acks(store) == {A: (12, 900), B: (12, 0), ORDERS: (7, 5000)}
    plan = store.read(paths.plan("web"))
    assert plan is not None
    assert plan.value.epoch == 12


def test_offsets_name_partitions_by_name_or_label(shell: Shell, store: FakeStore) -> None:
    assert to(shell, f"orders.3=1200, {A}=900").exit_code == 0
    assert acks(store) == {A: (8, 900), B: (7, 200), ORDERS: (8, 1200)}


@pytest.mark.parametrize(
    ("point", "complaint"),
    [
        ("orders.3=999", f"{ORDERS} has no offset 999: expected 1000 to 9000"),
        ("orders.3=9001", f"{ORDERS} has no offset 9001: expected 1000 to 9000"),
        ("orders.4=1", 'there is no partition "orders.4"'),
        ("orders.3=-1", "expected PARTITION=OFFSET"),
        ("orders.3=1,orders.3=2", "orders.3 is given twice"),
        ("yesterday", "yesterday: expected earliest, latest, or a time with its zone"),
        ("2026-11-22T08:00:00Z", f"{A} is a journal, which cannot be searched by time"),
    ],
)
def test_invalid_position_is_wrong_input(
    shell: Shell, store: FakeStore, point: str, complaint: str
) -> None:
    before = store.dump()
    done = to(shell, point)
    assert (done.exit_code, complaint in done.stderr, store.dump()) == (2, True, before)


def test_time_is_resolved_by_the_discovery_task(shell: Shell, store: FakeStore) -> None:
    assert to(shell, "2026-11-22T09:00:00Z", "--partitions", "orders.*").exit_code == 0
    assert acks(store)[ORDERS] == (8, 4000)
    store.write(paths.plan("web"), records.Plan(epoch=8), ANY)
    away = to(shell, "2026-11-22T09:00:00Z", "--partitions", "orders.*")
    assert (away.exit_code, "discovery task of flow web is not running" in away.stderr) == (4, True)


def test_recreated_topic_is_accepted_by_a_reset(shell: Shell, store: FakeStore) -> None:
    """Its partitions are not there yet, and those of the old one are not reported any more."""
    del shell.kept[ORDERS]
    held = {"orders.OtherIdA": "topic orders was deleted and recreated"}
    kept = store.read(paths.partitions("web"))
    assert kept is not None
    store.write(paths.partitions("web"), replace(kept.value, held=held), ANY)
    done = shell.run("flow", "reset", "web", "--to", "earliest", "--partitions", "orders.*",
                     typed="y\n")  # fmt: skip
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == "orders.OtherIdA is accepted, and read from earliest on"
    found = store.read(paths.partitions("web"))
    assert found is not None
    assert found.value == replace(kept.value, held=held, accepted={"orders.OtherIdA": "earliest"})
    assert acks(store)[ORDERS] == (7, 5000)
    all_of_it = shell.json("flow", "reset", "web", "--to", "latest", "--yes")
    assert all_of_it["accepted"] == {"orders.OtherIdA": "latest"}
    assert [one["partition"] for one in all_of_it["resets"]] == [A, B]


def test_partitions_with_one_label_are_distinguished_by_their_names(
    shell: Shell, store: FakeStore
) -> None:
    other = "orders.3.OtherIdA@kafka"
    both = {ORDERS: records.Partition(), other: records.Partition()}
    store.write(paths.partitions("web"), records.Partitions(partitions=both), ANY)
    shell.kept[other] = {"earliest": 0, "latest": 50}
    done = to(shell, "orders.3=7")
    assert (done.exit_code, f"ambiguous: use one of {ORDERS}, {other}" in done.stderr) == (2, True)
    assert to(shell, f"{other}=7").exit_code == 0
    assert read(store, other).value.offset == 7


def test_ended_partition_gives_its_label_to_the_partition_in_its_place(
    shell: Shell, store: FakeStore
) -> None:
    """A topic that was recreated: the old partition stays in the record for a while."""
    other = "orders.3.OtherIdA@kafka"
    both = {ORDERS: records.Partition(end=5000), other: records.Partition()}
    store.write(paths.partitions("web"), records.Partitions(partitions=both), ANY)
    del shell.kept[ORDERS]
    shell.kept[other] = {"earliest": 0, "latest": 50}
    assert to(shell, "orders.3=7").exit_code == 0
    assert read(store, other).value.offset == 7
    assert to(shell, "latest").exit_code == 0
    assert (read(store, other).value.offset, acks(store)[ORDERS]) == (50, (7, 5000))


def test_partitions_are_chosen_by_patterns_of_names_or_labels(
    shell: Shell, store: FakeStore
) -> None:
    assert to(shell, "latest", "--partitions", "orders.?", "--partitions", "*.bb").exit_code == 0
    assert acks(store) == {A: (7, 100), B: (8, 500), ORDERS: (8, 9000)}
    none = to(shell, "latest", "--partitions", "x*")
    assert (none.exit_code, 'no partition matches "x*"' in none.stderr) == (2, True)
    both = to(shell, "orders.3=1200", "--partitions", "orders.*")
    assert (both.exit_code, "remove --partitions" in both.stderr) == (2, True)


def test_partition_without_an_ack_begins_at_the_given_offset(
    shell: Shell, store: FakeStore
) -> None:
    store.remove(paths.ack("web", "main", ORDERS), ANY)
    store.remove(paths.ack("web", "main", A), ANY)
    found = shell.json("flow", "reset", "web", "--to", f"orders.3=1200,{A}=30", "--yes")
    assert [(one["before"], one["after"]) for one in found["resets"]] == [(1500, 1200), (0, 30)]
    assert acks(store)[ORDERS] == (8, 1200)


def test_partition_with_an_unknown_end_is_named_and_all_acks_stay(
    shell: Shell, store: FakeStore
) -> None:
    before = store.dump()
    shell.positions[ADDRESS] = {A: REACHED[A]}
    shell.kept[ORDERS] = {"earliest": 1000}
    done = to(shell, "latest")
    assert (done.exit_code, store.dump()) == (4, before)
    assert f"no process reports offsets of {ORDERS}, {B}" in done.stderr
    assert to(shell, "latest", "--partitions", A).exit_code == 0


def test_a_flow_that_runs_is_not_reset(shell: Shell, store: FakeStore) -> None:
    set_flow_state(Operator(store, "ann", "", 0.0), "web", "running")
    done = to(shell, "earliest")
    assert (done.exit_code, "`flumeng flow pause web` first" in done.stderr) == (3, True)
    delete_flow(Operator(store, "ann", "", 0.0), "web")
    gone = to(shell, "earliest")
    assert (gone.exit_code, "flow web is being deleted" in gone.stderr) == (3, True)
    assert acks(store)[A] == (7, 100)


def plan_task(store: FakeStore) -> Callable[[], object]:
    task = records.PlannedTask(kind="collect", node="n1", epoch=7, state="assigned")
    store.write(paths.plan("web"), discovering(7, **{"collect.0": task}), ANY)
    return lambda: store.write(paths.plan("web"), discovering(7), ANY)


def assign_task(store: FakeStore) -> Callable[[], object]:
    task = records.AssignedTask(
        flow="web", task="collect.0", kind="collect", epoch=7, revision=1, state="running"
    )
    store.write(paths.assignment("n1"), records.Assignment(tasks=(task,)), ABSENT)
    return lambda: store.write(paths.assignment("n1"), records.Assignment(), ANY)


def report_task(store: FakeStore) -> Callable[[], object]:
    def says(state: str) -> None:
        task = records.TaskStatus(epoch=7, revision=1, state=state)
        said = records.NodeStatus(assignment_version=1, tasks={"web/collect.0": task})
        store.write(paths.status("n1"), said, ANY)

    store.write(paths.status("n1"), records.NodeStatus(assignment_version=0), ABSENT)
    says("running")
    return lambda: says("stopped")


@pytest.mark.parametrize("hold", [plan_task, assign_task, report_task])
def test_reset_waits_until_the_tasks_are_released(
    shell: Shell, store: FakeStore, hold: Callable[[FakeStore], Callable[[], object]]
) -> None:
    let_go = hold(store)
    before = store.dump()
    late = to(shell, "earliest", "--timeout", "3")
    assert (late.exit_code, store.dump()) == (1, before)
    assert "web/collect.0" in late.stderr
    shell.meanwhile = let_go
    assert to(shell, "earliest").exit_code == 0
    assert acks(store)[A][1] == 20


def test_dead_node_holds_up_no_reset(shell: Shell, store: FakeStore) -> None:
    """It may still take itself for the owner: its epoch is an old one."""
    node = records.Node(uuid="n2", roles=("collect",))
    store.write(paths.node("n2"), node, ABSENT)
    task = records.AssignedTask(
        flow="web", task="collect.0", kind="collect", epoch=7, revision=1, state="running"
    )
    store.write(paths.assignment("n2"), records.Assignment(tasks=(task,)), ABSENT)
    assert to(shell, "orders.3=1200").exit_code == 0


def test_former_owner_is_fenced_and_the_next_one_starts_at_the_reset_offset(
    shell: Shell, store: FakeStore
) -> None:
    owner = Acks.claim(store, Publisher(store), "web", 7, [A, ORDERS])
    assert to(shell, "orders.3=1200").exit_code == 0
    with pytest.raises(ConflictError):
        owner.advance([Range(ORDERS, 5000, 5001)])
    with pytest.raises(SupersededError):
        Acks.claim(store, Publisher(store), "web", 7, [ORDERS])
    plan = store.read(paths.plan("web"))
    assert plan is not None
    assert plan.value.epoch == 8, "masters give no epoch that was given here"
    owner.advance([Range(A, 100, 101)])
    after = Acks.claim(store, Publisher(store), "web", plan.value.epoch + 1, [A, ORDERS])
    assert after.offsets == {A: 101, ORDERS: 1200}
    after.advance([Range(ORDERS, 1200, 1300)])


def test_concurrent_changes_between_look_and_write_lose_nothing(store: FakeStore) -> None:
    def reset() -> None:
        reset_acks(Operator(store, "ann", "", NOON), "web", {A: 50})

    for path, meanwhile in (
        (paths.ack("web", "main", A), lambda: store.write(
            paths.ack("web", "main", A), records.Ack(epoch=7, offset=150), ANY)),
        (paths.flow("web"), lambda: set_flow_state(Operator(store, "b", "", 0), "web", "running")),
    ):  # fmt: skip
        before = read(store, A).value.offset
        racing = ScriptedStore(store.tree, after_read=once(meanwhile, concerns(path)))
        with pytest.raises(ConflictError):
            reset_acks(Operator(racing, "ann", "", NOON), "web", {A: 50})
        assert read(store, A).value.offset in (before, 150)
        set_flow_state(Operator(store, "b", "", 0.0), "web", "suspended")
    racing = ScriptedStore(
        store.tree, after_read=once(lambda: plan_task(store), concerns(paths.ack("web", "main", A)))
    )
    with pytest.raises(ConflictError):
        reset_acks(Operator(racing, "ann", "", NOON), "web", {A: 50})
    assert read(store, A).value.offset == 150
    plan = store.read(paths.plan("web"))
    assert plan is not None
    store.write(paths.plan("web"), discovering(9), ANY)
    reset()
    assert read(store, A).value == records.Ack(epoch=10, offset=50)


def decide(store: FakeStore, partition: str) -> None:
    intent = records.Intent(
        epoch=7, series="s", number=4, revision=1, splits=1, ranges={partition: (100, 120)}
    )
    store.write(paths.intent("web", "collect.0"), intent, ABSENT)


def test_decided_batch_refuses_a_reset_with_the_command_to_use(
    shell: Shell, store: FakeStore
) -> None:
    decide(store, A)
    before = store.dump()
    done = to(shell, "earliest")
    assert (done.exit_code, store.dump()) == (3, before)
    assert "`flumeng ack drop web collect.0`" in done.stderr
    assert to(shell, "earliest", "--partitions", "orders.*").exit_code == 0, "it reads others"
    plan_task(store)
    held = to(shell, "latest", "--timeout", "1")
    assert (held.exit_code, "`flumeng ack drop web collect.0`" in held.stderr) == (1, True)


def test_intent_written_meanwhile_refuses_a_reset(store: FakeStore) -> None:
    done = records.Intent(epoch=7, series="s", number=3, revision=1, splits=1, ranges={})
    path = paths.intent("web", "collect.0")
    store.write(path, done, ABSENT)
    decided = records.Intent(
        epoch=7, series="s", number=4, revision=1, splits=1, ranges={A: (100, 120)}
    )
    racing = ScriptedStore(
        store.tree,
        after_read=once(
            lambda: store.write(path, decided, ANY), concerns(paths.ack("web", "main", A))
        ),
    )
    with pytest.raises(ConflictError):
        reset_acks(Operator(racing, "ann", "", NOON), "web", {A: 50})
    assert read(store, A).value.offset == 100


def test_unreadable_ack_refuses_a_reset_unless_it_is_left_out(
    shell: Shell, store: FakeStore
) -> None:
    store.tree.znodes[str(paths.ack("web", "main", A))].data = b"{"
    done = to(shell, "earliest")
    assert (done.exit_code, f"/acks/web/main/{A}" in done.stderr) == (1, True)
    assert to(shell, "earliest", "--partitions", "orders.*").exit_code == 0


def test_reset_of_very_many_partitions_is_written_in_audited_parts(
    shell: Shell, store: FakeStore
) -> None:
    names = [f"big.{number}.MkTRfQ2n@kafka" for number in range(1000)]
    found = records.Partitions(partitions=dict.fromkeys(names, records.Partition()))
    store.write(paths.partitions("web"), found, ANY)
    shell.kept.update({name: {"latest": 9} for name in names})
    before = len(store.children(paths.audits()))
    assert to(shell, "latest", "--partitions", "big.*", "--reason", "anew").exit_code == 0
    assert {read(store, name).value.offset for name in names} == {9}
    entries = store.children(paths.audits())[before:]
    assert len(entries) == 5
    entry = store.read(paths.audit(entries[0]))
    assert entry is not None
    assert entry.value.command.startswith("flow reset web: big.")
    assert entry.value.command.endswith("0 to 9")
    assert (entry.value.who, entry.value.reason) == ("ann@ops", "anew")


def test_exit_codes(shell: Shell, store: FakeStore) -> None:
    unknown = shell.run("flow", "reset", "wbe", "--to", "latest")
    assert (unknown.exit_code, "web" in unknown.stderr) == (2, True)
    assert shell.run("flow", "reset", "web").exit_code == 2
    assert to(shell, "latest", "--if-revision", "5").exit_code == 3
    set_flow_state(Operator(store, "ann", "", 0.0), "web", "stopped")
    assert to(shell, "latest").exit_code == 0
    shell.cut = True
    assert to(shell, "latest").exit_code == 4


def test_reset_drops_the_leader_epoch_of_an_ack_also_where_its_offset_stays(
    shell: Shell, store: FakeStore
) -> None:
    for place in ("orders.3=1200", "orders.3=5000"):
        led = records.Ack(epoch=7, offset=5000, leader_epoch=3)
        store.write(paths.ack("web", "main", ORDERS), led, ANY)
        assert to(shell, place).exit_code == 0
        assert read(store, ORDERS).value.leader_epoch is None
        assert read(store, ORDERS).value.offset == int(place.partition("=")[2])
