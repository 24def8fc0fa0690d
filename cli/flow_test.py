"""``flumeng flow test``: cases beside a flow file, run without a cluster."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.flow_try import quiet_end
from cli.output import count
from flumeng.platform.errors import UserError
from flumeng.platform.garbage import no_garbage_collection

if TYPE_CHECKING:
    from flumeng.agent.dryrun.outcomes import Outcome


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

    A case says what comes in, and what has to come out. Exit code 1 when one has failed, 2 when a
    file is wrong. No cluster is asked, and no sink is written to.
    """
    with no_garbage_collection():
        from flumeng.agent.dryrun.cases import read_cases  # noqa: PLC0415  loads the spec
        from flumeng.agent.dryrun.junit import junit  # noqa: PLC0415  loads pyarrow
        from flumeng.agent.dryrun.local_spark import LocalSpark  # noqa: PLC0415  loads pyarrow
        from flumeng.agent.dryrun.outcomes import run_cases  # noqa: PLC0415  loads pyarrow
        from flumeng.agent.dryrun.users_code import calls_users_code, leave_out_pandas  # noqa: PLC0415  too

        read = read_cases(files)
        users_code = any(calls_users_code(cases.spec) for cases in read)
        if not users_code:
            leave_out_pandas()
    spark = LocalSpark(partial(click.echo, err=True), users_code=users_code)
    outcomes: list[Outcome] = []
    with quiet_end(spark):
        for cases in read:
            for outcome in run_cases(cases, spark, lambda name: part.lower() in name.lower()):
                outcomes.append(outcome)
                if not outcome.passed:
                    click.echo(told(outcome))
    if not outcomes:
        raise UserError(f"no case has {part!r} in its name")
    if junit_file is not None:
        failures = {one.place: told(one) for one in outcomes if not one.passed}
        junit_file.write_text(junit(outcomes, failures), "utf-8")
    failed = sum(not outcome.passed for outcome in outcomes)
    click.echo(f"{count(len(outcomes), 'case')}, {failed or 'none'} failed")
    if failed:
        raise SystemExit(1)


def told(outcome: Outcome) -> str:
    """A failed case, for people."""
    said = [f"{outcome.place}: {outcome.name}: failed"]
    if outcome.error:
        said.append(f"  {outcome.error}")
    for difference in outcome.differences:
        where = f"line {difference.line}: " if difference.line else ""
        said.append(f"  {where}{difference.what}")
    return "\n".join(said)
