"""Follows the pages of docs/how-to: runs their commands, and compares what they print.

A block ``bash`` holds commands. A block ``text`` behind it holds what one of them prints, as
consecutive lines: ``...`` stands for any text, an example of a number, time or journal for any
other, and blanks for any blanks. A test replaces placeholders, such as NODE, by names of its
cluster. It runs every command of its page, or excuses it with a reason.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from console_page import Bash
from tests.live.one_host import FLUMENG
from tests.testkit.waiting import wait_for

TOP = Path(__file__).parents[2]
PAGES = TOP / "docs" / "how-to"
COMMAND_SECONDS = 240.0
AGAIN_SECONDS = 60.0
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
EXAMPLES = (
    (r"\b[\w~-]+\.[\w-]+\.\d+\.[0-9a-f]{4,}\b", r"[\w~.-]+"),  # a journal
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?", r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*"),
    (r"\b\d+(?:,\d{3})*(?:\.\d+)?", r"\d+(?:,\d{3})*(?:\.\d+)?"),
    (r"\w+@\w+", r"\S+@\S+"),  # an author
    (r"\.\.\.", r".*"),
)
"""Examples in printed text, and what stands in their place elsewhere."""
EXAMPLE = re.compile("|".join(f"({example})" for example, _ in EXAMPLES))


@dataclass(frozen=True)
class Block:
    """``line`` is that of the first line in its page, from 1."""

    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """``block`` is the number of its block among all blocks of the page."""

    line: int
    text: str
    block: int


def blocks(page: str) -> Iterator[Block]:
    """In the order of the page; the indentation of a list is removed."""
    for found in FENCE.finditer(page):
        lines = found[3].splitlines()
        text = "\n".join(line.removeprefix(found[1]) for line in lines)
        yield Block(page.count("\n", 0, found.start(3)) + 1, found[2], text)


def commands(page: str) -> Iterator[Command]:
    """The commands of all blocks ``bash``: a command ends with the line that completes it."""
    for number, block in enumerate(blocks(page)):
        lines: list[str] = []
        for line in block.text.splitlines() if block.language == "bash" else ():
            lines.append(line)
            if not line.endswith("\\") and _is_complete("\n".join(lines)):
                command = "\n".join(lines)
                if not command.startswith("#") and command.strip():
                    yield Command(block.line, command, number)
                lines = []
        assert not lines, f"line {block.line}: no complete command"


def _is_complete(command: str) -> bool:
    done = subprocess.run(
        ["bash", "-n"], input=command, capture_output=True, text=True, check=False
    )
    return done.returncode == 0 and not done.stderr


def agrees(expected: str, printed: str) -> bool:
    """Whether consecutive lines of a print are what the page says, but for its examples. What
    follows a question is on the question's line."""
    lines = [_pattern(line) for line in expected.strip().splitlines()]
    return re.search(rf"^{chr(10).join(lines)}$", _plain(printed), re.MULTILINE) is not None


def _pattern(line: str) -> str:
    plain = " ".join(line.split())
    pattern, end = "", 0
    for found in EXAMPLE.finditer(plain):
        assert found.lastindex is not None
        pattern += re.escape(plain[end : found.start()]) + EXAMPLES[found.lastindex - 1][1]
        end = found.end()
    return pattern + re.escape(plain[end:]) + (".*" if plain.endswith(":") else "")


