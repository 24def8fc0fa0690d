"""``flumeng site``, and flows that read sites which are not usable yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testkit.command_line import Shell

WEB = """
flow: copy
sources: [{{flow: {{site: {site}, name: web{more}}}}}]
sinks: [noop]
"""


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    file = tmp_path / "copy.yaml"
    file.write_text(WEB.format(site="fra", more=""))
    return file


def test_site_is_added_changed_listed_and_removed(shell: Shell) -> None:
    assert shell.run("site", "name", "nyc").output == "this cluster is the site nyc\n"
    assert shell.run("site", "add", "fra", "g1:9003").output == "site fra is known: g1:9003\n"
    shell.run("site", "add", "fra", "g1:9003", "[::1]:9003", "--authority", "AB:" * 31 + "AB")
    row = {
        "site": "fra",
        "gateways": ["g1:9003", "[::1]:9003"],
        "authority": "ab" * 32,
        "readers": [],
        "standby": [],
        "failover": None,
        "bytes_per_second": 0,
        "at": "",
    }
    assert shell.json("site", "list") == {"here": "nyc", "sites": [row]}
    assert shell.json("site", "show", "fra") == row
    assert "g1:9003" in shell.run("site", "show", "fra").output
    assert shell.run("site", "remove", "fra").output == "site fra is removed\n"
    assert shell.json("site", "list") == {"here": "nyc", "sites": []}


def test_limits_of_a_site_are_set_shown_and_removed(shell: Shell) -> None:
    night = "22:00-06:00 Europe/Berlin"
    shell.run("site", "add", "fra", "g1:9003", "--bytes-per-second", "50MB", "--at", night)
    shown = shell.json("site", "show", "fra")
    assert (shown["bytes_per_second"], shown["at"]) == (50_000_000, night)
    assert night in shell.run("site", "show", "fra").output
    shell.run("site", "add", "fra", "g1:9003")
    shown = shell.json("site", "show", "fra")
    assert (shown["bytes_per_second"], shown["at"]) == (0, "")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("name", "A b"), "the name of a site: expected"),
        (("add", "fra", "g1:1", "--at", "22:00-06:00"), "has no time zone"),
        (("add", "fra", "g1:1", "--bytes-per-second", "fast"), "expected a size"),
        (("add", "fra", "g1:1", "--bytes-per-second", "1KB"), "a rate of 65536 to"),
        (("add", "fra", "g1"), "gateway 'g1': expected host:port"),
        (("add", "fra", "g1:1", "--authority", "abc"), "64 hexadecimal digits"),
        (("remove", "fra"), "there are no sites"),
        (("show", "fra"), "there are no sites"),
    ],
)
def test_wrong_input_is_refused(shell: Shell, words: tuple[str, ...], why: str) -> None:
    result = shell.run("site", *words)
    assert (result.exit_code, why in result.stderr) == (2, True), result.stderr


def test_flow_of_an_unusable_site_is_refused(shell: Shell, flow: Path) -> None:
    def refused() -> str:
        result = shell.run("flow", "apply", flow)
        assert result.exit_code != 0
        return result.stderr

    assert "the site fra, which is unknown here: `flumeng site add fra`" in refused()
    shell.run("site", "add", "fra", "g1:9003")
    assert "this cluster has no name among sites" in refused()
    shell.run("site", "name", "fra")
    assert "which is this one: omit `site`" in refused()
    shell.run("site", "name", "nyc")
    assert shell.run("flow", "apply", flow).exit_code == 0
    assert "is read by copy" in shell.run("site", "remove", "fra").stderr
    assert "keep events for its flows copy" in shell.run("site", "name", "lon").stderr


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (", at: '22:00-06:00'", "has no time zone"),
        (", priority: 10", "expected at most 9"),
        (", bytes_per_second: 1KB", "expected at least 65536 bytes"),
        (", keep_seconds: 60, discovery_seconds: 30", "keep events for 4 times as long"),
    ],
)
def test_flow_that_asks_for_more_than_a_site_gives_is_refused(
    shell: Shell, flow: Path, more: str, why: str
) -> None:
    flow.write_text(WEB.format(site="fra", more=more))
    result = shell.run("flow", "validate", flow)
    assert result.exit_code != 0
    assert why in " ".join(result.output.split()), result.output


@pytest.mark.parametrize(
    ("authority", "why"),
    [((), "no gateway of site fra answers"), (("--authority", "ab" * 32), "has none")],
)
def test_filtered_flow_of_a_silent_site_is_applied_with_a_warning(
    shell: Shell, flow: Path, authority: tuple[str, ...], why: str
) -> None:
    flow.write_text(WEB.format(site="fra", more=", after: filters") + 'filters: [{where: "a < 2"}]')
    shell.run("site", "add", "fra", "127.0.0.1:1", *authority)
    shell.run("site", "name", "nyc")
    result = shell.run("flow", "apply", flow)
    assert result.exit_code == 0
    assert "its expressions are checked when it runs, see `flumeng status`" in result.stderr
    assert why in result.stderr
    graph = shell.run("flow", "graph", "copy").output
    assert "after filters" in graph
