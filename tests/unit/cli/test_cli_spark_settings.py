"""``flumeng cluster set spark.KEY`` and ``flumeng cluster show``, on a fake store."""

from __future__ import annotations

import pytest

from flumeng.control.zookeeper import ABSENT
from tests.testkit.cluster import new_cluster
from tests.testkit.command_line import Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records

MASTER = "spark://spark-1:7077"


@pytest.fixture
def store() -> FakeStore:
    store = new_cluster()
    store.write(paths.node("n1"), records.Node(uuid="u", roles=("collect",)), ABSENT)
    return store


def texts(shell: Shell, *words: str) -> dict[str, str]:
    found: dict[str, str] = shell.json("cluster", "show", *words)["settings"]
    return found


def test_spark_setting_is_set_for_the_cluster_and_for_a_node(
    store: FakeStore, shell: Shell
) -> None:
    told = shell.run("cluster", "set", "spark.master", MASTER, "--reason", "more hosts")
    assert told.stdout == f"spark.master is {MASTER}\n"
    assert shell.run("cluster", "set", "spark.master", MASTER).stdout.endswith(" already\n")
    shell.run("cluster", "set", "spark.cores", "8")
    shell.run("cluster", "set", "spark.cores", "2", "--node", "n1")
    assert texts(shell)["spark.cores"] == "8"
    assert texts(shell, "--node", "n1")["spark.cores"] == "2"
    assert texts(shell, "--node", "n1")["spark.master"] == MASTER
    shown = shell.run("cluster", "show", "--node", "n1").stdout
    assert f"spark.master\t{MASTER}\tlocal[*]\t" in shown
    assert "spark.cores\t2\tunset\t" in shown
    shell.run("cluster", "set", "spark.cores", "--unset", "--node", "n1")
    assert texts(shell, "--node", "n1")["spark.cores"] == "8"
    found = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    assert {entry.value.command for entry in found if entry} == {
        f"cluster set spark.master {MASTER} (was local[*])",
        "cluster set spark.cores 8 (was unset)",
        "cluster set spark.cores 2 --node n1 (was unset)",
        "cluster set spark.cores --unset --node n1 (was 2)",
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("spark.mastre", "local"), 'there is no setting "spark.mastre"'),
        (("spark.cores", "many"), "spark.cores: expected a whole number"),
        (("spark.cores", "2", "--node", "n2"), "n2"),
        (("grace_seconds", "2", "--node", "n1"), "grace_seconds cannot be set for a single node"),
        (("spark.cores",), "give the setting a VALUE"),
    ],
)
def test_invalid_spark_setting_is_refused(shell: Shell, words: tuple[str, ...], told: str) -> None:
    result = shell.run("cluster", "set", *words)
    assert result.exit_code != 0
    assert told in result.stderr
