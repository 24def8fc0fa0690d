"""``flumeng flow pause``, ``resume``, ``stop`` and ``handoff``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from cli.context import CliContext, Name, flow_argument, with_operator, with_store
from cli.lazy import exit_code
from cli.options import given, json_option, reason_option, revision_option, timeout_option
from cli.output import count, show_json, warn
from flumeng.control.commands.flows import StateOutcome, hand_off, set_flow_state, set_flow_states
from flumeng.control.commands.lookup import require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.parts import parts_there
from flumeng.control.queries import conditions, overview
from flumeng.control.queries.acks import acks_of, positions
from flumeng.control.queries.overview import UNREADABLE, Receiving, receiving
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UserError

RESUMED = "it starts to run now (follow with `flumeng flow wait`)"


@dataclass(frozen=True)
class Chosen:
    """The flows of a command: the named ones, all, or those with all of these labels."""

    names: tuple[str, ...]
    every: bool
    labels: tuple[str, ...]
    if_revision: int | None

    def __post_init__(self) -> None:
        if sum(map(bool, (self.names, self.every, self.labels))) != 1:
            raise UserError("name the flows, or take --all or --label KEY=VALUE")
        if self.if_revision is not None and len(self.names) != 1:
            raise UserError("--if-revision goes with one flow")

    def flows(self, store: Store) -> list[str]:
        """Leaves out flows that are being deleted; keeps unreadable ones, to report them."""
        if self.names:
            return list(dict.fromkeys(self.names))
        wanted = given(self.labels, "a label").items()
        found = [
            row.flow
            for row in overview.flows(store, checked=False)
            if row.state != "deleted" and (wanted <= row.labels.items() or row.state == UNREADABLE)
        ]
        if not found and self.labels:
            raise UserError(f"no flow has the labels {', '.join(self.labels)}: see `flow list`")
        return found


def for_flows(command: Callable[..., None]) -> Callable[..., None]:
    @click.argument("names", nargs=-1, type=Name("flow"), metavar="[FLOW]...")
    @click.option("--all", "every", is_flag=True, help="All flows.")
    @click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="KEY=VALUE",
        help="All flows with this label; may be given again, for flows with all of them.",
    )
    @reason_option
    @revision_option
    @json_option
    @with_store
    @functools.wraps(command)
    def chosen(context: CliContext, store: Store, /, **options: Any) -> None:
        words = (options.pop(name) for name in ("names", "every", "labels", "if_revision"))
        return command(context, store, Chosen(*words), **options)

    return chosen


@click.command()
@for_flows
def pause(context: CliContext, store: Store, chosen: Chosen, *, reason: str, as_json: bool) -> None:
    """Stop collecting; the sources go on into the journals, and messages in Kafka wait there, so
    nothing is lost for as long as it is kept. Isolated parts are paused, resumed and stopped with
    their flow, or one alone by its name, such as web~errors."""
    _set(context, store, chosen, "suspended", reason=reason, told=_paused, as_json=as_json)


@click.command()
@for_flows
def resume(
    context: CliContext, store: Store, chosen: Chosen, *, reason: str, as_json: bool
) -> None:
    """Let paused or stopped flows run again."""
    _set(
        context,
        store,
        chosen,
        "running",
        reason=reason,
        told=lambda _kept: RESUMED,
        as_json=as_json,
    )


@click.command()
@for_flows
def stop(context: CliContext, store: Store, chosen: Chosen, *, reason: str, as_json: bool) -> None:
    """Stop the sources and collect all accepted events; the flows stay. Messages in Kafka are not
    collected to their end: a flow that is resumed goes on there."""
    _set(context, store, chosen, "stopped", reason=reason, told=_stopped, as_json=as_json)


def _paused(kept: Receiving) -> str:
    if not kept.others:
        return "collecting stops now, its sources go on into the journals"
    if kept.flow:
        return f"collecting stops now, what comes waits in the journals of flow {kept.flow}"
    if not kept.journals:
        return "collecting stops now, what comes waits in Kafka"
    return "collecting stops now, its sources go on into the journals or wait in Kafka"


def _stopped(kept: Receiving) -> str:
    if not kept.others:
        return "its sources stop now, its journals are collected to their end"
    if kept.flow:
        return f"collecting stops now, what is left waits in the journals of flow {kept.flow}"
    if not kept.journals:
        return "collecting stops now, what is left waits in Kafka"
    return (
        "its sources stop now, its journals are collected to their end, and what is left in Kafka "
        "waits there"
    )


def _set(
    context: CliContext,
    store: Store,
    chosen: Chosen,
    state: str,
    *,
    reason: str,
    told: Callable[[Receiving], str],
    as_json: bool,
) -> None:
    names = chosen.flows(store)
    operator = context.operator(store, reason)
    if len(names) == 1:
        changed = set_flow_state(operator, names[0], state, expect_revision=chosen.if_revision)
        outcomes = [StateOutcome(names[0], changed)]
    else:
        outcomes = list(set_flow_states(operator, names, state))
    failed = [one for one in outcomes if one.error]
    if as_json:
        show_json(
            [
                {"flow": one.flow, "changed": one.changed, "error": str(one.error or "")}
                for one in outcomes
            ]
        )
    else:
        kept = receiving(store, [one.flow for one in outcomes if one.changed])
        for one in outcomes:
            if one.error:
                warn(one.error)
            elif one.changed:
                click.echo(f"flow {one.flow}: {told(kept[one.flow])}{_with(store, one.flow)}")
            else:
                click.echo(f"flow {one.flow} is {state} already")
        if len(outcomes) != 1:
            click.echo(_total(outcomes))
    if failed:
        raise SystemExit(max(exit_code(one.error) for one in failed if one.error))


def _with(store: Store, flow: str) -> str:
    parts = ", ".join(parts_there(store, [flow]))
    return f"; with its isolated parts: {parts}" if parts else ""


def _total(outcomes: Sequence[StateOutcome]) -> str:
    changed = sum(one.changed for one in outcomes)
    failed = sum(one.error is not None for one in outcomes)
    return f"{count(changed, 'flow')} changed, {failed} failed, {len(outcomes)} in all"


@click.command()
@flow_argument
@click.option("--wait", is_flag=True, help="Until all that was there when it was asked is acked.")
@timeout_option(300.0)
@revision_option
@json_option
@with_operator
def handoff(
    context: CliContext,
    operator: Operator,
    *,
    name: str,
    wait: bool,
    timeout: float,
    if_revision: int | None,
    as_json: bool,
) -> None:
    """Deliver now all events that the flow has read, without waiting for its batches to fill.

    Its tasks write and commit the events that have come so far, once; then batches gather again for
    `batch.seconds`. With --wait: exit code 1 when it is not all delivered in time.
    """
    store = operator.store
    require_flow(store, name)
    ends = {}
    if wait:
        rows = acks_of(store, positions(store, context.ask), name)
        ends = {row.partition: row.end for row in rows if row.end is not None}
        for row in rows:
            if row.end is None:
                warn(f"nobody says how far {row.partition} reaches: it is not waited for")
    number = hand_off(operator, name, expect_revision=if_revision)
    if not as_json:
        click.echo(f"flow {name}: its tasks deliver now what has come")
    if wait:
        context.wait_for(lambda: conditions.flow_acked(store, name, ends), timeout)
    if as_json:
        show_json({"flow": name, "handoff": number, "partitions": len(ends)})
    elif wait:
        click.echo(f"delivered, in {count(len(ends), 'partition')}")
