"""``flumeng flow try`` and ``flow test``: a flow's filters without a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.options import given
from cli.output import count, warn
from flumeng.agent.dryrun.cases import micros
from flumeng.config.flow_files import read_flows
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.garbage_collection import no_garbage_collection

if TYPE_CHECKING:
    from flumeng.agent.dryrun.explaining import Explained
    from flumeng.agent.dryrun.local_spark import LocalSpark
    from flumeng.agent.dryrun.outcomes import Outcome
    from flumeng.agent.dryrun.received_lines import ReceivedLines
    from flumeng.config import FlowSpec

INTERRUPTED = 130


@click.command(name="try")
@click.argument("flow_file", type=click.Path(path_type=Path), metavar="FLOW")
@click.argument("inputs", nargs=-1, type=click.Path(path_type=Path), metavar="[INPUT]...")
@click.option("--json", "as_json", is_flag=True, help="Print each event as a line of JSON.")
@click.option(
    "--explain",
    type=click.IntRange(min=1, max=1000),
    metavar="N",
    help="Show the effect of each filter on each of the first N events, and read no more.",
)
@click.option(
    "--source",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Receive the lines as this source of the flow, counted from 0.",
)
@click.option("--host", help="The events' host. Default: as for a sender on this host.")
@click.option("--attr", "attrs", multiple=True, metavar="KEY=VALUE", help="An attribute of all.")
@click.option(
    "--ts", "time", metavar="TIME", help="The time of receipt, in RFC 3339. Default: now."
)
def try_(
    *,
    flow_file: Path,
    inputs: tuple[Path, ...],
    as_json: bool,
    explain: int | None,
    source: int,
    host: str | None,
    attrs: tuple[str, ...],
    time: str | None,
) -> None:
    """Run lines through the filters of a flow file, and print the events that its sinks would get.

    Lines come from files, or from standard input. It needs no cluster, and writes to no sink.
    The numbers of events in and out are printed at the end, on standard error.
    """
    with no_garbage_collection():
        (file,) = read_flows([flow_file])
        from flumeng.agent.dryrun.local_spark import LocalSpark  # noqa: PLC0415  loads pyarrow
        from flumeng.agent.dryrun.received_lines import ReceivedLines  # noqa: PLC0415  loads pyarrow
        from flumeng.agent.dryrun.users_code import calls_users_code  # noqa: PLC0415  too
        from flumeng.platform import arrow_pandas  # noqa: PLC0415  too

        users_code = calls_users_code(file.spec)
        arrow_pandas.leave_out()
        received = ReceivedLines(
            file.spec, source, host=host, attrs=given(attrs, "an attribute"), ts=moment(time)
        )
    if received.filtered_by:
        warn(
            f"the filters of {received.filtered_by} do not run here, only this flow's "
            "own: each line is the body of an event after those filters"
        )
    spark = LocalSpark(partial(click.echo, err=True), users_code=users_code)
    with quiet_end(spark):
        if explain is not None:
            _explain(file.spec, received, inputs, spark, explain, as_json=as_json)
        else:
            _run(file.spec, received, inputs, spark, as_json=as_json)


def moment(text: str | None) -> int | None:
    """Return a time as microseconds since 1970; None for None. Raises UserError."""
    if text is None:
        return None
    try:
        return micros(text)
    except ValueError as error:
        raise UserError(f"--ts: {error}, not {text!r}") from error


@contextlib.contextmanager
def quiet_end(spark: LocalSpark) -> Iterator[None]:
    """End without a traceback on a broken pipe or Ctrl-C; stop Spark."""
    try:
        yield
    except BrokenPipeError:
        _write_no_more()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    finally:
        spark.stop()


def _write_no_more() -> None:
    """Discard buffered output, without an error from Python at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write(content: memoryview) -> None:
    """Write to standard output. Raises BrokenPipeError, UnavailableError."""
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _write_no_more()
        raise UnavailableError(f"cannot write the output: {error.strerror}") from error


