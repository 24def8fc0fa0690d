"""``flumeng flow``: the flows of a cluster, and flow files."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click

from cli.apply_outcome import ApplyOutcome
from cli.context import CliContext, with_store
from cli.counts_output import show_counts
from cli.ended_output import show_ended
from cli.flow_backfill import backfill
from cli.flow_graph import graph
from cli.flow_handoff import handoff
from cli.flow_lag import lag
from cli.flow_rates import choke, counters
from cli.flow_reset import reset
from cli.flow_rollout import rollout
from cli.flow_states import pause, resume, stop
from cli.flow_test import test
from cli.flow_try import try_
from cli.name_argument import Name
from cli.options import (
    dry_run_option,
    json_option,
    reason_option,
    revision_option,
    timeout_option,
    zk_option,
)
from cli.output import show_json, show_table
from cli.preview_output import show_preview
from cli.sites import Clusters, with_clusters
from flumeng.errors import FlumengError, UserError
from flumeng.operations import preview
from flumeng.operations.flows import (
    Applied,
    apply_flows,
    delete_flow,
    require_flow,
    rollback_flow,
)
from flumeng.spec.flow_files import FlowFilesError, read_flows
from flumeng.spec.guarantees import promise
from flumeng.store import Store
from flumeng.views import conditions, history, moments, overview
from flumeng.views.scaling import ScalingRow
from flumeng.views.task_counts import task_counts

files_argument = click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
ENDED_SHOWN = 5
CONDITIONS = {
    "running": conditions.flow_running,
    "rolled-out": conditions.flow_rolled_out,
    "stopped": conditions.flow_stopped,
    "gone": conditions.flow_gone,
}
name_argument = click.argument("name", type=Name("flow"), metavar="FLOW")


@click.group()
def flow() -> None:
    """Validate, try, test, apply, look at, go back, pause and delete flows."""


flow.add_command(backfill)
flow.add_command(choke)
flow.add_command(counters)
flow.add_command(graph)
flow.add_command(handoff)
flow.add_command(lag)
flow.add_command(pause)
flow.add_command(reset)
flow.add_command(resume)
flow.add_command(stop)
flow.add_command(rollout)
flow.add_command(test)
flow.add_command(try_)


@flow.command()
@files_argument
@json_option
def validate(files: tuple[Path, ...], as_json: bool) -> None:
    """Check flow files: all problems of all files at once. Exit code 2 when there are any."""
    try:
        found = read_flows(files)
    except FlowFilesError as error:
        if not as_json:
            raise
        show_json([{"file": str(path), **asdict(problem)} for path, problem in error.problems])
        raise SystemExit(2) from error
    if as_json:
        show_json([])
        return
    for file in found:
        click.echo(f"{file.path}: flow {file.spec.flow} is valid")
        for sentence in promise(file.spec):
            click.echo(f"  {sentence}")


@flow.command()
@files_argument
@click.option("--reason", default="", help="Why; kept with the revision.")
@revision_option
@dry_run_option
@json_option
@zk_option
def apply(
    *,
    hosts: str,
    files: tuple[Path, ...],
    reason: str,
    if_revision: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make each file the current revision of its flow; a new flow starts to run.

    When any file has a problem, or any flow may not be applied now, nothing is written. All are
    applied at once, very many in parts: when one of those fails, those before it are applied, and
    it is told which. --json lists what became of each file, also when the command fails.
    """
    context = click.get_current_context().ensure_object(CliContext)
    outcome = ApplyOutcome(files)
    try:
        if if_revision is not None and len(files) > 1:
            raise UserError("--if-revision goes with one file: apply the files one by one")
        found = read_flows(files)
        texts = {file.spec.flow: file.text for file in found}
        outcome.flows = {file.path: file.spec.flow for file in found}
        with context.store(hosts) as store:
            if dry_run:
                show_preview(preview.apply(store, texts, if_revision), as_json=as_json)
                return
            audit_fields = context.audit_fields(reason)
            for part in apply_flows(store, texts, expect_revision=if_revision, **audit_fields):
                outcome.add(part)
                if not as_json:
                    for applied in part:
                        _tell(applied)
    except FlumengError as error:
        if as_json:
            show_json(outcome.rows(error))
        elif len(files) > 1 and not isinstance(error, FlowFilesError):
            click.echo(f"flumeng: {outcome.sentence}", err=True)
        raise
    if as_json:
        show_json(outcome.rows())


@flow.command(name="list")
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
            row.health,
        ),
        as_json=as_json,
    )


