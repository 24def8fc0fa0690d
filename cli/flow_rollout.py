"""``flumeng flow rollout``."""

from __future__ import annotations

import click

from cli.context import CliContext, flow_argument, with_operator, with_store
from cli.lazy import CommandGroup
from cli.options import json_option, revision_option
from cli.output import show_json
from flumeng.control.commands import rollouts
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import overview
from flumeng.control.zookeeper import Store


@click.group(cls=CommandGroup)
def rollout() -> None:
    """Show, pause, resume, complete or abort a rollout."""


@rollout.command()
@flow_argument
@json_option
@with_store
def status(_context: CliContext, store: Store, name: str, as_json: bool) -> None:
    """Show how far the rollout of a flow is, and why the last one went back."""
    detail = overview.flow(store, name)
    if as_json:
        show_json(detail.rollout_status)
        return
    if detail.rollout is None:
        click.echo(f"flow {name}: no rollout is under way, revision {detail.revision} is current")
    else:
        click.echo(f"flow {name}: {detail.rollout}")
    if detail.went_back:
        click.echo(f"it went back to revision {detail.revision}: {detail.went_back}")


@rollout.command()
@flow_argument
@revision_option
@with_operator
def pause(_context: CliContext, operator: Operator, name: str, if_revision: int | None) -> None:
    """Let no further task take the new revision; tasks that have it keep it."""
    changed = rollouts.change_rollout(operator, name, "pause", expect_revision=if_revision)
    click.echo(f"flow {name}: its rollout is paused{'' if changed else ' already'}")


@rollout.command()
@flow_argument
@revision_option
@with_operator
def resume(_context: CliContext, operator: Operator, name: str, if_revision: int | None) -> None:
    """Resume a paused rollout."""
    changed = rollouts.change_rollout(operator, name, "resume", expect_revision=if_revision)
    click.echo(f"flow {name}: its rollout goes on{'' if changed else ' already'}")


@rollout.command()
@flow_argument
@revision_option
@with_operator
def promote(_context: CliContext, operator: Operator, name: str, if_revision: int | None) -> None:
    """Give the new revision to all tasks now, without further proof."""
    rollouts.change_rollout(operator, name, "promote", expect_revision=if_revision)
    click.echo(f"flow {name}: all tasks take its current revision now")


@rollout.command()
@flow_argument
@revision_option
@with_operator
def abort(_context: CliContext, operator: Operator, name: str, if_revision: int | None) -> None:
    """Go back to the revision that all tasks ran before."""
    before = rollouts.abort_rollout(operator, name, expect_revision=if_revision)
    click.echo(f"flow {name} goes back to revision {before}")
