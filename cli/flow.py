"""``flumeng flow``: the flows of a cluster, and flow files."""

from __future__ import annotations

import click

from cli.lazy import CommandGroup, Lazy

COMMANDS = {
    "validate": Lazy("cli.flow_changes:validate", "Check flow files: all problems of all files."),
    "try": Lazy("cli.flow_try:try_", "Run lines through the filters of a flow file."),
    "test": Lazy("cli.flow_try:test", "Run the cases beside a flow file through its filters."),
    "apply": Lazy("cli.flow_changes:apply", "Make files the current revisions of their flows."),
    "list": Lazy("cli.flow_views:list_", "List all flows."),
    "show": Lazy("cli.flow_views:show", "Show one flow: its text, its tasks, their events."),
    "graph": Lazy("cli.flow_views:graph", "Show a flow's way from its sources to its sinks."),
    "history": Lazy("cli.flow_views:history_", "List the revisions of a flow that are kept."),
    "diff": Lazy("cli.flow_views:diff", "Show what is different between two revisions."),
    "rollback": Lazy("cli.flow_changes:rollback", "Make a new revision with the text of an old."),
    "rollout": Lazy(
        "cli.flow_rollout:rollout", "Look at a rollout, let it stand still, end it, or go back."
    ),
    "pause": Lazy("cli.flow_states:pause", "Stop collecting; the sources go on."),
    "resume": Lazy("cli.flow_states:resume", "Let paused or stopped flows run again."),
    "stop": Lazy("cli.flow_states:stop", "Stop the sources, and collect what they accepted."),
    "delete": Lazy("cli.flow_changes:delete", "Delete a flow, once all of it is in its sinks."),
    "wait": Lazy("cli.flow_views:wait", "Wait until a flow runs, is rolled out, stopped or gone."),
    "tap": Lazy("cli.flow_tap:tap", "Show events of a running flow at one of its steps."),
    "choke": Lazy("cli.flow_rates:choke", "Limit how much each node takes in of a flow."),
    "counters": Lazy("cli.flow_rates:counters", "Show what the sources of a flow took and lost."),
    "lag": Lazy("cli.flow_rates:lag", "Show how far a flow is behind in each partition."),
    "reset": Lazy("cli.ack:reset", "Let a paused or stopped flow go on elsewhere."),
    "handoff": Lazy("cli.flow_states:handoff", "Deliver now what the flow has read."),
    "backfill": Lazy(
        "cli.flow_backfill:backfill", "Deliver messages of Kafka, or objects, once more, beside it."
    ),
    "dead": Lazy("cli.flow_dead:dead", "List, show, replay and purge dead letters."),
}


@click.group(cls=CommandGroup, lazy=COMMANDS)
def flow() -> None:
    """Validate, try, test, apply, look at, go back, pause and delete flows."""
