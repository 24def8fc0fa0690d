"""``flumeng components``: the reference of all components in the terminal."""

from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner, Result

from cli.main import tree
from flumeng.config import registry
from flumeng.config.flow import FlowSpec


def components(*words: str) -> Result:
    return CliRunner().invoke(tree, ["components", *words])


def test_list_has_every_component_with_its_purpose() -> None:
    rows = [line.split("\t") for line in components().output.splitlines()[1:]]
    wanted = [(entry.kind, entry.name) for entry in registry.all_entries()]
    assert [(row[0], row[1]) for row in rows] == wanted
    assert all(row[4].endswith(".") for row in rows)


@pytest.mark.parametrize("name", sorted({entry.name for entry in registry.all_entries()}))
def test_every_component_is_shown_with_all_its_options(name: str) -> None:
    shown = json.loads(components(name, "--json").output)
    wanted = {
        entry.kind: [field.name for field in dataclasses.fields(entry.options_class())]
        for entry in registry.all_entries()
        if entry.name == name
    }
    for kind, options in wanted.items():
        (section,) = (s for s in shown if (s["kind"], s["name"]) == (kind, name))
        assert [row["name"] for row in section["options"]] == options


def test_options_within_options_are_shown_by_their_path() -> None:
    lines = components("kafka").output.splitlines()
    assert "source kafka" in lines
    assert "sink kafka" in lines
    assert "option kafka.tls" in lines
    assert any(line.startswith("brokers\tlist of texts\trequired\t") for line in lines)


def test_options_of_the_flow_itself_are_shown() -> None:
    (flow,) = (s for s in json.loads(components("flow", "--json").output) if s["kind"] == "flow")
    fields = dataclasses.fields(FlowSpec)
    assert [row["name"] for row in flow["options"]] == [field.name for field in fields]
    assert "timeout_seconds\tduration, 1 s to 1 d\t60 s\t" in components("batch").output
    assert components("place.collect").output.startswith("option place.collect\n")


def test_unknown_name_gets_the_nearest_one() -> None:
    result = components("elastcsearch")
    assert result.exit_code == 2
    assert 'named "elastcsearch"; did you mean "elasticsearch"?' in result.output


def test_option_of_bytes_has_a_readable_bound() -> None:
    assert "1 TiB" in components("batch").output
