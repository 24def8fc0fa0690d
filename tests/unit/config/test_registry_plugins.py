"""Plug-ins that are broken, or that bring a name twice, harm nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

FLOW = "{flow: web, sources: [tail: {paths: [/a]}], sinks: [files: {path: /data}]}"
GOOD = """
from dataclasses import dataclass
from flumeng.connectors.api import FilterOptions

class Unchanged:
    tables = ()
    identified = False
    def __init__(self, options): pass
    def apply(self, batch): return batch

@dataclass(frozen=True)
class Options(FilterOptions):
    \"\"\"Leaves events as they are.\"\"\"
    implementation = "good:Unchanged"
    def behind(self, columns): return columns
"""


class Site:
    """A directory with installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, points: Mapping[str, Mapping[str, str]], code: str = "") -> None:
        metadata = self.folder / f"{name.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        text = "".join(
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in named.items())
            for group, named in points.items()
        )
        (metadata / "entry_points.txt").write_text(text)
        if code:
            (self.folder / f"{name}.py").write_text(code)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cli.main", *words],
            env={**os.environ, "PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )

    def component(self, kind: str, name: str) -> dict[str, str]:
        listed = json.loads(self.run("components", "--json").stdout)
        (found,) = (one for one in listed if (one["kind"], one["name"]) == (kind, name))
        assert isinstance(found, dict)
        return found

    def validate(self, text: str) -> subprocess.CompletedProcess[str]:
        file = self.folder / "flow.yaml"
        file.write_text(text)
        return self.run("flow", "validate", str(file))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_library", "No module named 'no_such_library'"),
        ("def (", "SyntaxError"),
        ("x = 1", "broken has no class 'Options'"),
        ("class Options: pass", "no FilterOptions that names its implementation"),
        (GOOD.replace("good:Unchanged", "broken:Nothing"), "broken has no class 'Nothing'"),
        (GOOD.replace("good:Unchanged", "nowhere:Nothing"), "No module named 'nowhere'"),
    ],
)
def test_broken_plugin_is_shown_with_its_reason(site: Site, code: str, reason: str) -> None:
    site.install("broken", {"flumeng.filters": {"mine": "broken:Options"}}, code)
    listed = site.component("filter", "mine")
    assert listed["package"] == "broken"
    assert listed["doc"].startswith("BROKEN: ")
    assert reason in listed["doc"]
    shown = site.run("components", "mine")
    assert shown.returncode != 0
    assert reason in shown.stderr
    assert site.validate(FLOW).returncode == 0


@pytest.mark.slow
def test_flow_with_a_broken_plugin_is_refused_with_its_reason(site: Site) -> None:
    points = {"flumeng.filters": {"mine": "broken:Options"}}
    site.install("broken", points, "import no_such_library")
    checked = site.validate(FLOW.replace("sinks:", "filters: [mine], sinks:"))
    assert checked.returncode != 0
    assert "the filter mine of the package broken cannot be loaded" in checked.stderr


@pytest.mark.slow
def test_name_of_two_packages_is_an_error_that_names_both(site: Site) -> None:
    for name in ("good", "other"):
        site.install(name, {"flumeng.filters": {"mine": "good:Options"}}, GOOD)
    site.install("third", {"flumeng.sinks": {"files": "good:Options"}})
    assert "good and other: uninstall one" in site.component("filter", "mine")["doc"]
    assert "flumeng and third: uninstall one" in site.component("sink", "files")["doc"]
    checked = site.validate(FLOW)
    assert checked.returncode != 0
    assert "flumeng and third" in checked.stderr
    assert site.validate(FLOW.replace("files: {path: /data}", "noop")).returncode == 0


@pytest.mark.slow
def test_good_plugin_is_listed_like_a_component_of_flumeng(site: Site) -> None:
    site.install("good", {"flumeng.filters": {"mine": "good:Options"}}, GOOD)
    listed = site.component("filter", "mine")
    assert (listed["package"], listed["doc"]) == ("good", "Leaves events as they are.")
    assert site.validate(FLOW.replace("sinks:", "filters: [mine], sinks:")).returncode == 0
