"""The command tree of ``flumeng``. One file for each command group."""

from __future__ import annotations

import atexit
import gc

import click

from cli.lazy import CommandGroup, Lazy

COMMANDS = {
    "standalone": Lazy("cli.daemons:standalone", "Run a whole cluster on this host."),
    "zookeeper": Lazy("cli.daemons:zookeeper", "Run a ZooKeeper server, for one host or tests."),
    "master": Lazy("cli.daemons:master", "Run a master; any number of them may run."),
    "node": Lazy("cli.node:node", "Run this host's node; list, label, drain nodes."),
    "flow": Lazy("cli.flow:flow", "Validate, try, test, apply, inspect, pause and delete flows."),
    "components": Lazy(
        "cli.components:components", "List sources, filters and sinks; show their options."
    ),
    "task": Lazy("cli.task:task", "List tasks with their states; restart and move them."),
    "queue": Lazy("cli.queue:queue", "List waiting and failed objects; retry or skip failed ones."),
    "ack": Lazy("cli.ack:ack", "Show how far each flow has delivered."),
    "cursor": Lazy("cli.cursor:cursor", "Readers of flows that are not flows here, and leases."),
    "journal": Lazy(
        "cli.journal:journal", "List journals and their replicas; verify and repair them."
    ),
    "cluster": Lazy(
        "cli.cluster:cluster",
        "Settings of the whole cluster, maintenance mode, and the audit of changes.",
    ),
    "site": Lazy("cli.site:site", "Other sites whose flows are read here."),
    "schema": Lazy("cli.schema:schema", "Check, repair, export, migrate the tree in ZooKeeper."),
    "import": Lazy(
        "cli.importing:import_", "Convert configurations of other systems to flow files."
    ),
    "push": Lazy("cli.push:push", "Bring many sites to one inventory, and back."),
    "status": Lazy("cli.status:status", "Show the cluster's health, with causes and remedies."),
    "top": Lazy("cli.top:top", "Show the cluster live: health, flows, rates, nodes."),
    "console": Lazy("cli.console:console", "Serve web pages and an HTTP API of the cluster."),
    "shell": Lazy("cli.shell:shell", "Run commands at a prompt, or those of a script."),
}


@click.command(
    cls=CommandGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="flumeng")
def tree() -> None:
    """Move logs and events from many hosts into lakes, exactly once.

    Exit codes: 0 done, 1 failed, 2 wrong input, 3 the state forbids it or has changed, 4 ZooKeeper
    or a node does not answer, 6 your certificate or a node's policy does not allow it.
    """


def main() -> None:
    atexit.register(gc.freeze)  # else Python collects garbage once more at exit
    tree(prog_name="flumeng")


if __name__ == "__main__":
    main()
