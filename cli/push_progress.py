"""Progress of a push: a table of sites on a terminal, a line for each event in a pipe."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from cli.context import CliContext
from cli.output import make_table
from cli.push_output import how
from flumeng.control.queries import health, timestamps
from flumeng.fleet.execution import Execution, Manner, Note, Report, World
from flumeng.fleet.inventory import Inventory
from flumeng.fleet.plan import PushPlan
from flumeng.fleet.site_copy import SiteCopy
from flumeng.fleet.site_turn import Clocks
from flumeng.fleet.waves import Instruction, Outcome, Tell, Wave, WaveBegins, WaveEnds
from flumeng.platform import processes
from zkschema.records import PushClaim

if TYPE_CHECKING:
    from rich.live import Live

MOST_ROWS = 40


def world(context: CliContext) -> World:
    def causes(copy: SiteCopy) -> Mapping[str, str]:
        status = health.status(copy, context.accounts, context.counters, context.clock())
        rolling = {
            f"flow {flow['flow']}: rollout": f"flow {flow['flow']}: its rollout is not over"
            for flow in status["flows"]
            if flow["rollout"]
        }
        return {cause["about"]: cause["what"] for cause in status["causes"]} | rolling

    clocks = Clocks(context.clock, context.monotonic, context.sleep)
    return World(context.open_site, causes, clocks, processes.has_ended)


def claim_of(context: CliContext, push: str) -> PushClaim:
    return PushClaim(
        who=context.who(), push=push, boot=processes.boot(), pid=os.getpid(), since=context.clock()
    )


def carry_out(
    context: CliContext,
    inventory: Inventory,
    plan: PushPlan,
    waves: tuple[Wave, ...],
    manner: Manner,
) -> Outcome:
    """Carry out a push. Ctrl-C completes the sites in progress; a second one exits at once."""
    with _reported(context) as report:
        execution = Execution(inventory, plan, waves, manner, world(context), report)
        with _stopped_by_signals(execution):
            return execution.run()


@contextmanager
def _stopped_by_signals(execution: Execution) -> Iterator[None]:
    def stop(number: int, _frame: Any) -> None:
        signal.signal(number, before[signal.Signals(number)])
        click.echo(
            "stopping: sites under way are completed; a second signal leaves at once", err=True
        )
        execution.stop()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])


@contextmanager
def _reported(context: CliContext) -> Iterator[Report]:
    if not sys.stderr.isatty():
        yield lambda event: _print_line(context, event)
        return
    from rich.console import Console  # noqa: PLC0415  only for people
    from rich.live import Live  # noqa: PLC0415  only for people

    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        yield _Board(live).report


class _Board:
    def __init__(self, live: Live) -> None:
        self._live = live
        self._wave = ""
        self._rows: dict[str, tuple[str, str, str]] = {}

    def report(self, event: Instruction | Note) -> None:
        if isinstance(event, WaveBegins):
            self._wave = event.wave
        elif isinstance(event, Tell):
            step = event.step
            self._rows.pop(step.site, None)
            self._rows[step.site] = (self._wave, str(step.after), step.why)
        elif isinstance(event, Note):
            wave, state, _ = self._rows.get(event.site, (self._wave, "", ""))
            self._rows[event.site] = (wave, state, event.text)
        last = list(self._rows.items())[-MOST_ROWS:]
        table = make_table(
            ("WAVE", "SITE", "STATE", "WHAT"),
            ((wave, site, state, note) for site, (wave, state, note) in last),
        )
        self._live.update(table, refresh=True)


def _print_line(context: CliContext, event: Instruction | Note) -> None:
    line = _line(event)
    if line:
        click.echo(f"{timestamps.utc(context.clock())} {line}", err=True)


def _line(event: Instruction | Note) -> str:
    if isinstance(event, WaveBegins):
        return f"wave {event.wave} begins"
    if isinstance(event, WaveEnds):
        return f"wave {event.wave} {how(event.ending)}"
    if isinstance(event, Tell):
        return f"site {event.step}"
    if isinstance(event, Note):
        return f"site {event.site}: {event.text}"
    return ""
