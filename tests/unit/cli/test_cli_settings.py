"""Settings of the cluster and maintenance mode, by command: on a fake store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import begin_maintenance, end_maintenance, set_setting
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.platform.errors import ConflictError
from tests.testkit.cluster import add_node
from tests.testkit.command_line import NOON, Shell
from tests.testkit.scripted_store import ScriptedStore
from tests.testkit.store import FakeStore
from zkschema import paths, records

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
SIGN = ("ann", "", NOON)


def cluster(store: FakeStore) -> records.Cluster:
    found = store.read(paths.cluster())
    assert found is not None
    return found.value


def commands(store: FakeStore) -> list[tuple[str, str]]:
    entries = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    return [(entry.value.command, entry.value.reason) for entry in entries if entry]


def test_every_setting_is_shown_with_its_default_and_meaning(shell: Shell) -> None:
    assert shell.json("cluster", "show") == {
        "settings": {
            "grace_seconds": 0.0,
            "drain_limit_seconds": 60.0,
            "forget_after_seconds": 604_800.0,
            "balance": 1,
            "balance_per_node": None,
            "balance_per_flow": None,
            "recovery": None,
            "maintenance_nodes": 5,
            "maintenance_enter": 0.5,
            "maintenance_leave": 0.25,
            "maintenance_window_seconds": 3600.0,
            "spark.master": "local[*]",
            "spark.cores": None,
            "spark.executor_cores": None,
            "spark.executor_memory": None,
            "spark.python": None,
            "spark.packages": "[]",
            "spark.jars": "[]",
            "spark.conf": "{}",
            "spark.ui": "false",
            "spark.ui_port": "0",
            "spark.ui_url": None,
        },
        "maintenance": None,
    }
    lines = shell.run("cluster", "show").stdout.splitlines()
    assert lines[0] == "KEY\tVALUE\tDEFAULT\tMEANING"
    assert lines[1].startswith("grace_seconds\t0\t0\thow long a node may be missing")
    assert lines[-1] == "maintenance mode is off"
    assert all(row.count("\t") == 3 and row.rpartition("\t")[2] for row in lines[1:-1])


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("grace_seconds", "30", records.Cluster(grace_seconds=30.0)),
        ("drain_limit_seconds", "7.5", records.Cluster(drain_limit_seconds=7.5)),
        ("balance", "4", records.Cluster(throttles={"balance": 4})),
        ("balance_per_node", "2", records.Cluster(throttles={"balance_per_node": 2})),
        ("recovery", "20", records.Cluster(throttles={"recovery": 20})),
        ("forget_after_seconds", "60", records.Cluster(forget_after_seconds=60.0)),
        ("balance_per_flow", "0", records.Cluster(throttles={"balance_per_flow": 0})),
        (
            "maintenance_nodes",
            "9",
            records.Cluster(maintenance_limits=records.MaintenanceLimits(nodes=9)),
        ),
        (
            "maintenance_enter",
            "0.8",
            records.Cluster(maintenance_limits=records.MaintenanceLimits(enter=0.8)),
        ),
        (
            "maintenance_leave",
            "0.1",
            records.Cluster(maintenance_limits=records.MaintenanceLimits(leave=0.1)),
        ),
    ],
)
def test_a_setting_is_set_once_and_audited(
    shell: Shell, store: FakeStore, key: str, value: str, expected: records.Cluster
) -> None:
    done = shell.run("cluster", "set", key, value, "--reason", "tuning")
    assert (done.exit_code, done.stdout) == (0, f"{key} is {value}\n")
    assert cluster(store) == expected
    ((command, reason),) = commands(store)
    assert command.startswith(f"cluster set {key} {value} (was ")
    assert reason == "tuning"
    assert shell.run("cluster", "set", key, value).stdout == f"{key} is {value} already\n"
    assert len(commands(store)) == 1
    assert shell.json("cluster", "show")["settings"][key] == float(value)


def test_a_setting_gets_its_default_again(shell: Shell, store: FakeStore) -> None:
    for key, value in (("recovery", "20"), ("grace_seconds", "7"), ("maintenance_enter", "0.9")):
        shell.run("cluster", "set", key, value)
        assert shell.run("cluster", "set", key, "--unset").exit_code == 0
    assert cluster(store) == records.Cluster()
    said = {command for command, _ in commands(store)}
    assert "cluster set recovery --unset (was 20)" in said
    assert (
        shell.run("cluster", "set", "recovery", "--unset").stdout == "recovery is unset already\n"
    )
    assert shell.run("cluster", "set", "recovery").exit_code == 2
    assert shell.run("cluster", "set", "recovery", "1", "--unset").exit_code == 2


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("grace_second", "1", 'there is no setting "grace_second"; did you mean "grace_seconds"?'),
        ("grace_seconds", "soon", "takes a number, 0 or more, not 'soon'"),
        ("grace_seconds", "-1", "takes a number, 0 or more, not -1"),
        ("grace_seconds", "nan", "takes a number, 0 or more, not nan"),
        ("grace_seconds", "inf", "takes a number, 0 or more, not inf"),
        ("balance", "1.5", "takes a whole number, 0 or more, not '1.5'"),
        ("maintenance_nodes", "0", "takes a whole number, 1 or more, not 0"),
        ("recovery", "0", "takes a whole number, 1 or more, not 0"),
        ("maintenance_enter", "50", "takes a number, 0 to 1, not 50"),
        ("maintenance_leave", "0.9", "may not be above maintenance_enter (0.5)"),
        ("maintenance_enter", "0.1", "maintenance_leave (0.25) may not be above"),
    ],
)
def test_unknown_setting_or_value_is_wrong_input(
    shell: Shell, store: FakeStore, key: str, value: str, said: str
) -> None:
    before = store.dump()
    refused = shell.run("cluster", "set", "--", key, value)
    assert (refused.exit_code, said in refused.stderr) == (2, True), refused.stderr
    assert store.dump() == before


def test_settings_of_a_newer_version_are_kept(shell: Shell, store: FakeStore) -> None:
    later = records.Cluster(throttles={"later": 3}, extra={"newer": True})
    store.write(paths.cluster(), later, ANY)
    shell.run("cluster", "set", "balance", "2")
    assert cluster(store) == replace(later, throttles={"later": 3, "balance": 2})


def test_setting_loses_to_an_earlier_change(store: FakeStore) -> None:
    first = records.Cluster(grace_seconds=5.0)
    meddled = ScriptedStore(
        store.tree, before_commit=lambda _: store.write(paths.cluster(), first, ANY)
    )
    with pytest.raises(ConflictError, match="/cluster was changed"):
        set_setting(Operator(meddled, *SIGN), "balance", "2")
    assert cluster(store) == records.Cluster(grace_seconds=5.0)


def test_maintenance_mode_begins_and_ends_with_a_reason(shell: Shell, store: FakeStore) -> None:
    silent = shell.run("cluster", "maintenance", "on")
    assert (silent.exit_code, "needs a --reason" in silent.stderr) == (2, True)
    assert cluster(store).maintenance is None
    done = shell.run("cluster", "maintenance", "on", "--reason", "new switches")
    assert (done.exit_code, done.stdout) == (
        0, "maintenance mode is on: nothing is moved until it is off\n",
    )  # fmt: skip
    assert cluster(store).maintenance == records.Maintenance(
        who="ann@ops", why="new switches", since=NOON
    )
    said = "on by ann@ops since 2023-11-14 22:13:20 UTC: new switches"
    assert shell.run("cluster", "show").stdout.endswith(f"maintenance mode is {said}\n")
    assert shell.json("cluster", "show")["maintenance"]["why"] == "new switches"
    status = shell.run("status")
    assert status.exit_code == 1
    assert "- maintenance mode, by ann@ops at 2023-11-14 22:13:20 UTC: new switches\n" in (
        status.stdout
    )
    assert "until `flumeng cluster maintenance off`" in status.stdout
    assert shell.json("status")["maintenance"] is True
    off = shell.run("cluster", "maintenance", "off")
    assert off.stdout == f"maintenance mode is off; it was {said}\n"
    assert cluster(store).maintenance is None
    assert shell.run("cluster", "maintenance", "off").stdout == "maintenance mode is off already\n"
    assert sorted(commands(store)) == [
        ("cluster maintenance off", ""),
        ("cluster maintenance on", "new switches"),
    ]


def test_automatic_maintenance_mode_is_shown_as_such(shell: Shell, store: FakeStore) -> None:
    began = records.Maintenance(who="m1", why="6 of 8 nodes are down", since=NOON, automatic=True)
    store.write(paths.cluster(), records.Cluster(maintenance=began), ANY)
    shown = shell.run("status").stdout
    assert "maintenance mode, begun automatically at 2023-11-14 22:13:20 UTC: 6 of 8 nodes" in shown
    assert "it ends automatically" in shown
    assert "on automatically (m1) since" in shell.run("cluster", "show").stdout


def test_audit_lists_the_newest_changes_oldest_first(shell: Shell, store: FakeStore) -> None:
    for number in range(30):
        operator = Operator(store, "ann", f"why {number}", NOON + number)
        set_setting(operator, "balance", str(number + 2))
    rows = shell.json("cluster", "audit", "--last", 3)
    assert [(row["time"], row["who"], row["reason"]) for row in rows] == [
        (NOON + number, "ann", f"why {number}") for number in (27, 28, 29)
    ]
    lines = shell.run("cluster", "audit").stdout.splitlines()
    assert len(lines) == 21
    assert lines[-1] == ("2023-11-14 22:13:49\tann\tcluster set balance 31 (was 30)\twhy 29")


def test_no_task_is_moved_by_command_in_maintenance_mode(shell: Shell, store: FakeStore) -> None:
    apply_flow(Operator(store, *SIGN), FLOW)
    for name in ("n1", "n2"):
        add_node(store, name, ("collect",), since=NOON)
    task = records.PlannedTask(kind="collect", node="n1", epoch=1, state="assigned")
    store.write(paths.plan("web"), records.Plan(epoch=1, tasks={"collect.0": task}), ABSENT)
    begin_maintenance(Operator(store, "ann", "switches", NOON))
    for words in ((), ("--dry-run",)):
        refused = shell.run("task", "move", "web/collect.0", "n2", *words)
        assert (refused.exit_code, "maintenance mode, by ann: switches" in refused.stderr) == (
            3, True,
        )  # fmt: skip
    end_maintenance(Operator(store, *SIGN))
    assert shell.run("task", "move", "web/collect.0", "n2").exit_code == 0
