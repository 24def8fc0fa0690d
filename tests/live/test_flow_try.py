"""`flumeng flow try` as a command in a pipe, and filters and cases that need Spark."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flumeng.agent.collector import spark as sessions
from flumeng.agent.dryrun.cases import read_cases
from flumeng.agent.dryrun.explaining import explain
from flumeng.agent.dryrun.filter_tree import FilterTree
from flumeng.agent.dryrun.outcomes import run_cases
from flumeng.agent.dryrun.received_lines import ReceivedLines
from flumeng.config import check_flow
from flumeng.connectors.api.framing import Messages
from flumeng.platform.errors import FlumengError

CASES = sorted((Path(__file__).parents[2] / "conf" / "flows").glob("*.test.yaml"))
FLOW = """\
flow: web
sources: [tail: {paths: [/var/log/a.log]}]
filters:
%s
sinks: [noop]
"""
LINES = Messages(b'{"n": 1}\n{\n{"n": 2, "who": "ann"}\n')


def command(flow: Path) -> list[str]:
    return [sys.executable, "-m", "cli.main", "flow", "try", str(flow)]


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    path = tmp_path / "web.yaml"
    path.write_text(FLOW % "  - where: \"host <> ''\"")
    return path


def test_a_line_is_shown_at_once_and_ctrl_c_ends_it(flow: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(command(flow), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None and process.stdout is not None
        for line in (b"first\n", b"second\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline().endswith(b' body="%s"\n' % line.strip())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == b"flumeng: 2 events in, 2 out\n"


@pytest.mark.long
def test_try_ends_quietly_when_its_output_pipe_is_closed(flow: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"x" * 100 + b"\n" + b"y\n" * 2_000_000)
    pipe = subprocess.PIPE
    with subprocess.Popen([*command(flow), str(lines)], stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(60) == 0
    assert b"Traceback" not in errors


def through(session: SparkSession, filters: str) -> list[dict[str, object]]:
    spec = check_flow(FLOW % filters)
    received = ReceivedLines(spec, host="h", ts=0)
    large = sessions.for_large_rows(session)
    (end,) = FilterTree(spec.stages, large, received.schema).run(received.events(LINES))
    return [row for batch in end.batches for row in batch.to_pylist()]


def test_spark_filters_run_in_spark(spark: SparkSession) -> None:
    found = through(
        spark,
        '  - parse: {format: json, schema: "n INT, who STRING"}\n'
        "  - where: \"n > 0 OR attrs['parse_error'] LIKE 'json%'\"\n"
        '  - select: [seq, attrs, "upper(who) AS who"]\n',
    )
    assert [(row["seq"], row["who"]) for row in found] == [(0, None), (1, None), (2, "ANN")]
    assert found[1]["attrs"] == [("source", "tail"), ("parse_error", "json: malformed")]
    counted = through(spark, '  - sql: "SELECT host, count(*) AS n FROM events GROUP BY host"\n')
    assert counted == [{"host": "h", "n": 3}]


def test_spark_steps_are_explained_as_far_as_events_can_be_followed(spark: SparkSession) -> None:
    spec = check_flow(
        FLOW % '  - where: "length(body) > 1"\n  - sql: SELECT host, count(*) AS n FROM events '
        "GROUP BY host\n"
    )
    received = ReceivedLines(spec)
    large = sessions.for_large_rows(spark)
    found = list(explain(spec, large, received.events(LINES)))
    assert [len(it.steps[0].rows) for it in found] == [1, 0, 1]
    assert [it.steps[-1].lost for it in found] == [True, False, True]


def test_statement_that_spark_refuses_is_reported(spark: SparkSession) -> None:
    spec = check_flow(FLOW % "  - sql: SELECT host, seq FROM events GROUP BY host\n")
    with pytest.raises(FlumengError, match="seq"):
        FilterTree(spec.stages, spark, ReceivedLines(spec).schema)


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.name)
def test_cases_of_the_examples_pass(spark: SparkSession, file: Path) -> None:
    (cases,) = read_cases([file])
    large = sessions.for_large_rows(spark)
    outcomes = list(run_cases(cases, large, lambda _: True))
    assert outcomes
    assert [outcome for outcome in outcomes if not outcome.passed] == []
