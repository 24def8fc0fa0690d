"""Refuses flows that a Spark Connect server cannot run, where the cluster's collectors use one."""

from __future__ import annotations

from collections.abc import Mapping

from flumeng.config import FlowSpec, parse_flow, spark
from flumeng.control.commands.local_files import collecting_nodes
from flumeng.control.zookeeper import ReadableStore, Versioned
from flumeng.platform.errors import UserError
from zkschema import paths

MASTER = "master"


def not_on_connect(store: ReadableStore, texts: Mapping[str, str]) -> dict[str, str]:
    """Return why each refused flow is refused. Nodes with a ``spark.master`` of their own report
    it when they get the task, and so do all while the cluster's settings are unreadable."""
    (cluster,) = store.read_each([paths.cluster()])
    master = cluster.value.spark.get(MASTER, "") if isinstance(cluster, Versioned) else ""
    if not master.startswith(spark.CONNECT):
        return {}
    options = spark.SparkOptions(master=master)
    found = {}
    for text in texts.values():
        spec = parse_flow(text)
        try:
            require_runnable(options, spec)
        except UserError as error:
            nodes = collecting_nodes(store, spec).values()
            if not nodes or any(MASTER not in node.spark for node in nodes):
                found[spec.flow] = f"flow {spec.flow}: {error}"
    return found


def require_runnable(options: spark.SparkOptions, spec: FlowSpec) -> None:
    """Raise UserError for a part that Spark at ``options.master`` cannot run."""
    for part in (*spec.partitioned, *spec.all_filters, *spec.targets):
        if options.connect and part.options.needs_own_driver:
            raise UserError(
                f"{part.name}: it needs a driver of Spark in the collector, which {options.place} "
                "does not give: set another spark.master for the nodes that collect this flow"
            )
        if not options.local and part.options.local:
            raise UserError(
                f"{part.name}: executors of {options.place} run on other hosts: set shared: true "
                "if all of them see that directory, or use a store that they all reach"
            )
