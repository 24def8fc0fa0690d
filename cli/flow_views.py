"""``flumeng flow list``, ``show``, ``graph``, ``history``, ``diff`` and ``wait``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import click

from cli.context import CliContext, Name, flow_argument, with_store
from cli.options import json_option, optional_zk_option, timeout_option
from cli.output import moving_progress, show_json, show_rows, show_table, warn
from cli.sites import Clusters, with_clusters
from cli.task_output import TASK_HEADERS, show_counts, show_ended, task_cells
from flumeng.config import parse_written
from flumeng.config.flow_files import read_flows
from flumeng.control.queries import conditions, flow_graph, history, links, overview, timestamps
from flumeng.control.queries.acks import progress
from flumeng.control.queries.counters import task_counts
from flumeng.control.queries.flow_graph import FlowGraph, graph_of, rates_of
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.queries.task_status import ScalingRow
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UserError

ENDED_SHOWN = 5
CONDITIONS = {
    "running": conditions.flow_running,
    "rolled-out": conditions.flow_rolled_out,
    "stopped": conditions.flow_stopped,
    "gone": conditions.flow_gone,
}


@click.command(name="list")
@json_option
@with_clusters
def list_(_context: CliContext, clusters: Clusters, as_json: bool) -> None:
    """List all flows."""
    clusters.show_list(
        lambda store: overview.flows(store, checked=False),
        (
            "FLOW",
            "STATE",
            "REVISION",
            "DELIVERY",
            "SOURCES",
            "SINKS",
            "RUNNING",
            "LABELS",
            "BACKFILL OF",
            "PART OF",
            "HEALTH",
        ),
        lambda row: (
            row.flow,
            row.state,
            row.revision,
            row.delivery,
            row.sources,
            row.sinks,
            f"{sum(task.state == 'running' for task in row.tasks)}/{len(row.tasks)}",
            row.labels,
            row.backfill_of,
            row.part_of,
            row.health,
        ),
        as_json=as_json,
    )


@click.command()
@flow_argument
@json_option
@with_store
def show(context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """Show one flow: text, author, tasks, and their events of the last 1, 5 and 15 minutes."""
    detail = overview.flow(store, name, context.clock())
    detail = replace(detail, counts=task_counts(store, context.counters, detail.tasks))
    if as_json:
        show_json(detail)
        return
    reason = f": {detail.reason}" if detail.reason else ""
    click.echo(f"flow {detail.flow} is {detail.state}")
    click.echo(f"health: {detail.health}")
    if detail.health.cause:
        click.echo(f"- {detail.health.cause}")
    if detail.health.advice:
        click.echo(f"  {detail.health.advice}")
    for link in links.links(ReadCache.of(store), [name], context.clock()):
        click.echo(links.sentence(link))
    click.echo(
        f"revision {detail.revision} by {detail.author}, {timestamps.utc(detail.time)} UTC{reason}"
    )
    if detail.rollout:
        click.echo(f"rollout: {detail.rollout}")
    if detail.backfill:
        click.echo(f"it is a backfill of flow {detail.backfill.of}: {detail.backfill}")
    if detail.part_of:
        click.echo(f"it is an isolated part of flow {detail.part_of}, and is applied with it")
    for part, state in detail.parts.items():
        click.echo(f"isolated part {part} is {state}")
    if detail.went_back:
        click.echo(f"it went back to this revision: {detail.went_back}")
    click.echo(f"\n{detail.text.strip()}\n")
    show_table(
        TASK_HEADERS,
        ((task.task, *task_cells(task), task.partitions, task.why) for task in detail.tasks),
    )
    for node, url in detail.spark_uis.items():
        click.echo(f"Spark jobs on node {node}: {url}")
    show_counts(detail.counts)
    if detail.ended:
        last = detail.ended[-ENDED_SHOWN:]
        click.echo(
            f"\ntasks that ended last ({len(last)} of {len(detail.ended)} kept: "
            f"`flumeng task list --ended {name}`)"
        )
        show_ended(last)
    if detail.scaling:
        _show_scaling(detail.scaling)


def _show_scaling(scaling: ScalingRow) -> None:
    tasks = scaling.tasks or "not decided yet"
    click.echo(f"\ncollect tasks, {scaling.min} to {scaling.max}: {tasks}")
    show_table(
        ("TIME (UTC)", "DECISION", "TASKS", "WHY"),
        (
            (
                timestamps.utc(d.time),
                d.kind,
                d.tasks if d.before == d.tasks else f"{d.before} -> {d.tasks}",
                d.why,
            )
            for d in scaling.decisions
        ),
    )


@click.command(name="history")
@flow_argument
@json_option
@with_store
def history_(_context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """List the kept revisions of a flow, with author, time and reason.

    For a deleted flow, also the author of its deletion and its last text.
    """
    rows = history.history(store, name)
    if rows and rows[-1].deleted and not as_json:
        click.echo(f"flow {name} was deleted {rows[-1].deleted}")
        if rows[-1].text:
            click.echo(f"\n{rows[-1].text.strip()}\n")
    show_rows(
        rows,
        ("REVISION", "CURRENT", "TIME (UTC)", "AUTHOR", "REASON"),
        lambda row: (row.revision, row.current, timestamps.utc(row.time), row.author, row.reason),
        as_json=as_json,
    )


@click.command()
@flow_argument
@click.argument("old", required=False, type=int, metavar="[N]")
@click.argument("new", required=False, type=int, metavar="[M]")
@json_option
@with_store
def diff(
    _context: CliContext, store: Store, name: str, old: int | None, new: int | None, as_json: bool
) -> None:
    """Show the differences from revision N to revision M.

    M is the current one by default, N the one before it.
    """
    result = history.difference(store, name, old, new)
    if as_json:
        show_json(result)
    elif result.diff:
        click.echo(result.diff)
    else:
        click.echo(f"revisions {result.old} and {result.new} of flow {name} have the same text")


@click.command()
@flow_argument
@click.option("--running", "condition", flag_value="running", help="Until all of its tasks run.")
@click.option(
    "--rolled-out",
    "condition",
    flag_value="rolled-out",
    help="Until all of its tasks run its revision; fails at once if it rolls back automatically.",
)
@click.option(
    "--stopped", "condition", flag_value="stopped", help="Until all is collected and nothing runs."
)
@click.option("--gone", "condition", flag_value="gone", help="Until it is deleted.")
@timeout_option(30.0)
@with_store
def wait(
    context: CliContext, store: Store, name: str, condition: str | None, timeout: float
) -> None:
    """Wait for a flow; when the time is up, print the missing parts and exit with code 1.

    With --stopped a terminal shows the progress and the remaining time.
    """
    if condition is None:
        raise UserError(f"give a condition: {', '.join(f'--{word}' for word in CONDITIONS)}")
    with moving_progress(name) if condition == "stopped" else nullcontext() as tell:

        def missing() -> Sequence[str]:
            if tell is not None:
                reached = progress(store, context.ask, name)
                tell(reached.what, reached.done, reached.total)
            return CONDITIONS[condition](store, name)

        context.wait_for(missing, timeout)


@click.command()
@click.argument("flow", type=Name("flow"), metavar="FLOW|FILE")
@click.option(
    "--format",
    "format_",
    type=click.Choice([*flow_graph.FORMATS]),
    default="text",
    show_default=True,
    help="For people, or as the text of a diagram in Mermaid or Graphviz.",
)
@json_option
@optional_zk_option
def graph(*, hosts: str | None, flow: str, format_: str, as_json: bool) -> None:
    """Show the way of events through a flow, from its sources to its sinks.

    A name with a dot or a slash is a flow file, and needs no cluster. For a flow of the cluster it
    also shows the events per second of its tasks in the last minute.
    """
    if set(flow) & set("./"):
        (file,) = read_flows([Path(flow)])
        drawn = graph_of(parse_written(file.text))
    else:
        drawn = _of_cluster(hosts, flow)
    if as_json:
        show_json(drawn)
    else:
        click.echo(flow_graph.FORMATS[format_](drawn))


def _of_cluster(hosts: str | None, name: str) -> FlowGraph:
    if hosts is None:
        raise UserError(f"name the cluster of flow {name} with --zk or FLUMENG_ZK, or name a file")
    context = click.get_current_context().ensure_object(CliContext)
    with context.store(hosts) as store:
        detail = overview.flow(store, name)
        counts = task_counts(store, context.counters, detail.tasks)
    for node in counts.silent:
        warn(f"node {node} reports no event counts")
    return graph_of(parse_written(detail.text), rates_of(counts, context.clock()))
