"""The command tree: what a command needs is imported when the command is used, never before.

``--help`` of the whole tree must stay fast, so a group knows its commands' names and one-line
helps from a table, and where to find them. An error of flumeng's tree leaves here as one sentence
on standard error and an exit code; anything else is a fault of ours and shows its traceback.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from flumeng.errors import ConflictError, FlumengError, UnavailableError, UserError
from flumeng.runtime.garbage import no_garbage_collection

EXIT_CODES: tuple[tuple[type[FlumengError], int], ...] = (
    (UserError, 2),
    (ConflictError, 3),
    (UnavailableError, 4),
    (FlumengError, 1),
)


def exit_code(error: FlumengError) -> int:
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


@dataclass(frozen=True)
class Lazy:
    """Where a command is (``"module:attribute"``) and its one-line help."""

    place: str
    help: str


class LazyGroup(click.Group):
    """A group with commands that are imported when they are asked for, besides those it has."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **more: Any) -> None:
        super().__init__(*args, **more)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = self._lazy.get(cmd_name)
        if row is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = row.place.partition(":")
        with no_garbage_collection():
            command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        command.help = command.help or row.help
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  click's
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.help) for name, row in self._lazy.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FlumengError as error:
            click.echo(f"flumeng: {error}", err=True)
            raise click.exceptions.Exit(exit_code(error)) from error
