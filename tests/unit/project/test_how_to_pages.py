"""Pages of docs/how-to are followed by a test, and the harness notices what is wrong in one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.live import how_to
from tests.live.how_to import HowTo, agrees, commands

PAGE = """
1. Do it.

    ```bash
    echo 12 files | \\
      cat   # a comment
    ! printf 'of %s\\n' NODE
    ```

    ```text
    3 files
    ```
"""
LIVE = Path(__file__).parents[2] / "live"


@pytest.fixture
def page(tmp_path: Path) -> HowTo:
    return made(tmp_path, PAGE)


def made(folder: Path, text: str) -> HowTo:
    (folder / "it.md").write_text(text)
    return HowTo("it", folder, values={"NODE": "n7"}, pages=folder)


def test_commands_are_found_in_lists_and_over_lines() -> None:
    found = list(commands(PAGE))
    assert [command.text.split()[0] for command in found] == ["echo", "!"]


def test_page_is_followed(page: HowTo) -> None:
    with page:
        page.run("echo")
        assert page.run("! printf", code=1) == "of n7\n\n"


def test_command_that_no_test_runs_is_noticed(page: HowTo) -> None:
    with pytest.raises(AssertionError, match="no test runs"), page:
        page.run("echo")


def test_wrong_exit_code_is_noticed(page: HowTo) -> None:
    with pytest.raises(AssertionError, match="ended with 1"), page:
        page.rest()


def test_text_that_no_command_prints_is_noticed(tmp_path: Path) -> None:
    page = made(tmp_path, PAGE.replace("3 files", "3 lines"))
    with pytest.raises(AssertionError, match="3 lines"), page:
        page.run("echo")
        page.run("! printf", code=1)


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a  b", "x\na b\ny", True),
        ("a\nb", "a\nx\nb", False),
        ("1,200 events of web.n2.0.5f2a", "7 events of web.n1.3.0123abcd", True),
        ("at 2026-11-23 08:00:00 UTC", "at 2027-01-02 03:04:05 UTC", True),
        ("reason ...", "reason of all", True),
        ("Go on? [y/N]:", "Go on? [y/N]: gone", True),
        ("node n2 is gone", "node n3 is here", False),
    ],
)
def test_examples_stand_for_others(expected: str, printed: str, same: bool) -> None:
    assert agrees(expected, printed) is same


def test_every_page_with_commands_is_followed() -> None:
    tests = "".join(file.read_text() for file in LIVE.glob("test_how_to_*.py"))
    followed = set(re.findall(r'(?:page|HowTo)\(\s*"([\w-]+)"', tests))
    pages = {page.stem for page in how_to.PAGES.glob("*.md") if list(commands(page.read_text()))}
    assert pages - followed == set()
