"""Importers are distributions of their own: a missing or broken one says so and harms no other."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
from click.testing import CliRunner, Result

from cli.importing import Importers

GROUP = "flumeng.importers"


def run(installed: dict[str, str], *words: str) -> Result:
    found = {name: EntryPoint(name, place, GROUP) for name, place in installed.items()}
    return CliRunner().invoke(Importers("import", installed=lambda: found), words)


def test_missing_importer_names_its_package() -> None:
    shown = run({}, "--help")
    assert "flume-ng" in shown.output
    assert "not installed: needs flumeng-flume" in shown.output
    asked = run({}, "flume-ng", "agent.conf", "--out", "flows")
    assert asked.exit_code == 2
    assert "pip install flumeng-flume" in asked.stderr


@pytest.mark.parametrize("place", ["nowhere_at_all:command", "json:no_such_thing", "json:loads"])
def test_broken_importer_shows_the_reason_and_the_others_work(place: str) -> None:
    installed = {"broken": place, "flume-og": "flumeng_flume.cli:flume_og"}
    shown = run(installed, "--help")
    assert shown.exit_code == 0
    assert "Cannot be loaded." in shown.output
    asked = run(installed, "broken", "x")
    assert asked.exit_code == 2
    assert f"the importer broken ({place}) cannot be loaded" in asked.stderr
    assert "Flume 0.9" in run(installed, "flume-og", "--help").output