def _run(
    spec: FlowSpec,
    received: ReceivedLines,
    inputs: Sequence[Path],
    spark: LocalSpark,
    *,
    as_json: bool,
) -> None:
    with no_garbage_collection():
        from flumeng.agent.dryrun import rendering, running  # noqa: PLC0415  loads pyarrow
        from flumeng.agent.dryrun.filter_tree import FilterTree  # noqa: PLC0415  loads pyarrow
        from flumeng.agent.dryrun.tap import end_of  # noqa: PLC0415  loads pyarrow

        tree = FilterTree(spec.stages, spark, received.schema)
    render = rendering.json_lines if as_json else rendering.text_lines
    counts = running.EventCounts()
    try:
        for outputs in running.run(tree, received, inputs, counts):
            for output in outputs:
                end = end_of(output, spec)
                for events in output.combined():
                    write(render(events, end))
    finally:
        errors = f", {counts.parse_errors} of them with parse_error" if counts.parse_errors else ""
        letters = f", {count(counts.dead_letters, 'dead letter')}" if counts.dead_letters else ""
        totals = f"{count(counts.received, 'event')} in, {counts.out} out{errors}{letters}"
        warn(totals)


def _explain(
    spec: FlowSpec,
    received: ReceivedLines,
    inputs: Sequence[Path],
    spark: LocalSpark,
    events: int,
    *,
    as_json: bool,
) -> None:
    from flumeng.agent.dryrun import running  # noqa: PLC0415  loads pyarrow
    from flumeng.agent.dryrun.explaining import explain  # noqa: PLC0415  loads pyarrow

    for taken in running.first(received, inputs, events):
        for explained in explain(spec, spark, taken):
            show_explained(explained, as_json=as_json)


def show_explained(explained: Explained, *, as_json: bool) -> None:
    from flumeng.agent.dryrun.explaining import as_json as as_json_of  # noqa: PLC0415  loads pyarrow
    from flumeng.agent.dryrun.explaining import outcome  # noqa: PLC0415  loads pyarrow

    if as_json:
        click.echo(json.dumps(as_json_of(explained), ensure_ascii=False))
        return
    event = explained.event
    body = json.dumps(event.get("body", ""), ensure_ascii=False)
    click.echo(f"event {event['seq']}: {body}")
    for step in explained.steps:
        click.echo(f"{'  ' * (step.depth + 1)}{step.name}: {outcome(step)}")


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@click.option("-k", "part", default="", metavar="TEXT", help="Only cases with this in their name.")
@click.option(
    "--junit",
    "junit_file",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write the outcomes there as JUnit XML.",
)
def test(files: tuple[Path, ...], part: str, junit_file: Path | None) -> None:
    """Run the cases in files such as web-logs.test.yaml through the filters of their flows.

    A case gives the input events and the expected output events. Exit code 1 if a case fails, 2 if
    a file is invalid. It needs no cluster, and writes to no sink.
    """
    with no_garbage_collection():
        from flumeng.agent.dryrun.cases import read_cases  # noqa: PLC0415  loads the spec
        from flumeng.agent.dryrun.local_spark import LocalSpark  # noqa: PLC0415  loads pyarrow
        from flumeng.agent.dryrun.outcomes import junit, run_cases  # noqa: PLC0415  loads pyarrow
        from flumeng.agent.dryrun.users_code import calls_users_code  # noqa: PLC0415  too
        from flumeng.platform import arrow_pandas  # noqa: PLC0415  too

        read = read_cases(files)
        users_code = any(calls_users_code(cases.spec) for cases in read)
        arrow_pandas.leave_out()
    spark = LocalSpark(partial(click.echo, err=True), users_code=users_code)
    outcomes: list[Outcome] = []
    with quiet_end(spark):
        for cases in read:
            for outcome in run_cases(cases, spark, lambda name: part.lower() in name.lower()):
                outcomes.append(outcome)
                if not outcome.passed:
                    click.echo(failure_text(outcome))
    if not outcomes:
        raise UserError(f"no case has {part!r} in its name")
    if junit_file is not None:
        failures = {failed.place: failure_text(failed) for failed in outcomes if not failed.passed}
        junit_file.write_text(junit(outcomes, failures), "utf-8")
    failed = sum(not outcome.passed for outcome in outcomes)
    click.echo(f"{count(len(outcomes), 'case')}, {failed or 'none'} failed")
    if failed:
        raise SystemExit(1)


def failure_text(outcome: Outcome) -> str:
    lines = [f"{outcome.place}: {outcome.name}: failed"]
    if outcome.error:
        lines.append(f"  {outcome.error}")
    for difference in outcome.differences:
        where = f"line {difference.line}: " if difference.line else ""
        lines.append(f"  {where}{difference.what}")
    return "\n".join(lines)
