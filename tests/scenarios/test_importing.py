"""The flows that configurations of Flume become, word for word: ``importing/*.txt``.

Each file holds cases: a title after ``===``, a configuration, and after ``---`` the flows that it
becomes and the notes about it. A line ``+++ NAME`` begins another file of the same import. Files
whose names begin with ``og`` are of Flume OG.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flumeng.config import check_flow
from flumeng.platform.errors import UserError
from flumeng_flume.findings import Imported
from flumeng_flume.ng import flows as ng
from flumeng_flume.og import flows as og

FILES = sorted((Path(__file__).parent / "importing").glob("*.txt"))
CASE = re.compile(r"^=== (?P<title>.*)\n(?P<text>(?:.*\n)*?)^---\n(?:(?!===).*\n)*", re.MULTILINE)
ENVIRONMENT = {"FLUME_PORT": "5140"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_configuration_becomes_the_written_flows(file: Path, rewrite: bool) -> None:
    expected = file.read_text()
    actual = "\n".join(
        f"=== {case['title']}\n{case['text']}---\n{told(file.stem, case['text'])}\n"
        for case in CASE.finditer(expected)
    )
    if rewrite:
        file.write_text(actual)
    assert expected == actual
    assert actual.count("=== ") == expected.count("=== ") > 0


def told(name: str, text: str) -> str:
    parts = re.split(r"^\+\+\+ (.*)\n", f"+++ flume\n{text}", flags=re.MULTILINE)[1:]
    files = dict(zip(parts[::2], parts[1::2], strict=True))
    files = {name: content for name, content in files.items() if content}
    try:
        found = og.translate(files) if name.startswith("og") else ng.translate(files, ENVIRONMENT)
    except UserError as error:
        return str(error)
    for flow in found.flows:
        assert check_flow(flow.text).flow == flow.name
    return shown(found)


def shown(found: Imported) -> str:
    return "\n".join([*(flow.text for flow in found.flows), *map(str, found.findings)])
