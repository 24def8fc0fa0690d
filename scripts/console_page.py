"""Pages whose commands are run as they are written, and print what the page says.

A block ```` ```console ```` holds commands, each behind ``$ `` and its further lines behind ``> ``,
and what they print: ``...`` stands for anything, also for whole lines, and blanks for any blanks.
All commands of a page run in one bash, so that what one exports the next one has.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

END_SECONDS = 30.0
MARK = "-- the command has ended with"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """``line`` is that of the command in its page, from 1."""

    line: int
    command: str
    expected: str


def examples(page: str) -> Iterator[Example]:
    """In the order of the page."""
    for block in BLOCK.finditer(page):
        line = page.count("\n", 0, block.start(1)) + 1
        for part in re.split(r"^(?=\$ )", block[1], flags=re.MULTILINE):
            lines = part.splitlines()
            if lines:
                assert lines[0].startswith("$ "), f"line {line}: no command"
                further = [one for one in lines[1:] if one.startswith("> ")]
                command = "\n".join(one[2:] for one in [lines[0], *further])
                yield Example(line, command, "\n".join(lines[1 + len(further) :]))
            line += len(lines)


def agrees(expected: str, printed: str) -> bool:
    """Whether that is what the page says."""
    wanted = "".join(map(_pattern, _plain(expected).split("\n")))
    return re.fullmatch(wanted, f"{_plain(printed)}\n", re.DOTALL) is not None


def _pattern(line: str) -> str:
    if line == "...":
        return r"(?:.*\n)?"
    return re.escape(line).replace(r"\.\.\.", ".*") + r"\n"


def _plain(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


class Bash:
    """One shell for all commands of a page. Close it: it leaves no process behind.

    ``code`` is the exit code of the last command.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        self.code = 0

    def run(self, command: str, seconds: float, typed: str = "") -> str:
        """Run the command with ``typed`` as its input, and return its output with its errors.
        Raises ``TimeoutError`` when it lasts longer; then the shell is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        ended = f"(code=$?; printf '\\n%s %s\\n' '{MARK}' $code; exit $code)"
        alarm = threading.Timer(seconds, self._process.kill)
        alarm.start()
        try:
            given = f"< <(printf %s {shlex.quote(typed)})" if typed else "</dev/null"
            self._process.stdin.write(f"{{ {command}\n}} {given}\n{ended}\n")
            printed: list[str] = []
            for line in self._process.stdout:
                if line.startswith(MARK):
                    self.code = int(line.split()[-1])
                    return "".join(printed)
                printed.append(line)
        finally:
            alarm.cancel()
        raise TimeoutError(f"no end within {seconds:g} s, after\n{''.join(printed)}")

    def end(self) -> None:
        """End the shell, with the jobs that its commands left in the background."""
        with contextlib.suppress(OSError, TimeoutError):
            self.run("kill $(jobs -p); wait", END_SECONDS)
        self.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
