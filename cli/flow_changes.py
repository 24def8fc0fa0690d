"""``flumeng flow validate``, ``apply``, ``rollback`` and ``delete``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cli import options
from cli.context import CliContext, flow_argument, with_store
from cli.output import show_json, warn
from cli.task_output import show_preview
from flumeng.config import SpecError, parse_written
from flumeng.config.flow_files import FlowFile, FlowFilesError, flow_files_of, read_flows
from flumeng.config.flow_names import is_part, whole_of
from flumeng.config.guarantees import promise
from flumeng.control.commands import preview
from flumeng.control.commands.flows import (
    apply_flows,
    delete_flow,
    deletion,
    rollback_flow,
    rollback_text,
)
from flumeng.control.commands.lookup import require_flow
from flumeng.control.commands.revisions import Applied, RefusedError
from flumeng.control.queries import conditions, target_checks
from flumeng.control.queries.history import difference
from flumeng.control.queries.target_checks import TargetsFailedError
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import FlumengError, UnavailableError, UserError

files_argument = click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    callback=lambda _context, _parameter, paths: flow_files_of(paths),
    metavar="FILE...",
)
NOT_TRIED = "not applied, because of another file"


@click.command()
@files_argument
@click.option(
    "--check-targets", is_flag=True, help="Check the targets from this host; write nothing."
)
@options.json_option
def validate(files: list[Path], *, check_targets: bool, as_json: bool) -> None:
    """Check flow files: all problems of all files at once. Exit code 2 when there are any.

    FILE may be a directory, whose flow files are checked, or - for standard input.

    --check-targets connects to the target of each sink, and to the brokers of a source, as this
    host reaches them, with the secrets of this host. The exit code is 4 when one cannot be used.
    With --json there is a row for each target.
    """
    try:
        flow_files = read_flows(files)
    except FlowFilesError as error:
        if not as_json:
            raise
        show_json([{"file": str(path), **asdict(problem)} for path, problem in error.problems])
        raise SystemExit(2) from error
    if as_json and not check_targets:
        show_json([])
    if not as_json:
        for file in flow_files:
            click.echo(f"{file.path}: flow {file.spec.flow} is valid")
            for sentence in promise(parse_written(file.text)):
                click.echo(f"  {sentence}")
    if check_targets:
        _check_targets(flow_files, as_json=as_json)


def _check_targets(files: Sequence[FlowFile], *, as_json: bool) -> None:
    from flumeng.agent.dryrun.targets import tried  # noqa: PLC0415  loads pyarrow

    rows = []
    for file in files:
        for target in tried(file.spec):
            rows.append({"file": str(file.path), "flow": file.spec.flow, **asdict(target)})
            if not as_json:
                sentence = f": {target.why}" if target.why else ""
                click.echo(f"{file.path}: {target.kind} {target.name}: {target.state}{sentence}")
    if as_json:
        show_json(rows)
    if failed := sum(row["state"] == "failed" for row in rows):
        raise UnavailableError(
            f"{failed} of {len(rows)} targets cannot be used from this host: correct them, or let "
            "a node check them with `flumeng flow apply --check-targets`"
        )


@click.command()
@files_argument
@click.option(
    "--check-targets",
    is_flag=True,
    help="Check the targets from a node that may collect each flow; apply only if all are usable.",
)
@click.option("--reason", default="", help="Why; kept with the revision.")
@options.revision_option
@options.dry_run_option
@options.json_option
@options.zk_option
def apply(
    *,
    hosts: str,
    files: list[Path],
    check_targets: bool,
    reason: str,
    if_revision: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make each file the current revision of its flow; a new flow starts to run.

    FILE may be a directory, whose flow files are applied, or - for standard input.

    If any file has a problem, or any flow may not be applied now, nothing is written. All are
    applied at once, very many in parts: if a part fails, the parts before it are applied, and the
    command prints them. --json lists the outcome for each file, also if the command fails.

    --check-targets asks a node that may collect the flow to connect to the target of each sink, and
    to the brokers of a source, with that node's network, secrets and policy. A target that does not
    answer within 10 s fails. If one fails, the exit code is 1, and nothing is applied.
    """
    context = click.get_current_context().ensure_object(CliContext)
    flows: dict[Path, str] = {}
    applied: dict[str, Applied] = {}
    try:
        if if_revision is not None and len(files) > 1:
            raise UserError("--if-revision goes with one file: apply the files one by one")
        flow_files = read_flows(files)
        texts = {file.spec.flow: file.text for file in flow_files}
        flows = {file.path: file.spec.flow for file in flow_files}
        with context.store(hosts) as store:
            _check_remote_columns(store, flow_files, as_json=as_json)
            if check_targets:
                _let_nodes_check_targets(context, store, flow_files, as_json=as_json)
            if dry_run:
                show_preview(preview.apply(store, texts, if_revision), as_json=as_json)
                return
            operator = context.operator(store, reason)
            for part in apply_flows(operator, texts, expect_revision=if_revision):
                applied |= {flow.flow: flow for flow in part}
                for flow in () if as_json else part:
                    _tell(flow)
    except FlumengError as error:
        if as_json:
            show_json([_outcome(path, flows.get(path), applied, error) for path in files])
        elif len(files) > 1 and not isinstance(error, FlowFilesError):
            done = len(applied.keys() & set(flows.values()))
            warn(f"{done} of {len(files)} files are applied, {len(files) - done} not")
        raise
    if as_json:
        show_json([_outcome(path, flows.get(path), applied) for path in files])


