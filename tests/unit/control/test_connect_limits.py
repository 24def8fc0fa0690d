"""Flows and settings that a Spark Connect server cannot carry are refused by name, in time."""

from __future__ import annotations

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.nodes import set_on_node
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.revisions import UnfitError
from flumeng.control.commands.settings import set_setting, unset_setting
from flumeng.platform.errors import UserError
from tests.testkit.cluster import add_node, new_cluster

MASTER = "sc://spark.example:15002/;token=${secret:spark}"
LOCAL = "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], sinks: [files: {path: /lake%s}]}"
POLL = """
flow: orders
sources:
  - sql_poll: {url: "jdbc:postgresql://db.example:5432/shop", table: orders,
      schedule: {every_seconds: 60}, answers: {path: "s3a://lake/answers"}}
sinks: [noop]
"""


@pytest.fixture
def operator() -> Operator:
    return Operator(new_cluster(), "test", "", 0.0)


def test_flow_that_connect_cannot_run_is_refused_when_applied(operator: Operator) -> None:
    set_setting(operator, "spark.master", MASTER)
    with pytest.raises(UnfitError, match=r"flow web: files: executors of sc://spark.example:15002"):
        apply_flow(operator, LOCAL % "")
    apply_flow(operator, LOCAL % ", shared: true")
    with pytest.raises(UnfitError, match="flow orders: sql_poll: it needs a driver of Spark"):
        apply_flow(operator, POLL)


def test_nodes_with_another_master_may_run_it(operator: Operator) -> None:
    set_setting(operator, "spark.master", MASTER)
    add_node(operator.store, "n1")
    set_on_node(operator, "n1", "spark.master", "local[*]")
    apply_flow(operator, LOCAL % "")


def test_setting_of_the_server_is_refused_when_set(operator: Operator) -> None:
    set_setting(operator, "spark.cores", "8")
    with pytest.raises(UserError, match=r"spark.cores: the Spark Connect server decides this"):
        set_setting(operator, "spark.master", MASTER)
    unset_setting(operator, "spark.cores")
    set_setting(operator, "spark.master", MASTER)
    add_node(operator.store, "n1")
    with pytest.raises(UserError, match=r"spark.jars: the Spark Connect server decides this"):
        set_on_node(operator, "n1", "spark.jars", "[/x.jar]")
