"""``flumeng flow graph``."""

from __future__ import annotations

from pathlib import Path

import click

from cli.context import CliContext, Name
from cli.options import json_option, optional_zk_option
from cli.output import show_json
from flumeng.config import parse_written
from flumeng.config.flow_files import read_flows
from flumeng.control.queries import flow_graph, overview
from flumeng.control.queries.flow_graph import FlowGraph, graph_of, rates_of
from flumeng.control.queries.task_counts import task_counts
from flumeng.platform.errors import UserError


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
    """Show what a flow does with events, from its sources to its sinks.

    A name with a dot or a slash in it is a flow file, and no cluster is asked. Of a flow of the
    cluster it shows how many events a second its tasks had in the last minute, too.
    """
    found = _of_file(Path(flow)) if set(flow) & set("./") else _of_cluster(hosts, flow)
    if as_json:
        show_json(found)
    else:
        click.echo(flow_graph.FORMATS[format_](found))


def _of_file(path: Path) -> FlowGraph:
    (file,) = read_flows([path])
    return graph_of(parse_written(file.text))


def _of_cluster(hosts: str | None, name: str) -> FlowGraph:
    if hosts is None:
        raise UserError(f"say which cluster flow {name} is in: --zk, or FLUMENG_ZK; or name a file")
    context = click.get_current_context().ensure_object(CliContext)
    with context.store(hosts) as store:
        found = overview.flow(store, name)
        counts = task_counts(store, context.counters, found.tasks)
    for node in counts.silent:
        click.echo(f"flumeng: node {node} does not say what became of events", err=True)
    return graph_of(parse_written(found.text), rates_of(counts, context.clock()))
