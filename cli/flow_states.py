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
from flumeng.control.queries import conditions, overview
from flumeng.control.queries.acks import acks_of, positions
from flumeng.control.queries.flow_health import UNREADABLE
from flumeng.control.queries.state_changes import changes
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UserError


@dataclass(frozen=True)
class Chosen:
    """The flows of a command: the named ones, all, or those with all of these labels."""

    names: tuple[str, ...]
    every: bool
    labels: tuple[str, ...]
    if_revision: int | None

    def __post_init__(self) -> None:
        if sum(map(bool, (self.names, self.every, self.labels))) != 1:
            raise UserError("give either names of flows, or --all, or --label KEY=VALUE")
        if self.if_revision is not None and len(self.names) != 1:
            raise UserError("--if-revision goes with one flow")

    def flows(self, store: Store) -> list[str]:
        """Return the named flows, or all chosen ones: not those being deleted, but unreadable ones,
        to report them. Raises UserError for labels of no flow."""
        if self.names:
            return list(dict.fromkeys(self.names))
        labels = given(self.labels, "a label").items()
        matches = [
            row.flow
            for row in overview.flows(store, checked=False)
            if row.state != "deleted" and (labels <= row.labels.items() or row.state == UNREADABLE)
        ]
        if not matches and self.labels:
            raise UserError(f"no flow has the labels {', '.join(self.labels)}: see `flow list`")
        return matches


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
def pause(context: CliContext, store: Store, chosen: Chosen, **options: Any) -> None:
    """Stop collecting; sources still write to the journals, and messages in Kafka wait there, so
    nothing is lost within their retention. Isolated parts are paused, resumed and stopped with
    their flow, or one alone by its name, such as web~errors."""
    _set(context, store, chosen, "suspended", **options)


@click.command()
@for_flows
def resume(context: CliContext, store: Store, chosen: Chosen, **options: Any) -> None:
    """Let paused or stopped flows run again."""
    _set(context, store, chosen, "running", **options)


@click.command()
@for_flows
def stop(context: CliContext, store: Store, chosen: Chosen, **options: Any) -> None:
    """Stop the sources and collect all accepted events; the flows stay. Remaining messages in Kafka
    are read when the flow is resumed."""
    _set(context, store, chosen, "stopped", **options)


def _set(
    context: CliContext, store: Store, chosen: Chosen, state: str, *, reason: str, as_json: bool
) -> None:
    names = chosen.flows(store)
    operator = context.operator(store, reason)
    if len(names) == 1:
        changed = set_flow_state(operator, names[0], state, expect_revision=chosen.if_revision)
        outcomes = [StateOutcome(names[0], changed)]
    else:
        outcomes = list(set_flow_states(operator, names, state))
    failed = [outcome for outcome in outcomes if outcome.error]
    if as_json:
        show_json([outcome.document for outcome in outcomes])
    else:
        changed_flows = [outcome.flow for outcome in outcomes if outcome.changed]
        sentences = changes(store, changed_flows, state)
        for outcome in outcomes:
            if outcome.error:
                warn(outcome.error)
            elif outcome.changed:
                click.echo(sentences[outcome.flow])
            else:
                click.echo(f"flow {outcome.flow} is {state} already")
        if len(outcomes) != 1:
            click.echo(_total(outcomes))
    if failed:
        raise SystemExit(max(exit_code(outcome.error) for outcome in failed if outcome.error))


def _total(outcomes: Sequence[StateOutcome]) -> str:
    changed = sum(outcome.changed for outcome in outcomes)
    failed = sum(outcome.error is not None for outcome in outcomes)
    return f"{count(changed, 'flow')} changed, {failed} failed, {len(outcomes)} in all"


@click.command()
@flow_argument
@click.option("--wait", is_flag=True, help="Wait until all events accepted so far are acked.")
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

    Its tasks write and commit the events read so far, once; then batches fill again for
    `batch.seconds`. With --wait the exit code is 1 if not all is delivered in time.
    """
    store = operator.store
    require_flow(store, name)
    ends = {}
    if wait:
        rows = acks_of(store, positions(store, context.ask), name)
        ends = {row.partition: row.end for row in rows if row.end is not None}
        for row in rows:
            if row.end is None:
                warn(f"no process reports the end of {row.partition}: it is not waited for")
    number = hand_off(operator, name, expect_revision=if_revision)
    if not as_json:
        click.echo(f"flow {name}: its tasks deliver all events read so far")
    if wait:
        context.wait_for(lambda: conditions.flow_acked(store, name, ends), timeout)
    if as_json:
        show_json({"flow": name, "handoff": number, "partitions": len(ends)})
    elif wait:
        click.echo(f"delivered, in {count(len(ends), 'partition')}")
