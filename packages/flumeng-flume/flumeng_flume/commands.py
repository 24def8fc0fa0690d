"""Command lines of sources that run a program."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

_SHELL = re.compile(r"[|&;<>()$`\"'*?\[\]{}~]")
_COUNT = re.compile(r"-n|--lines|-c|--bytes|--pid|-s|--sleep-interval|--max-unchanged-stats")


@dataclass(frozen=True)
class Followed:
    """The files that a ``tail -f`` follows."""

    paths: tuple[str, ...]
    from_beginning: bool


def followed(command: str) -> Followed | None:
    """Return the files that a ``tail -f`` follows; None for any other command."""
    words = command.split()
    if not words or words[0].rpartition("/")[2] != "tail" or _SHELL.search(" ".join(words[1:])):
        return None
    paths, follows, beginning = [], False, False
    rest = iter(words[1:])
    for word in rest:
        if re.fullmatch(r"-[0-9]*[qv]*[fF][qvfF]*|--follow(=\w+)?", word):
            follows = True
        elif re.fullmatch(r"\+[01]|-n\+[01]|--lines=\+[01]|-[0-9]*[fF]?n\+[01]", word):
            beginning = True
        elif re.fullmatch(r"-[fF]*n[fF]*", word) or _COUNT.fullmatch(word):
            follows = follows or "f" in word.lower()
            beginning = next(rest, "") in ("+0", "+1") or beginning
        elif not word.startswith("-"):
            paths.append(word)
    return Followed(tuple(dict.fromkeys(paths)), beginning) if follows and paths else None


def words_of(command: str, shell: str = "") -> list[str]:
    """Return the words of a command, with an absolute path to its program."""
    if shell:
        return [*shell.split(), command]
    words = command.split()
    if not words:
        return []
    return words if words[0].startswith("/") else ["/usr/bin/env", *words]


def words_of_shell(command: str) -> list[str]:
    """Return the words of a command whose arguments may be quoted. Raises ValueError."""
    words = shlex.split(command)
    if not words:
        return []
    return words if words[0].startswith("/") else ["/usr/bin/env", *words]
