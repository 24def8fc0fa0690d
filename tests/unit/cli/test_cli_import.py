"""``flumeng import``: files in, flow files and a report out, and an exit code for scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import tree
from flumeng.config.flow_files import read_flows

AGENT = """\
a1.sources = r1
a1.channels = c1
a1.sinks = k1
a1.sources.r1.type = seqgen
a1.sources.r1.channels = c1
a1.channels.c1.type = memory
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
"""
NODES = 'agent : tail("/var/log/a") | agentE2ESink("c") ;\nc : collectorSource | console ;\n'


def run(kind: str, *words: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(tree, ["import", kind, *map(str, words)], env=env)


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / "agent.properties"
    path.write_text(AGENT)
    return path


def test_flows_and_report_are_written(agent: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "deep"
    result = run("flume-ng", agent, "--out", out)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == ["a1.yaml", "report.txt"]
    (found,) = read_flows([out / "a1.yaml"])
    assert found.spec.flow == "a1"
    report = (out / "report.txt").read_text().splitlines()
    assert f"{agent}:8: a1.sinks.k1.channel: mapped: the flow" in report
    assert "1 flow; 7 mapped, 1 approximately, 0 not mapped" in result.stderr
    again = run("flume-ng", agent, "--out", out)
    assert again.exit_code == 0


def test_existing_file_is_never_replaced(agent: Path, tmp_path: Path) -> None:
    (tmp_path / "a1.yaml").write_text("mine")
    result = run("flume-ng", agent, "--out", tmp_path)
    assert result.exit_code == 2
    assert "a1.yaml: exists with other content" in result.output
    assert (tmp_path / "a1.yaml").read_text() == "mine"
    assert not (tmp_path / "report.txt").exists()


def test_without_out_flows_and_report_are_shown(agent: Path) -> None:
    shown = run("flume-ng", agent).stdout
    assert "flow: a1\n" in shown
    assert f"{agent}\t1\ta1.sources\tmapped\t" in shown


def test_exit_code_shows_that_something_is_not_mapped(agent: Path) -> None:
    agent.write_text(AGENT.replace("null", "org.example.MySink"))
    result = run("flume-ng", agent, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [flow["name"] for flow in found["flows"]] == ["a1"]
    (line,) = {f["place"]["line"] for f in found["findings"] if f["outcome"] == "not mapped"}
    assert line == 7


def test_option_agent_imports_that_agent_alone(agent: Path) -> None:
    agent.write_text(AGENT + "a1.sinks.k1.type = null\nnonsense\n" + AGENT.replace("a1.", "a2."))
    found = json.loads(run("flume-ng", agent, "--json", "--agent", "a2").stdout)
    assert [flow["name"] for flow in found["flows"]] == ["a2"]
    assert {one["place"]["line"] for one in found["findings"]} == set(range(11, 19))
    result = run("flume-ng", agent, "--agent", "a3")
    assert result.exit_code == 2
    assert "there is no agent a3" in result.output


def test_variables_of_the_environment_are_filled_in(agent: Path) -> None:
    text = AGENT.replace("seqgen", "netcat\na1.sources.r1.port = ${FLUME_TEST_PORT}")
    agent.write_text(text)
    assert "0.0.0.0:4444" in run("flume-ng", agent, env={"FLUME_TEST_PORT": "4444"}).stdout
    without = run("flume-ng", agent)
    assert without.exit_code == 1
    assert "${FLUME_TEST_PORT} is not known" in without.stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no agent of Flume NG found"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is no text"),
        (b"a1.sources", "no agent of Flume NG found"),
    ],
)
def test_a_damaged_file_is_wrong_input(agent: Path, content: bytes, said: str) -> None:
    agent.write_bytes(content)
    result = run("flume-ng", agent)
    assert result.exit_code == 2
    assert said in result.output


def test_a_file_that_is_not_there_is_wrong_input(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        result = run("flume-og", path)
        assert result.exit_code == 2
        assert str(path) in result.output


def test_incomplete_line_and_duplicate_key_are_reported(agent: Path) -> None:
    agent.write_bytes(
        AGENT.encode() + b"a1.sources.r1.totalEvents = 5\na1.sources.r1.totalEvents : 6\n"
        b"a1.sinks.k1.x\\u00\na1.sources.r1.tot"
    )
    result = run("flume-ng", agent)
    assert "count: 6" in result.stdout
    assert "replaced by line 10, as in Flume" in result.stdout
    assert "four hexadecimal digits" in result.stdout
    assert result.exit_code == 1


@pytest.mark.slow
def test_a_thousand_sources_are_flows_of_a_hundred(agent: Path, tmp_path: Path) -> None:
    names = [f"r{number}" for number in range(1000)]
    lines = [f"a1.sources = {' '.join(names)}", "a1.channels = c1", "a1.sinks = k1"]
    for number, name in enumerate(names):
        lines += [
            f"a1.sources.{name}.type = netcat",
            f"a1.sources.{name}.bind = 0.0.0.0",
            f"a1.sources.{name}.port = {10_000 + number}",
            f"a1.sources.{name}.ack-every-event = false",
            f"a1.sources.{name}.channels = c1",
        ]
    lines += ["a1.channels.c1.type = file", "a1.sinks.k1.type = null", "a1.sinks.k1.channel = c1"]
    agent.write_text("\n".join(lines))
    out = tmp_path / "out"
    assert run("flume-ng", agent, "--out", out).exit_code == 0
    found = read_flows(sorted(out.glob("*.yaml")))
    assert len(found) == 10
    assert {len(flow.spec.sources) for flow in found} == {100}


def test_nodes_of_flume_og_are_flows_too(tmp_path: Path) -> None:
    path = tmp_path / "nodes.conf"
    path.write_text(NODES)
    result = run("flume-og", path, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    (found,) = read_flows([tmp_path / "out" / "agent.yaml"])
    assert (found.spec.durability, found.spec.delivery) == ("disk", "at-least-once")
    path.write_text(NODES.replace("|", ":"))
    wrong = run("flume-og", path)
    assert wrong.exit_code == 2
    assert f'{path}:1:28: expected "|" between source and sink; found ":"' in wrong.output
