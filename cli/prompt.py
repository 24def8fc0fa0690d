"""The shell's prompt, with history and completion. For terminals only."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import ShellComplete
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from cli.context import CliContext


class TreeCompleter(Completer):
    def __init__(self, root: click.Command, context: CliContext) -> None:
        self._click = ShellComplete(root, {"obj": context}, "flumeng", "")
        self._files = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        try:
            words = shlex.split(text)
        except ValueError:
            return
        typed = words.pop() if words and not text[-1].isspace() else ""
        if not text.endswith(typed):
            return
        for item in self._click.get_completions(words, typed):
            if item.type in ("file", "dir"):
                yield from self._files.get_completions(Document(typed), event)
            else:
                yield Completion(
                    item.value, start_position=-len(typed), display_meta=item.help or ""
                )


def ask(root: click.Command, context: CliContext) -> Iterator[str]:
    """Yield lines until end of input. Ctrl-C discards the line that is being typed."""
    prompt: PromptSession[str] = PromptSession(
        "flumeng> ",
        history=history(),
        completer=TreeCompleter(root, context),
        complete_in_thread=True,
    )
    while True:
        context.look_up(os.environ.get("FLUMENG_ZK"))
        try:
            yield prompt.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def history() -> History:
    """Return the history in the user's file, or in memory when the home directory is read-only."""
    path = Path(click.get_app_dir("flumeng")) / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
