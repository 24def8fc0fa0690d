"""``flumeng shell``: the same commands over one connection, with completion. A script stops at the
first command that fails, with its exit code."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click

from cli.context import CliContext, ConnectionPool
from cli.options import zk_envvar
from cli.output import warn
from flumeng.platform.errors import UserError

LEAVE = ("exit", "quit")


class Left(Exception):  # noqa: N818  no error: the user leaves
    pass


class Session:
    def __init__(self, root: click.Command, context: CliContext) -> None:
        self.root = root
        self.context = context

    def run(self, line: str) -> int:
        """Run one line; return its exit code. Raises ``Left`` when the line leaves the shell."""
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            warn(f"{error}: {line.strip()}")
            return 2
        if not words:
            return 0
        if words[0] in LEAVE:
            raise Left
        if words[0] == "flumeng":  # as it is written everywhere else
            words = words[1:]
        if words[:1] == ["help"]:
            words = [*words[1:], "--help"]
        if words[:1] == ["shell"]:
            warn("this is the shell already")
            return 2
        try:
            self.root.main(words, prog_name="flumeng", obj=self.context)
        except SystemExit as done:
            return done.code if isinstance(done.code, int) else int(done.code is not None)
        raise AssertionError("click ends every command by SystemExit")

    def run_all(self, lines: Iterable[tuple[str, str]]) -> int:
        """Run lines, each with its position, until one fails; return its exit code."""
        for position, line in lines:
            try:
                code = self.run(line)
            except Left:
                return 0
            if code:
                warn(f"{position}: stopped, exit code {code}")
                return code
        return 0


@click.command()
@click.option("-c", "commands", multiple=True, metavar="COMMAND", help="Run it; may be repeated.")
@click.option("--zk", "hosts", envvar=zk_envvar, metavar="HOST:PORT/CHROOT", help="The cluster.")
@click.argument(
    "scripts", nargs=-1, type=click.Path(path_type=Path, dir_okay=False), metavar="[SCRIPT]..."
)
@click.pass_context
def shell(
    click_context: click.Context,
    commands: tuple[str, ...],
    hosts: str | None,
    scripts: tuple[Path, ...],
) -> None:
    """Run commands at a prompt, or those of -c and then of script files.

    Without a terminal it reads standard input. The first failure ends all, with its exit code.
    """
    if hosts:
        os.environ[zk_envvar] = hosts
    context = click_context.find_object(CliContext) or CliContext()
    with closing(ConnectionPool(context.connect)) as pool:
        session = Session(click_context.find_root().command, replace(context, pool=pool))
        if commands or scripts:
            lines = [
                *(("-c", command) for command in commands),
                *(line for path in scripts for line in _script(path)),
            ]
            raise SystemExit(session.run_all(lines))
        if not sys.stdin.isatty():
            raise SystemExit(session.run_all(_numbered("standard input", sys.stdin)))
        from cli.prompt import ask  # noqa: PLC0415  loads prompt_toolkit

        for line in ask(session.root, session.context):
            try:
                session.run(line)
            except Left:
                break


def _script(path: Path) -> Iterator[tuple[str, str]]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    return _numbered(str(path), text.splitlines())


def _numbered(name: str, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((f"{name}:{number}", line) for number, line in enumerate(lines, 1))
