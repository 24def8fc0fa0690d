"""``flumeng cluster``: settings of the whole cluster, maintenance mode, and the audit."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from cli.context import CliContext, with_operator, with_store
from cli.lazy import CommandGroup, Lazy
from cli.options import json_option
from cli.output import show_json, show_rows, show_table
from flumeng.control.commands import settings
from flumeng.control.commands.nodes import on_node, set_on_node
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import cluster_settings, history, timestamps
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UserError
from zkschema import records

LAZY = {"secure": Lazy("cli.secure:secure", "Certificates of processes and persons.")}


class Key(click.types.StringParamType):
    name = "key"

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002  click's
        param: click.Parameter,  # noqa: ARG002  click's
        incomplete: str,
    ) -> list[CompletionItem]:
        return [
            CompletionItem(key, help=setting.doc)
            for key, setting in settings.SETTINGS.items()
            if key.startswith(incomplete)
        ]


@click.group(cls=CommandGroup, lazy=LAZY)
def cluster() -> None:
    """Settings of the whole cluster, maintenance mode, and the audit of changes."""


@cluster.command()
@click.option("--node", metavar="NODE", help="Show the settings of that node.")
@json_option
@with_store
def show(_context: CliContext, store: Store, node: str | None, as_json: bool) -> None:
    """Show every setting, its default and its meaning, and maintenance mode."""
    if as_json:
        show_json(cluster_settings.cluster_settings(store, node))
        return
    rows, maintenance = cluster_settings.rows(store, node)
    show_table(
        ("KEY", "VALUE", "DEFAULT", "MEANING"),
        (
            (row.key, settings.shown(row.value), settings.shown(row.default), row.doc)
            for row in rows
        ),
    )
    click.echo(f"maintenance mode is {_described(maintenance)}")


@cluster.command()
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Show the newest N entries.",
)
@json_option
@with_store
def audit(_context: CliContext, store: Store, last: int, as_json: bool) -> None:
    """Show the audit: each change with its author, time and reason; the newest comes last."""
    show_rows(
        history.audit(store, last),
        ("TIME (UTC)", "WHO", "COMMAND", "REASON"),
        lambda row: (timestamps.utc(row.time), row.who, row.command, row.reason),
        as_json=as_json,
    )


@cluster.command(name="set")
@click.argument("key", type=Key(), metavar="KEY")
@click.argument("value", required=False, metavar="[VALUE]")
@click.option("--unset", is_flag=True, help="Restore the default.")
@click.option("--node", metavar="NODE", help="On that node only; for settings of Spark.")
@with_operator
def set_(
    _context: CliContext,
    operator: Operator,
    *,
    key: str,
    value: str | None,
    unset: bool,
    node: str | None,
) -> None:
    """Change a setting; masters apply it at once."""
    if unset == (value is not None):
        raise UserError("give the setting a VALUE, or restore its default with --unset")
    if node is not None:
        changed = set_on_node(operator, node, key, value)
        rows = on_node(operator.store, node, settings.settings(operator.store)[0])
        (value,) = (settings.shown(row.value) for row in rows if row.key == key)
    elif value is None:
        changed = settings.unset_setting(operator, key)
        value = settings.shown(settings.SETTINGS[key].get(records.Cluster()))
    else:
        changed = settings.set_setting(operator, key, value)
    click.echo(f"{key} is {value}{'' if changed else ' already'}")


@cluster.command()
@click.argument("switch", type=click.Choice(["on", "off"]), metavar="on|off")
@with_operator
def maintenance(_context: CliContext, operator: Operator, switch: str) -> None:
    """Stop all moves of tasks to other nodes, or allow them again.

    Running tasks go on; tasks of nodes that go down wait for them.
    """
    if switch == "on":
        settings.begin_maintenance(operator)
        click.echo("maintenance mode is on: nothing is moved until it is off")
        return
    ended = settings.end_maintenance(operator)
    if ended is None:
        click.echo("maintenance mode is off already")
    else:
        click.echo(f"maintenance mode is off; it was {_described(ended)}")


def _described(mode: records.Maintenance | None) -> str:
    if mode is None:
        return "off"
    by = f"automatically ({mode.who})" if mode.automatic else f"by {mode.who}"
    return f"on {by} since {timestamps.utc(mode.since)} UTC: {mode.why}"
