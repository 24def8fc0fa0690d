"""``flumeng top``: the cluster on one screen, refreshed."""

from __future__ import annotations

import dataclasses
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from cli.context import CliContext, with_store
from cli.options import json_option
from cli.output import show_json, show_table
from cli.top_screen import Seen, View, headline, picture, pressed, tables
from flumeng.control.queries import flow_rates, health, overview
from flumeng.control.queries.counters import task_counts
from flumeng.control.queries.flow_graph import Rates, rates_of
from flumeng.control.queries.flow_rates import RateMeter
from flumeng.control.queries.lag import lag_of_flow
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UnavailableError, UserError

REFRESH_SECONDS = 2.0
SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
}
Wait = Callable[[float], str]
"""Waits up to this many seconds for a key; returns its name or letter, or an empty text."""


@click.command()
@json_option
@with_store
def top(context: CliContext, store: Store, as_json: bool) -> None:
    """Show health, flows with their rates, and nodes, until q; in a pipe once.

    Rates are events a second, smoothed over some ten seconds; DROPPED/S and DEAD/S, of events that
    filters dropped and of dead letters, are means of the last minute. Keys: up and down select a
    flow, enter shows its tasks and partitions, s sorts by another column, r reverses the order.
    """
    meter = RateMeter()
    if as_json:
        seen = read_cluster(context, store, meter, View())
        show_json(flow_rates.top(seen.status, seen.nodes, seen.rates))
    elif not (sys.stdout.isatty() and sys.stdin.isatty()):
        seen = read_cluster(context, store, meter, View())
        click.echo(headline(seen.status))
        for headers, rows in tables(seen, View()):
            show_table(headers, rows)
    else:
        with keyboard(sys.stdin.fileno()) as wait:
            live(context, store, wait)


def read_cluster(context: CliContext, store: Store, meter: RateMeter, view: View) -> Seen:
    status = health.status(store, context.accounts, context.counters, context.clock())
    meter.add(status, _last_minute(context, store), context.monotonic())
    return Seen(
        status,
        overview.nodes(store),
        {flow["flow"]: meter.of(flow["flow"]) for flow in status["flows"]},
        _details(context, store, view.opened) if view.opened else None,
    )


def _last_minute(context: CliContext, store: Store) -> dict[str, Rates]:
    flows = overview.flows(ReadCache(store), checked=False)
    tasks = [task for flow in flows for task in flow.tasks]
    counts = task_counts(store, context.counters, tasks)
    now = context.clock()
    return {
        flow.flow: rates_of(
            dataclasses.replace(
                counts, rows=tuple(row for row in counts.rows if row.flow == flow.flow)
            ),
            now,
        )
        for flow in flows
    }


def _details(context: CliContext, store: Store, flow: str) -> Any:
    try:
        tasks = overview.flow(store, flow).tasks
        return tasks, lag_of_flow(store, context.accounts, flow, context.clock())
    except UserError:  # deleted meanwhile
        return None


def live(context: CliContext, store: Store, wait: Wait) -> None:
    """Show the screen until q or Ctrl-C; ZooKeeper may be unavailable meanwhile."""
    from rich.live import Live  # noqa: PLC0415  loads rich
    from rich.text import Text  # noqa: PLC0415  loads rich

    meter, view = RateMeter(), View()
    seen: Seen | None = None
    with Live(Text("loading"), screen=True, auto_refresh=False) as screen:
        try:
            while not view.ended:
                try:
                    seen = read_cluster(context, store, meter, view)
                except UnavailableError as error:
                    screen.update(Text(f"{error}\nq quit"), refresh=True)
                else:
                    screen.update(picture(seen, view, screen.console.height), refresh=True)
                view = _until_next_look(context, wait, view, seen, screen)
        except KeyboardInterrupt:
            return


def _until_next_look(
    context: CliContext, wait: Wait, view: View, seen: Seen | None, screen: Any
) -> View:
    """Wait for a refresh; redraw after keys. Return when a flow is opened or closed, or at q."""
    end = context.monotonic() + REFRESH_SECONDS
    while (left := end - context.monotonic()) > 0:
        key = wait(left)
        if not key:
            break
        before, view = view, pressed(view, key, seen or Seen({"flows": [], "causes": []}))
        if view.ended or view.opened != before.opened:
            break
        if seen is not None:
            screen.update(picture(seen, view, screen.console.height), refresh=True)
    return view


@contextmanager
def keyboard(fd: int) -> Iterator[Wait]:
    """Yield a reader of single keys from the terminal ``fd``, without echo."""
    before = termios.tcgetattr(fd)

    def wait(seconds: float) -> str:
        if not select.select([fd], [], [], seconds)[0]:
            return ""
        pressed = os.read(fd, 8)
        return SEQUENCES.get(pressed) or pressed[:1].decode("ascii", "ignore")

    tty.setcbreak(fd)
    try:
        yield wait
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
