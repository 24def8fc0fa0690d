"""Problems of flow files as their authors see them, word for word: ``flow_files/*.txt``.

Each file holds cases: a title after ``===``, a flow file, and after ``---`` its problems.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flumeng.config import SpecError, check_flow

FILES = sorted((Path(__file__).parent / "flow_files").glob("*.txt"))
CASE = re.compile(r"^=== (?P<title>.*)\n(?P<text>(?:.*\n)*?)^---\n(?:(?!===).*\n)*", re.MULTILINE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_problem_is_reported_as_written(file: Path, rewrite: bool) -> None:
    expected = file.read_text()
    actual = "\n".join(
        f"=== {case['title']}\n{case['text']}---\n{told(case['text'])}\n"
        for case in CASE.finditer(expected)
    )
    if rewrite:
        file.write_text(actual)
    assert expected == actual
    assert actual.count("=== ") == expected.count("=== ") > 0


def told(text: str) -> str:
    try:
        check_flow(text)
    except SpecError as error:
        return str(error)
    return "valid"
