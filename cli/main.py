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
    "node": Lazy("cli.node:node", "Run this host's node; look at, label, drain nodes."),
    "flow": Lazy("cli.flow:flow", "Validate, try, test, apply, look at, pause and delete flows."),
    "components": Lazy(
        "cli.components:components", "List sources, filters and sinks; show their options."
    ),
    "task": Lazy(
        "cli.task:task", "See which tasks there are and how they do; restart and move them."
    ),
    "queue": Lazy(
        "cli.queue:queue", "See the objects that wait or failed; read them again, or not."
    ),
    "ack": Lazy("cli.ack:ack", "See how far each flow has delivered."),
    "cursor": Lazy("cli.ack:cursor", "See who else reads a flow; end cursors of Spark jobs."),
    "journal": Lazy("cli.journal:journal", "See which journals there are and what they hold."),
    "cluster": Lazy(
        "cli.cluster:cluster",
        "Settings of the whole cluster, maintenance mode, and who changed what.",
    ),
    "schema": Lazy("cli.schema:schema", "Look at, check, export, migrate the tree in ZooKeeper."),
    "import": Lazy(
        "cli.importing:import_", "Make flow files of the configurations of other systems."
    ),
    "push": Lazy("cli.push:push", "Bring many sites to what one inventory says, and back."),
    "status": Lazy("cli.status:status", "Say whether the cluster is well, and if not, why."),
    "top": Lazy("cli.top:top", "Show the cluster live: health, flows, rates, nodes."),
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

    Exit codes: 0 done, 1 failed, 2 wrong input, 3 someone else changed it first, 4 ZooKeeper or a
    node does not answer, 6 your certificate or a node's policy does not allow it.
    """


def main() -> None:
    atexit.register(gc.freeze)  # Python would look for garbage among all that ends with the process
    tree(prog_name="flumeng")


if __name__ == "__main__":
    main()
