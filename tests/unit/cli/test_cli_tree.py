"""The command tree: its names are a promise, and asking for help loads nothing heavy."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from cli.main import COMMANDS, tree
from tests.testkit.command_line import leaves

PROMISED = [
    "standalone",
    "zookeeper",
    "master",
    "node:run",
    "node:list",
    "node:show",
    "node:drain",
    "node:undrain",
    "node:decommission",
    "node:label",
    "node:capacity",
    "node:story",
    "node:enroll",
    "components",
    "task:list",
    "task:show",
    "task:restart",
    "task:move",
    "task:wait",
    "flow:validate",
    "flow:try",
    "flow:test",
    "flow:graph",
    "flow:explain",
    "flow:apply",
    "flow:list",
    "flow:show",
    "flow:history",
    "flow:diff",
    "flow:rollback",
    "flow:pause",
    "flow:resume",
    "flow:stop",
    "flow:delete",
    "flow:wait",
    "flow:tap",
    "flow:choke",
    "flow:counters",
    "flow:backfill",
    "flow:dead:list",
    "flow:dead:show",
    "flow:dead:replay",
    "flow:dead:purge",
    "flow:handoff",
    "flow:lag",
    "flow:reset",
    "flow:rollout:status",
    "flow:rollout:pause",
    "flow:rollout:resume",
    "flow:rollout:promote",
    "flow:rollout:abort",
    "queue:list",
    "queue:show",
    "queue:retry",
    "queue:skip",
    "ack:advance",
    "ack:commits",
    "ack:intents",
    "ack:drop",
    "ack:list",
    "cursor:list",
    "cursor:show",
    "cursor:end",
    "cursor:delete",
    "cursor:acknowledge",
    "journal:list",
    "journal:show",
    "journal:verify",
    "journal:dump",
    "journal:repair",
    "journal:promote",
    "journal:move",
    "journal:add-replica",
    "journal:drop-replica",
    "cluster:show",
    "cluster:audit",
    "cluster:set",
    "cluster:maintenance",
    "cluster:secure:init",
    "cluster:secure:issue",
    "cluster:secure:show",
    "cluster:secure:signing-key",
    "site:name",
    "site:add",
    "site:list",
    "site:show",
    "site:failover",
    "site:failback",
    "site:remove",
    "schema:show",
    "schema:init",
    "schema:verify",
    "schema:export",
    "schema:import",
    "schema:migrate",
    "schema:secure",
    "import:flume-ng",
    "import:flume-og",
    "push:plan",
    "push:apply",
    "push:rollback",
    "push:render",
    "push:status",
    "push:drift",
    "push:history",
    "push:adopt",
    "push:export",
    "status",
    "top",
    "console:token",
    "shell",
]
READS = [
    name
    for name in PROMISED
    if name.split(":")[-1] in ("list", "show", "status", "top", "history", "diff", "lag")
]
HEAVY = ("kazoo", "numpy", "pandas", "pyarrow", "pyspark", "rich", "prompt_toolkit")


def test_documented_commands_exist_and_no_others() -> None:
    assert sorted(name for name, _ in leaves(tree)) == sorted(PROMISED)


def test_every_command_and_option_has_help() -> None:
    for name, command in leaves(tree):
        assert command.help, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts}"


def test_every_reading_command_has_json() -> None:
    commands = dict(leaves(tree))
    for name in READS:
        assert any("--json" in parameter.opts for parameter in commands[name].params), name


def test_help_lists_every_command_with_its_line() -> None:
    shown = CliRunner().invoke(tree, ["--help"]).output
    for name, row in COMMANDS.items():
        assert f"{name} " in shown
        assert row.help in " ".join(shown.split())


def groups(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every group of the tree; none for the tree itself."""
    yield words
    parent = click.Context(group)
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        if isinstance(command, click.Group):
            yield from groups(command, (*words, name))


@pytest.mark.parametrize("words", list(groups(tree)), ids=" ".join)
def test_group_help_lists_every_command_with_a_whole_sentence(words: tuple[str, ...]) -> None:
    group: click.Command = tree
    for word in words:
        assert isinstance(group, click.Group)
        found = group.get_command(click.Context(group), word)
        assert found is not None
        group = found
    assert isinstance(group, click.Group)
    shown = CliRunner().invoke(tree, [*words, "--help"]).output.partition("Commands:\n")[2]
    rows = dict(row.split(None, 1) for row in re.sub(r"\n {4,}", " ", shown).splitlines())
    assert list(rows) == group.list_commands(click.Context(group))
    for name, sentence in rows.items():
        assert sentence.endswith(".") and not sentence.endswith(".."), f"{name}: {sentence}"


@pytest.mark.parametrize(
    ("words", "right"),
    [(["flwo"], "flow"), (["node", "drian"], "drain"), (["node", "enrol"], "enroll")],
)
def test_wrong_command_gets_the_nearest_right_one(words: list[str], right: str) -> None:
    result = CliRunner().invoke(tree, words)
    assert result.exit_code == 2
    assert f'there is no command "{words[-1]}"; did you mean "{right}"?' in result.output


def test_label_must_be_key_and_value() -> None:
    result = CliRunner().invoke(
        tree, ["node", "run", "--zk", "zk:1/c", "--data", "/nowhere", "--label", "role"]
    )
    assert result.exit_code == 2
    assert "KEY=VALUE" in result.output


@pytest.mark.long
@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys; from cli.main import tree\n"
        f"try: tree({[*words, '--help']!r}, prog_name='flumeng')\n"
        f"finally: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: flumeng" in shown.stdout
    assert shown.stderr == "[]\n"