def _plain(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


class HowTo:
    """One page that is followed in one shell. Use it in ``with``: at the end every command has run
    or was excused, and every text was printed.

    ``values`` are what stands in the place of words of the page, in commands and in printed text.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        values: Mapping[str, object] | None = None,
        pages: Path = PAGES,
    ) -> None:
        self.name = name
        self.folder = folder
        self.values = dict(values or {})
        page = (pages / f"{name}.md").read_text()
        self.blocks = list(blocks(page))
        self._left = list(commands(page))
        self._agreed: set[int] = set()
        self._printed: dict[int, str] = {}
        self.bin = folder / "bin"
        """The first directory of PATH: programs of this test alone."""
        self.bin.mkdir(exist_ok=True)
        own = {key: value for key, value in os.environ.items() if not key.startswith("FLUMENG_")}
        own |= {key: os.environ[key] for key in ("FLUMENG_CACHE",) if key in os.environ}
        own["FLUMENG_TEST_RUN"] = os.environ.get("FLUMENG_TEST_RUN", "")
        own["PATH"] = f"{self.bin}:{FLUMENG.parent}:{os.environ['PATH']}"
        self.shell = Bash(folder, own | dict(environment or {}))

    def __enter__(self) -> HowTo:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.shell.end()
        if kind is None:
            left = [f"{self.name}.md:{one.line}: {one.text}" for one in self._left]
            assert left == [], "commands that no test runs"
            self._compare()

    def program(self, name: str, script: str) -> None:
        """Put a program into PATH: a script of sh."""
        file = self.bin / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def run(
        self, start: str, *, code: int = 0, typed: str = "", again: bool = False, **values: object
    ) -> str:
        """Run the first command of the page that begins so and that has not run yet, and return
        what it prints. ``code`` is its exit code, ``typed`` its input; ``again`` repeats it until
        it ends with this code and prints the text of the page. ``values`` go before those of the
        page."""
        command = self._take(start)
        text = self._filled(command.text, values)
        shown = [one for one in self._texts(command.block) if one.line not in self._agreed]
        printed = ""

        def is_right() -> bool:
            nonlocal printed
            printed = self.shell.run(text, COMMAND_SECONDS, typed)
            right = {one.line for one in shown if agrees(self._filled(one.text, values), printed)}
            self._agreed.update(right)
            return self.shell.code == code and len(right) == len(shown)

        def where() -> str:
            return (
                f"{self.name}.md:{command.line}: `{text}` ended with {self.shell.code}:\n{printed}"
            )

        if again:
            wait_for(is_right, where, seconds=AGAIN_SECONDS)
        else:
            is_right()
        assert self.shell.code == code, where()
        for one in shown:
            self._printed[one.line] = f"{self._printed.get(one.line, '')}{printed}\n"
        return printed

    def rest(self) -> None:
        """Run all commands that are left, in the order of the page."""
        while self._left:
            self.run(self._left[0].text)

    def begin(self, start: str, **values: object) -> Path:
        """Run a command that goes on, such as a daemon, in the background until the page ends.
        Returns the file of what it prints."""
        command = self._take(start)
        log = self.folder / f"{self.name}-{command.line}-{len(self._left)}.log"
        text = self._filled(command.text, values)
        self.shell.run(f"{{ exec env {text}\n}} >{log} 2>&1 &", COMMAND_SECONDS)
        return log

    def excuse(self, start: str, reason: str) -> None:
        """No test can run this command, nor one that does the same: ``reason`` says why."""
        assert reason
        self._take(start)

    def text_of(self, language: str, number: int = 0, **values: object) -> str:
        """A block of the page: the ``number``-th of its language."""
        found = [block for block in self.blocks if block.language == language]
        return self._filled(found[number].text, values)

    def _take(self, start: str) -> Command:
        for command in self._left:
            if command.text.startswith(start):
                self._left.remove(command)
                return command
        left = "\n".join(command.text for command in self._left)
        raise AssertionError(
            f"{self.name}.md has no command {start!r} that is left; it has\n{left}"
        )

    def _filled(self, text: str, values: Mapping[str, object]) -> str:
        all_values = self.values | dict(values)
        words = "|".join(map(re.escape, sorted(all_values, key=len, reverse=True)))
        if not words:
            return text
        found = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])")
        return found.sub(lambda word: str(all_values[word[0]]), text)

    def _texts(self, block: int) -> list[Block]:
        """The texts behind a block of commands, before the next one; not files, which begin with
        their name in a comment."""
        found: list[Block] = []
        for one in self.blocks[block + 1 :]:
            if one.language == "bash":
                break
            if one.language == "text" and not one.text.startswith("#"):
                found.append(one)
        return found

    def _compare(self) -> None:
        for block in self.blocks:
            printed = self._printed.get(block.line)
            assert printed is None or block.line in self._agreed, (
                f"{self.name}.md:{block.line} says that this is printed\n{block.text}\n"
                f"and its commands print\n{printed}"
            )
