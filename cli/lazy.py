"""Command groups that import a command when it is used, so that ``--help`` is fast. Errors of
flumeng end as one sentence on standard error and an exit code; others show a traceback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from flumeng.platform.errors import (
    ConflictError,
    FlumengError,
    ForbiddenError,
    NotAllowedError,
    UnavailableError,
    UserError,
)
from flumeng.platform.garbage_collection import no_garbage_collection
from flumeng.platform.options.problems import nearest

EXIT_CODES: tuple[tuple[type[FlumengError], int], ...] = (
    (NotAllowedError, 6),
    (UserError, 2),
    (ConflictError, 3),
    (ForbiddenError, 6),
    (UnavailableError, 4),
    (FlumengError, 1),
)


def exit_code(error: FlumengError) -> int:
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def first_sentence(text: str) -> str:
    """Return the first sentence: up to a full stop before a space, or the first paragraph."""
    paragraph = " ".join(text.split("\n\n", 1)[0].split())
    end = paragraph.find(". ")
    return paragraph if end < 0 else paragraph[: end + 1]


@dataclass(frozen=True)
class Lazy:
    """The module and name of a command (``"module:attribute"``), and its one-line help."""

    target: str
    help: str


class CommandGroup(click.Group):
    """A group whose commands may be imported when used; its help has a line for each."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy] = {}, **more: Any) -> None:
        super().__init__(*args, **more)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's
        return [*self.commands, *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = self._lazy.get(cmd_name)
        if row is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = row.target.partition(":")
        with no_garbage_collection():
            command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        command.help = command.help or row.help
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f'there is no command "{name}"; {nearest(name, self.list_commands(ctx))}')
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._line(ctx, name)) for name in self.list_commands(ctx)])

    def _line(self, ctx: click.Context, name: str) -> str:
        if name in self._lazy:
            return self._lazy[name].help
        command = self.get_command(ctx, name)
        assert command is not None
        return first_sentence(command.help or "")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FlumengError as error:
            click.echo(f"flumeng: {error}", err=True)
            raise click.exceptions.Exit(exit_code(error)) from error