def _check_remote_columns(store: Store, files: Sequence[FlowFile], *, as_json: bool) -> None:
    """Check the flows that are read after the filters of other sites."""
    remotes = [
        file
        for file in files
        if any(part.options.remote and part.options.filtered_by for part in file.spec.sources)
    ]
    if not remotes:
        return
    from flumeng.connectors.sites import remote_columns  # noqa: PLC0415  loads pyarrow

    for file in remotes:
        try:
            problem = remote_columns.check(store, file.text)
        except SpecError as error:
            raise FlowFilesError([(file.path, each) for each in error.problems]) from error
        if problem and not as_json:
            warn(problem)


def _let_nodes_check_targets(
    context: CliContext, store: Store, files: Sequence[FlowFile], *, as_json: bool
) -> None:
    failed = []
    for file in files:
        for target in target_checks.check_targets(store, context.targets, file.spec, file.text):
            if target.state == "failed":
                failed.append(target)
            elif not as_json:
                click.echo(str(target))
    if failed:
        raise target_checks.TargetsFailedError(failed)


@click.command()
@flow_argument
@click.argument("number", type=int, metavar="N")
@click.option("--reason", default="", help="Why; kept with the revision.")
@options.revision_option
@options.dry_run_option
@options.json_option
@with_store
def rollback(
    context: CliContext,
    store: Store,
    *,
    name: str,
    number: int,
    reason: str,
    if_revision: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a new revision with the text of revision N; its isolated parts follow.

    --dry-run shows how the text would change, and which tasks masters would move.
    """
    if dry_run:
        text = rollback_text(store, name, number)
        planned = preview.apply(store, {name: text}, if_revision)
        if not as_json:
            current = require_flow(store, name).value.revision
            click.echo(difference(store, name, current, number).diff)
        show_preview(planned, as_json=as_json)
        return
    operator = context.operator(store, reason)
    applied = rollback_flow(operator, name, number, expect_revision=if_revision)
    if as_json:
        show_json(applied)
    else:
        _tell(applied)


@click.command()
@flow_argument
@click.option("--discard", is_flag=True, help="Drop events that are not in the sinks yet.")
@click.option("--yes", is_flag=True, help="Do not ask before events are dropped.")
@click.option(
    "--wait", is_flag=True, help="Wait until no other flow reads it, and then until it is gone."
)
@options.timeout_option(300.0)
@options.reason_option
@options.revision_option
@with_store
def delete(
    context: CliContext,
    store: Store,
    *,
    name: str,
    discard: bool,
    yes: bool,
    wait: bool,
    timeout: float,
    reason: str,
    if_revision: int | None,
) -> None:
    """Delete a flow with its isolated parts, once all its accepted events are in its sinks.

    A flow that other flows read is not deleted; --wait waits for these too, within --timeout.
    """
    require_flow(store, name)
    if discard and not yes:
        click.confirm(
            f"Events of flow {name} that are not in its sinks yet will be lost. Go on?", abort=True
        )
    until = context.monotonic() + timeout
    if wait:
        context.wait_for(lambda: conditions.flow_unread(store, name), timeout)
    changed = delete_flow(
        context.operator(store, reason), name, discard=discard, expect_revision=if_revision
    )
    if not changed:
        click.echo(f"flow {name} is being deleted already")
    else:
        click.echo(deletion(name, discard=discard))
    if wait:
        left = max(0.0, until - context.monotonic())
        context.wait_for(lambda: conditions.flow_gone(store, name), left)
        click.echo(f"flow {name} is gone")


def _tell(applied: Applied) -> None:
    part = f", an isolated part of flow {whole_of(applied.flow)}," if is_part(applied.flow) else ""
    unchanged = "" if applied.changed else " (unchanged)"
    because = f" ({applied.because})" if applied.because else ""
    click.echo(f"flow {applied.flow}{part} revision {applied.revision}{unchanged}{because}")
    for left in applied.left:
        click.echo(str(left))


def _outcome(
    path: Path, flow: str | None, applied: Mapping[str, Applied], error: FlumengError | None = None
) -> dict[str, Any]:
    own = applied.get(flow or "")
    return {
        "file": str(path),
        "flow": flow,
        "revision": own.revision if own else None,
        "changed": bool(own and own.changed),
        "error": None if own or error is None else _why(error, path, flow),
    }


def _why(error: FlumengError, path: Path, flow: str | None) -> str:
    if isinstance(error, FlowFilesError):
        own = [problem for file, problem in error.problems if file == path]
        return (
            "; ".join(f"{p.path}: {p.message}" if p.path else p.message for p in own) or NOT_TRIED
        )
    if isinstance(error, RefusedError | TargetsFailedError):
        return error.refused.get(flow or "", NOT_TRIED)
    return str(error)
