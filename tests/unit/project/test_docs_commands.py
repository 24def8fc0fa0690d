"""Every command that docs and messages name is there, with the options that they give it."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.main import tree

TOP = Path(__file__).parents[3]
FILES = sorted(
    [*TOP.glob("*.md")]
    + [file for folder in ("docs", "conf") for file in (TOP / folder).rglob("*.*")]
    + list((TOP / "flumeng").rglob("README.md"))
    + list((TOP / "examples").rglob("README.md"))
    + [file for folder in ("flumeng", "cli", "zkschema") for file in (TOP / folder).rglob("*.py")]
)
QUOTED = re.compile(r"`flumeng ([a-z][^`]*)`")
LINE = re.compile(r"^(?: {4}|\$ |ExecStart=)\s*(?:\S*/)?flumeng ([a-z].*)$", re.MULTILINE)
BLOCK = re.compile(r"^ *```(?:bash|text)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
IN_BLOCK = re.compile(r"^ *(?:\S+=\S* )*(?:\S*/)?flumeng ([a-z].*)$", re.MULTILINE)
NO_COMMANDS = {"journal frames", "journal key id"}
"""Labels of key derivation, which docs/reference/journal-format.md quotes literally."""


def named(text: str) -> Iterator[str]:
    """The words after ``flumeng`` wherever a command occurs in the text."""
    joined = re.sub(r"\\\n\s*", " ", text)
    in_blocks = (match for block in BLOCK.findall(joined) for match in IN_BLOCK.finditer(block))
    for match in (*QUOTED.finditer(joined), *LINE.finditer(joined), *in_blocks):
        yield " ".join(re.sub(r'"\s*f?"', "", match[1]).split())


def problem(line: str) -> str | None:
    """The first word of a command line that is not in the command tree."""
    command: click.Command = tree
    context = click.Context(tree)
    words = line.split()
    while words and isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        word = words.pop(0)
        found = command.get_command(context, word)
        if found is None:
            return f"there is no command {word} in: flumeng {line}"
        command = found
    options = {name for part in command.params for name in (*part.opts, *part.secondary_opts)}
    for word in words:
        name = re.match(r"--[a-z][a-z-]*", word)
        if name is not None and name[0] not in {*options, "--help", "--version"}:
            return f"there is no option {name[0]} in: flumeng {line}"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(TOP)))
def test_named_commands_and_options_exist(file: Path) -> None:
    try:
        text = file.read_text()
    except UnicodeDecodeError:
        return
    lines = set(named(text)) - NO_COMMANDS
    assert [wrong for line in sorted(lines) if (wrong := problem(line))] == []


def test_commands_are_found_in_docs_and_messages() -> None:
    assert sum(1 for file in FILES if file.suffix == ".md" for _ in named(file.read_text())) > 200
    assert sum(1 for file in FILES if file.suffix == ".py" for _ in named(file.read_text())) > 50


@pytest.mark.parametrize("line", ["flow aply x.yaml", "schema verify --repair"])
def test_wrong_command_or_option_is_noticed(line: str) -> None:
    assert problem(line) is not None


def test_every_path_that_the_docs_name_is_there() -> None:
    pages = [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")]
    pages += (TOP / "flumeng").rglob("README.md")
    paths = re.compile(
        r"`((?:flumeng|cli|zkschema|tests|scripts|conf|packages|examples)/[\w./-]+)`"
    )
    missing = [
        f"{page.relative_to(TOP)}: {path}"
        for page in pages
        for path in paths.findall(page.read_text())
        if not (TOP / path).exists()
    ]
    assert missing == []


def test_every_link_of_the_docs_leads_to_a_file_and_a_heading() -> None:
    pages = [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")]
    pages += [*(TOP / "flumeng").rglob("README.md"), *(TOP / "examples").rglob("README.md")]
    wrong = [
        f"{page.relative_to(TOP)}: {path}{anchor}"
        for page in pages
        for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]+)?\)", page.read_text())
        if not leads((page.parent / path) if path else page, anchor)
    ]
    assert wrong == []


def leads(page: Path, anchor: str) -> bool:
    if not page.exists():
        return False
    return not anchor or anchor[1:] in {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    }


NODE = re.compile(r'^\s*(\w+)\["([^"]+)"\]$', re.MULTILINE)
"""A node of a Mermaid flowchart: its name and its label."""


def drawing(page: str, heading: str) -> str:
    """The first Mermaid drawing below a heading of a page."""
    text = (TOP / "docs" / "explanation" / page).read_text()
    return text.partition(f"\n## {heading}\n")[2].partition("```mermaid\n")[2].partition("```")[0]


def test_the_drawing_of_a_batch_names_a_file_for_each_step() -> None:
    labels = NODE.findall(drawing("batch.md", "Eight steps"))
    steps = {step: re.findall(r"\w+\.py", label) for step, label in labels}
    assert list(steps) == ["claim", "ranges", "slot", "job", "stages", "outcome", "commit", "ack"]
    assert [files[0] for files in steps.values()] == [f"{step}.py" for step in steps]
    collector = TOP / "flumeng" / "agent" / "collector"
    assert [f for files in steps.values() for f in files if not (collector / f).exists()] == []


def test_the_drawing_of_rooms_has_the_floors_of_the_contracts() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(TOP / "setup.cfg")

    def floors(contract: str) -> list[list[str]]:
        layers = contracts[f"importlinter:contract:{contract}"]["layers"]
        return [sorted(re.split(r"\s*\|\s*", layer)) for layer in layers.split("\n") if layer]

    page = drawing("architecture.md", "Rooms")
    order = [room.removeprefix("flumeng.") for (room,) in floors("rooms")]
    assert " --> ".join(order) in page
    assert {room for room, _ in NODE.findall(page)} == {"cli", *order, "zkschema"}
    lines = {room: label.split("<br/>")[1:] for room, label in NODE.findall(page)}
    for room in ("agent", "control", "journal"):
        assert [sorted(line.split(", ")) for line in lines[room]] == floors(room)
