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
    "show": Lazy("cli.flow_views:show", "Show one flow: text, tasks and event counts."),
    "graph": Lazy("cli.flow_views:graph", "Show a flow as a graph from sources to sinks."),
    "explain": Lazy("cli.flow_explain:explain", "Explain where each step of a flow runs."),
    "history": Lazy("cli.flow_views:history_", "List the revisions of a flow that are kept."),
    "diff": Lazy("cli.flow_views:diff", "Show the differences of two revisions."),
    "rollback": Lazy("cli.flow_changes:rollback", "Make a new revision with an older text."),
    "rollout": Lazy(
        "cli.flow_rollout:rollout", "Show, pause, resume, complete or abort a rollout."
    ),
    "pause": Lazy("cli.flow_states:pause", "Stop collecting; the sources go on."),
    "resume": Lazy("cli.flow_states:resume", "Let paused or stopped flows run again."),
    "stop": Lazy("cli.flow_states:stop", "Stop the sources, and collect all accepted events."),
    "delete": Lazy("cli.flow_changes:delete", "Delete a flow, once its events are in its sinks."),
    "wait": Lazy("cli.flow_views:wait", "Wait until a flow runs, is rolled out, stopped or gone."),
    "tap": Lazy("cli.flow_tap:tap", "Show events of a running flow at one of its steps."),
    "choke": Lazy("cli.flow_rates:choke", "Limit the rate at which nodes accept a flow's events."),
    "counters": Lazy(
        "cli.flow_rates:counters", "Count accepted and lost events of a flow's sources."
    ),
    "lag": Lazy("cli.flow_rates:lag", "Show how far a flow is behind in each partition."),
    "reset": Lazy("cli.ack:reset", "Move a paused or stopped flow to other offsets."),
    "handoff": Lazy("cli.flow_states:handoff", "Deliver all events read so far, now."),
    "backfill": Lazy("cli.flow_backfill:backfill", "Deliver old Kafka messages or objects again."),
    "dead": Lazy("cli.flow_dead:dead", "List, show, replay and purge dead letters."),
}


@click.group(cls=CommandGroup, lazy=COMMANDS)
def flow() -> None:
    """Validate, try, test, apply, inspect, roll back, pause and delete flows."""
