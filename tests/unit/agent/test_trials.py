"""Dry runs for viewers end within their time, alone, and run nothing of a viewer's choice."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from flumeng.agent.dryrun import trials
from flumeng.agent.dryrun.trials import EXPLAINS, ProcessTrials
from flumeng.config import parse_flow
from flumeng.console.console import Trials
from flumeng.platform.errors import UnavailableError, UserError

FLOW = """\
flow: web
sources: [tail: {paths: [/a]}]
filters: [%s]
sinks: [noop]
"""


def script(text: str) -> ProcessTrials:
    return ProcessTrials((sys.executable, "-c", f"import json, sys, time; {text}"))


def test_it_is_what_the_console_expects() -> None:
    it: Trials = ProcessTrials()
    assert it


def test_filters_run_in_another_process_and_each_step_is_explained() -> None:
    text = FLOW % """{set: {level: high}}, {where: "host <> 'b'"}"""
    found = ProcessTrials().explain(text, [{"body": "x", "host": "a"}, {"body": "y", "host": "b"}])
    steps = [[(step["outcome"], step["dropped"]) for step in each["steps"]] for each in found]
    assert steps == [
        [('+level="high"', False), ("kept", False)],
        [('+level="high"', False), ('dropped: host is "b"', True)],
    ]
    assert found[0]["steps"][0]["before"]["body"] == "x"


def test_an_error_of_the_filters_is_the_users() -> None:
    with pytest.raises(UserError, match="unknown source"):
        ProcessTrials().explain("flow: a\nsources: [oops: {}]\nsinks: [noop]\n", [{"body": "x"}])


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("python: {function: 'os:system'}", "runs code"),
        ("sql: 'SELECT * FROM events'", "needs Spark"),
        (
            "lookup: {on: [host], table: {csv: /etc/passwd, schema: 'host STRING, x STRING'}}",
            "reads",
        ),
    ],
)
def test_filters_that_run_code_or_read_files_are_refused(part: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        trials.refuse(parse_flow(FLOW % part))


def test_a_file_is_read_only_by_a_flow_that_runs_already() -> None:
    lookup = "lookup: {on: [host], table: {csv: /etc/passwd, schema: 'host STRING, x STRING'}}"
    trials.refuse(parse_flow(FLOW % lookup), tried=False)


def test_a_trial_that_hangs_is_ended_with_its_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trials, "EXPLAIN_SECONDS", 2.0)
    mark = tmp_path / "late"
    hanging = script(f"time.sleep(4); open({str(mark)!r}, 'w')")
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="took longer than 2 s"):
        hanging.explain("flow: a", [])
    assert time.monotonic() - began < 3.9
    time.sleep(2.5)
    assert not mark.exists()


def test_few_trials_run_at_once_and_the_next_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "EXPLAIN_SECONDS", 30.0)
    it = script("time.sleep(30)")
    for _ in range(EXPLAINS):
        assert it._explains.acquire(blocking=False)
    with pytest.raises(UnavailableError, match="try again"):
        it.explain("flow: a", [])


def test_a_viewer_who_leaves_ends_the_process() -> None:
    it = script("print(json.dumps({'body': 'a'}), flush=True); time.sleep(60)")
    events = it._run({}, 60.0)
    assert next(event for event in events if event is not None) == {"body": "a"}
    began = time.monotonic()
    events.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < 5


def test_a_flood_of_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "LINE_BYTES", 100)
    it = script("sys.stdout.write('x' * 1000000)")
    with pytest.raises(UnavailableError, match="too large"):
        [*it._run({}, 20.0)]


def test_requests_are_one_json_object() -> None:
    it = script("print(json.dumps(json.load(sys.stdin)))")
    assert [each for each in it._run({"work": "x"}, 20.0) if each] == [json.loads('{"work": "x"}')]
