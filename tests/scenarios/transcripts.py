"""Transcripts: commands and the output that is expected of each, in text files.

A file holds cases, each a title after ``===``. A line that begins with ``$`` is a command; those
with ``|`` below it are its input; the other lines up to the next command are its output::

    === A new flow gets a task
    $ flumeng flow apply -
    | flow: web
    | sources: [{syslog: {listen: "127.0.0.1:5514"}}]
    | sinks: [noop]
    flow web revision 1
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

Run = Callable[[Sequence[str], str], str]
"""Runs the words of a command with its input, and returns the output."""
CASE = re.compile(r"^=== .*\n(?:(?!=== ).*\n)*", re.MULTILINE)
COMMAND = re.compile(r"^\$ (?P<words>.*)\n(?P<input>(?:\|.*\n)*)(?:(?![$]).*\n)*", re.MULTILINE)


def check(file: Path, new_case: Callable[[], Run], rewrite: bool) -> None:
    """Run all cases of a file, each with a ``Run`` of its own, and compare; or rewrite the file."""
    expected = file.read_text()
    actual = "\n".join(_replayed(case[0], new_case()) for case in CASE.finditer(expected))
    if rewrite:
        file.write_text(actual)
    assert expected == actual
    assert "$ " in actual


def _replayed(case: str, run: Run) -> str:
    return "\n".join([case.partition("\n")[0], *_lines(case, run), ""])


def _lines(case: str, run: Run) -> Iterator[str]:
    for command in COMMAND.finditer(case):
        yield f"$ {command['words']}"
        yield from command["input"].splitlines()
        text = re.sub(r"^\| ?", "", command["input"], flags=re.MULTILINE)
        output = run(shlex.split(command["words"]), text)
        yield from (line.rstrip() for line in output.splitlines())
