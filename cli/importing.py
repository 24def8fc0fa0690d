"""``flumeng import``: each entry point in ``flumeng.importers`` is a ``click.Command``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from cli.lazy import CommandGroup
from flumeng.platform.errors import UserError

OWN = {
    "flume-ng": ("flumeng-flume", "Import agents of Flume 1.x"),
    "flume-og": ("flumeng-flume", "Import nodes of Flume 0.9"),
}
"""This project's importers: the package that has each, and a help text when it is missing."""


def _installed() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="flumeng.importers")}


class Importers(CommandGroup):
    """The importers: installed ones (``installed``: entry point by name) and missing own ones."""

    def __init__(
        self,
        *args: Any,
        installed: Callable[[], Mapping[str, EntryPoint]] = _installed,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._installed = installed

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's
        return sorted({*OWN, *self._installed()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (entry_point := self._installed().get(cmd_name)) is not None:
            try:
                command = entry_point.load()
                if not isinstance(command, click.Command):
                    raise TypeError("it is not a click.Command")
            except Exception as error:  # help is shown despite a broken importer
                reason = f"the importer {cmd_name} ({entry_point.value}) cannot be loaded: {error}"
                return _missing(cmd_name, "Cannot be loaded.", reason)
            return command
        if cmd_name not in OWN:
            return super().get_command(ctx, cmd_name)
        distribution, text = OWN[cmd_name]
        return _missing(
            cmd_name,
            f"{text} (not installed: needs {distribution}).",
            f"{cmd_name} is in a separate package: pip install {distribution}",
        )


def _missing(name: str, text: str, reason: str) -> click.Command:
    @click.command(name, help=text, context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def refuse(words: tuple[str, ...]) -> None:  # noqa: ARG001  any words
        raise UserError(reason)

    return refuse


@click.group(name="import", cls=Importers)
def import_() -> None:
    """Convert configurations of other systems to flow files."""