@flow.command()
@name_argument
@json_option
@with_store
def show(context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """Show one flow: its text, who applied it, where its tasks run, and what became of their events
    in the last 1, 5 and 15 minutes."""
    found = overview.flow(store, name)
    found = replace(found, counts=task_counts(store, context.counters, found.tasks))
    if as_json:
        show_json(found)
        return
    reason = f": {found.reason}" if found.reason else ""
    click.echo(f"flow {found.flow} is {found.state}")
    click.echo(f"health: {found.health}")
    if found.health.cause:
        click.echo(f"- {found.health.cause}")
    if found.health.advice:
        click.echo(f"  {found.health.advice}")
    click.echo(
        f"revision {found.revision} by {found.author}, {moments.utc(found.time)} UTC{reason}"
    )
    if found.rollout:
        click.echo(f"rollout: {found.rollout}")
    if found.backfill:
        click.echo(f"it is a backfill of flow {found.backfill.of}: {found.backfill}")
    if found.went_back:
        click.echo(f"it went back to this revision by itself: {found.went_back}")
    click.echo(f"\n{found.text.strip()}\n")
    show_table(
        ("TASK", "KIND", "NODE", "STANDBYS", "EPOCH", "REVISION", "STATE", "PARTITIONS", "WHY"),
        (
            (
                task.task,
                task.kind,
                task.node,
                task.shown_standbys,
                task.epoch,
                task.shown_revision,
                task.state,
                task.partitions,
                task.why,
            )
            for task in found.tasks
        ),
    )
    for node, url in found.spark_uis.items():
        click.echo(f"Spark jobs on node {node}: {url}")
    show_counts(found.counts)
    if found.ended:
        last = found.ended[-ENDED_SHOWN:]
        click.echo(
            f"\nended last ({len(last)} of {len(found.ended)} that are kept: "
            f"`flumeng task list --ended {name}`)"
        )
        show_ended(last)
    if found.scaling:
        _show_scaling(found.scaling)


def _show_scaling(scaling: ScalingRow) -> None:
    wanted = scaling.tasks or "nothing decided yet"
    click.echo(f"\ncollect tasks, {scaling.min} to {scaling.max}: {wanted}")
    show_table(
        ("TIME (UTC)", "DECISION", "TASKS", "WHY"),
        (
            (
                moments.utc(one.time),
                one.kind,
                one.tasks if one.before == one.tasks else f"{one.before} -> {one.tasks}",
                one.why,
            )
            for one in scaling.decisions
        ),
    )


@flow.command(name="history")
@name_argument
@json_option
@with_store
def history_(_context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """List the revisions of a flow that are kept: who made which, when and why.

    Of a flow that was deleted too, with who deleted it, and its last text.
    """
    rows = history.history(store, name)
    if as_json:
        show_json(rows)
        return
    if rows and rows[-1].deleted:
        click.echo(f"flow {name} was deleted {rows[-1].deleted}")
        if rows[-1].text:
            click.echo(f"\n{rows[-1].text.strip()}\n")
    show_table(
        ("REVISION", "CURRENT", "TIME (UTC)", "AUTHOR", "REASON"),
        ((r.revision, r.current, moments.utc(r.time), r.author, r.reason) for r in rows),
    )


@flow.command()
@name_argument
@click.argument("old", required=False, type=int, metavar="[N]")
@click.argument("new", required=False, type=int, metavar="[M]")
@json_option
@with_store
def diff(
    _context: CliContext, store: Store, name: str, old: int | None, new: int | None, as_json: bool
) -> None:
    """Show what is different from revision N to revision M.

    Without M: to the current one. Without N: from the one before it.
    """
    found = history.difference(store, name, old, new)
    if as_json:
        show_json(found)
    elif found.diff:
        click.echo(found.diff)
    else:
        click.echo(f"revisions {found.old} and {found.new} of flow {name} have the same text")


@flow.command()
@name_argument
@click.argument("number", type=int, metavar="N")
@click.option("--reason", default="", help="Why; kept with the revision.")
@revision_option
@with_store
def rollback(
    context: CliContext,
    store: Store,
    *,
    name: str,
    number: int,
    reason: str,
    if_revision: int | None,
) -> None:
    """Make a new revision with the text of revision N."""
    audit_fields = context.audit_fields(reason)
    _tell(rollback_flow(store, name, number, expect_revision=if_revision, **audit_fields))


@flow.command()
@name_argument
@click.option("--discard", is_flag=True, help="Drop events that are not in the sinks yet.")
@click.option("--yes", is_flag=True, help="Do not ask before events are dropped.")
@reason_option
@revision_option
@with_store
def delete(
    context: CliContext,
    store: Store,
    *,
    name: str,
    discard: bool,
    yes: bool,
    reason: str,
    if_revision: int | None,
) -> None:
    """Delete a flow, once everything it accepted is in its sinks."""
    require_flow(store, name)
    if discard and not yes:
        click.confirm(
            f"Events of flow {name} that are not in its sinks yet will be lost. Go on?", abort=True
        )
    changed = delete_flow(
        store,
        name,
        discard=discard,
        expect_revision=if_revision,
        **context.audit_fields(reason),
    )
    if not changed:
        click.echo(f"flow {name} is being deleted already")
    elif discard:
        click.echo(f"flow {name}: it stops now; events not in its sinks are dropped; then it goes")
    else:
        click.echo(
            f"flow {name}: its sources stop now, its journals are collected to their end, then it "
            "goes (follow with `flumeng ack list`)"
        )


@flow.command()
@name_argument
@click.option("--running", "condition", flag_value="running", help="Until all of its tasks run.")
@click.option(
    "--rolled-out",
    "condition",
    flag_value="rolled-out",
    help="Until all of its tasks run its revision; fails at once when it goes back by itself.",
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
    """Wait for a flow; exit code 1, and what is missing, when the time is up."""
    if condition is None:
        raise UserError(f"say what to wait for: {', '.join(f'--{word}' for word in CONDITIONS)}")
    context.wait_for(lambda: CONDITIONS[condition](store, name), timeout)


def _tell(applied: Applied) -> None:
    unchanged = "" if applied.changed else " (unchanged)"
    click.echo(f"flow {applied.flow} revision {applied.revision}{unchanged}")
