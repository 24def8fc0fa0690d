"""`flumeng flow try`: the output of a flow's filters, without a cluster and without a JVM."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from cli.main import tree
from flumeng.agent.dryrun import rendering
from flumeng.agent.dryrun.filter_tree import FilterTree
from flumeng.agent.dryrun.reading import ahead, in_order
from flumeng.agent.dryrun.received_lines import ReceivedLines
from flumeng.config import parse_flow
from flumeng.connectors.api.framing import Messages
from flumeng.events.attributes import parse_errors

LINES = (
    b"<34>1 2026-11-23T10:15:03.003Z web1 su - ID47 - failed \xff\n"
    b"junk\r\n"
    b"\n"
    b"<165>Nov 23 05:34:00 router myproc[10]: up \x1b[1m"
)
FLOW = """\
flow: web
sources:
  - syslog: {listen: "127.0.0.1:0", max_line_bytes: 64}
  - tail: {paths: [/var/log/a.log]}
filters:
  - parse: {format: syslog}
  - where: "severity <= 4 OR attrs['parse_error'] IS NOT NULL"
sinks:
  - files: {path: /nowhere/at/all}
"""
TIME = ("--ts", "2026-11-23T12:00:00Z")


@pytest.fixture
def flow(tmp_path: Path) -> str:
    path = tmp_path / "web.yaml"
    path.write_text(FLOW)
    return str(path)


def run(flow: str, *words: str, given: bytes = LINES, piece_bytes: int | None = None) -> Result:
    """Try the flow on a file, or on a pipe that holds ``piece_bytes``: no more is read at once."""
    lines = Path(flow).with_name("lines")
    lines.unlink(missing_ok=True)
    if piece_bytes is None:
        lines.write_bytes(given)
    else:
        os.mkfifo(lines)
        threading.Thread(target=feed, args=(lines, given, piece_bytes), daemon=True).start()
    return CliRunner().invoke(tree, ["flow", "try", flow, str(lines), *words])


def feed(pipe: Path, given: bytes, piece_bytes: int) -> None:
    with pipe.open("wb") as file:
        fcntl.fcntl(file, fcntl.F_SETPIPE_SZ, piece_bytes)
        file.write(given)


def rows(flow: str, *words: str, given: bytes = LINES) -> list[dict[str, Any]]:
    result = run(flow, "--json", *words, given=given)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_text_output_shows_the_parsed_columns(flow: str) -> None:
    result = run(flow, *TIME)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        '2026-11-23T10:15:03.003000Z web1 facility=4 severity=2 app="su" msgid="ID47" '
        'message="failed \ufffd"',
        '2026-11-23T12:00:00.000000Z 127.0.0.1 body="junk" attrs.parse_error="syslog: no priority"',
    ]
    assert result.stderr == "flumeng: 3 events in, 2 out, 1 of them with parse_error\n"


def test_json_output_is_that_of_the_sinks(flow: str) -> None:
    parsed, refused = rows(flow, *TIME, "--host", "ten", "--attr", "peer=192.0.2.1:7")
    assert parsed["host"] == "web1"
    assert parsed["body_base64"]
    assert parsed["seq"] == 0
    assert refused == {
        "body": "junk",
        "ts": "2026-11-23T12:00:00.000000Z",
        "host": "ten",
        "attrs": {"source": "syslog", "peer": "192.0.2.1:7", "parse_error": "syslog: no priority"},
        "journal": "trial",
        "seq": 1,
        "replayed": False,
    }


def test_lines_are_cut_as_the_source_cuts_them(flow: str) -> None:
    long = b"<1>" + b"x" * 100 + b"\n\n"
    (cut,) = rows(flow, given=long)
    assert len(cut["body"]) == 64
    assert cut["attrs"]["truncated"] == "true"
    whole, empty = rows(flow, "--source", "1", given=long)
    assert len(whole["body"]) == 103
    assert (empty["body"], empty["attrs"]["source"]) == ("", "tail")
    refused = run(flow, "--source", "2")
    assert refused.exit_code == 2
    assert "has no source 2, only 2 numbered from 0" in refused.stderr


def test_parse_errors_are_counted_within_a_slice() -> None:
    kinds = pa.map_(pa.string(), pa.string())
    attrs = pa.array([[("source", "tail")], [("parse_error", "no")], []], kinds)
    events = pa.RecordBatch.from_arrays([attrs], ["attrs"])
    assert [parse_errors(events.slice(row, 1)) for row in range(3)] == [0, 1, 0]


def test_files_are_read_one_after_the_other(flow: str, tmp_path: Path) -> None:
    for name, body in (("a", b"<1>two"), ("b", b"<1>three\n")):
        (tmp_path / name).write_bytes(body)
    found = rows(flow, str(tmp_path / "a"), str(tmp_path / "b"), given=b"<1>one")
    assert [row["message"] for row in found] == ["one", "two", "three"]
    missing = run(flow, str(tmp_path / "c"))
    assert missing.exit_code == 2
    assert "c: cannot be read: No such file or directory" in missing.stderr


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("utf-8", b"\xef\xbb\xbfgr\xc3\xbcn\nb"),
        ("utf-8", "\ufeffgrün\r\nb".encode("utf-16-le")),
        ("utf-16", "grün\nb\n".encode("utf-16-le")),
        ("latin-1", b"gr\xfcn\nb\n"),
    ],
)
def test_files_are_read_in_the_encoding_of_their_source(
    tmp_path: Path, encoding: str, data: bytes
) -> None:
    flow = tmp_path / "flow.yaml"
    flow.write_text(
        f"flow: f\nsources:\n  - tail: {{paths: [/x], encoding: {encoding}}}\nsinks: [noop]\n"
    )
    found = rows(str(flow), given=data)
    assert [row["body"] for row in found] == ["grün", "b"]


def test_empty_input_gives_no_events(flow: str) -> None:
    result = run(flow, given=b"")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "flumeng: 0 events in, 0 out\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ts", "noon"], "--ts: expected a time, like 2026-01-01T00:00:00Z, not 'noon'"),
        (["--attr", "a"], "an attribute is KEY=VALUE, not 'a'"),
    ],
)
def test_invalid_arguments_are_reported(flow: str, words: list[str], said: str) -> None:
    result = run(flow, *words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_invalid_flow_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(FLOW.replace("severity <=", "sverity <="))
    result = run(str(path))
    assert result.exit_code == 2
    assert 'there is no column "sverity"; did you mean "severity"?' in result.stderr


def test_each_filter_is_explained(flow: str) -> None:
    result = run(flow, "--explain", "2", *TIME)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        'event 0: "<34>1 2026-11-23T10:15:03.003Z web1 su - ID47 - failed \ufffd"',
        '  parse syslog: ts="2026-11-23T10:15:03.003000Z" (was "2026-11-23T12:00:00.000000Z"), '
        'host="web1" (was "127.0.0.1"), +facility=4, +severity=2, +app="su", +msgid="ID47", '
        '+message="failed \ufffd"',
        "  where \"severity <= 4 OR attrs['parse_error'] IS NOT NULL\": kept",
        'event 1: "junk"',
        '  parse syslog: +attrs.parse_error="syslog: no priority"',
        "  where \"severity <= 4 OR attrs['parse_error'] IS NOT NULL\": kept",
    ]
    dropped = run(flow, "--explain", "9", "--json", given=b"<7>x\n")
    (event,) = map(json.loads, dropped.stdout.splitlines())
    assert [step["dropped"] for step in event["steps"]] == [False, True]
    assert event["steps"][1]["why"] == {"severity": 7, "attrs": {"source": "syslog"}}


BRANCHES = """\
branches:
  - name: bad
    when: "severity <= 3"
    sinks: [noop]
    branches:
      - {name: web, when: "host = 'web1'", filters: [select: [app]], sinks: [noop]}
  - {name: rest, otherwise: true, sinks: [noop]}
"""


def test_events_come_out_of_every_branch_that_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "parted.yaml"
    path.write_text(FLOW.partition("sinks:")[0] + BRANCHES)
    result = run(str(path), *TIME)
    assert [line.partition(" ")[0] for line in result.stdout.splitlines()] == [
        "[bad]",
        "[bad/web]",
        "[rest]",
    ]
    found = rows(str(path))
    assert [row["@end"] for row in found] == ["bad", "bad/web", "rest"]
    assert found[1] == {"@end": "bad/web", "app": "su"}
    explained = run(str(path), "--explain", "2").stdout.splitlines()
    assert [line for line in explained if "branch" in line or "select" in line] == [
        '  branch bad when "severity <= 3": taken',
        "    branch web when \"host = 'web1'\": taken",
        "      select app: -body -body_base64 -ts -host -attrs -seq -facility -severity -msgid "
        "-message",
        "  branch rest otherwise: not taken",
        '  branch bad when "severity <= 3": not taken: severity is null',
        "  branch rest otherwise: taken",
    ]


def test_filter_dead_letters_have_an_output_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "letters.yaml"
    text = FLOW.replace("{format: syslog}", "{format: syslog}\n    on_error: dead-letter")
    path.write_text(f"{text}dead_letters: noop\n")
    result = run(str(path), *TIME)
    assert result.stdout.splitlines()[0] == (
        "[dead letter of filters[0].parse] 2026-11-23T12:00:00.000000Z 127.0.0.1 "
        'body="junk" attrs.parse_error="syslog: no priority"'
    )
    assert result.stderr == "flumeng: 3 events in, 1 out, 1 dead letter\n"
    letter, kept = rows(str(path))
    assert (letter["@end"], letter["body"]) == ("dead letter of filters[0].parse", "junk")
    assert "@end" not in kept
    explained = run(str(path), "--explain", "2").stdout.splitlines()
    assert explained[-1] == (
        '  parse syslog on_error dead-letter: dropped: parse_error is "syslog: no priority"'
    )


def test_messages_of_kafka_have_its_columns() -> None:
    pytest.importorskip("confluent_kafka")
    spec = parse_flow(
        "{flow: a, sources: [kafka: {brokers: ['b:1'], topics: [t]}], sinks: [noop], "
        "filters: [select: [topic, partition, key, headers, host]]}"
    )
    received = ReceivedLines(spec)
    (end,) = FilterTree(spec.stages, no_spark, received.schema).run(
        received.events(Messages(b"x\n"))
    )
    (found,) = end.batches
    (row,) = found.to_pylist()
    assert row == {"topic": "t", "partition": 0, "key": None, "headers": [], "host": ""}


def no_spark() -> Any:
    raise AssertionError("nothing here needs Spark")


def test_error_of_a_read_ahead_comes_in_order() -> None:
    def items() -> Any:
        yield pa.scalar(1)
        raise ValueError("here")

    found = ahead(items())
    assert next(found) == pa.scalar(1)
    with pytest.raises(ValueError, match="here"):
        next(found)


def test_read_ahead_thread_ends_when_its_consumer_closes() -> None:
    found = ahead(itertools.count())
    assert next(found) == 0
    [thread] = [thread for thread in threading.enumerate() if thread.name == "ahead"]
    found.close()
    thread.join(10)
    assert not thread.is_alive()


def test_results_of_parallel_work_come_in_order_and_so_does_an_error() -> None:
    def work(number: int) -> int:
        time.sleep(0.01 * (number % 3))
        return 10 // (20 - number)

    found = in_order(work, iter(range(30)))
    assert [next(found) for _ in range(20)] == [10 // (20 - number) for number in range(20)]
    with pytest.raises(ZeroDivisionError):
        next(found)


@pytest.mark.slow
@pytest.mark.parametrize("piece_bytes", [4096, None])
def test_parallel_filtering_gives_the_same_as_one_batch(flow: str, piece_bytes: int | None) -> None:
    """Many pieces, or one that becomes several batches."""
    texts = [f"<{n % 40}>1 2026-11-23T10:15:03Z web{n % 7} su - - - {n}\n" for n in range(9999)]
    lines = "".join(texts).encode() + LINES
    spec = parse_flow(FLOW)
    received = ReceivedLines(spec, ts=1_795_435_200_000_000)
    filters = FilterTree(spec.stages, no_spark, received.schema)
    (end,) = filters.run(received.events(Messages(lines + b"\n")))
    kept = end.batches
    for words, render in ((["--json"], rendering.json_lines), ([], rendering.text_lines)):
        result = run(flow, *TIME, *words, given=lines, piece_bytes=piece_bytes)
        assert result.exit_code == 0, result.output
        assert result.stdout_bytes == b"".join(map(bytes, map(render, kept)))
        assert f"flumeng: 10002 events in, {sum(map(len, kept))} out" in result.stderr


_calling = threading.Lock()


def one_at_a_time(events: pa.RecordBatch) -> pa.RecordBatch:
    assert _calling.acquire(blocking=False), "another thread is in here"
    time.sleep(0.005)
    _calling.release()
    return events


@pytest.mark.slow
def test_a_function_of_a_user_is_called_by_one_thread_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "called.yaml"
    called = f"  - python: {{function: '{__name__}:one_at_a_time'}}\n"
    path.write_text(FLOW.replace("  - where", f"{called}  - where"))
    result = run(str(path), given=b"<1>one\n" * 50_000, piece_bytes=4096)
    assert result.exit_code == 0, result.output
    assert result.stderr == "flumeng: 50000 events in, 50000 out\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["try", "test"])
def test_flow_try_and_test_import_only_arrow(flow: str, command: str) -> None:
    cases = Path(flow).with_name("web.test.yaml")
    cases.write_text("{flow: web.yaml, cases: [{name: one, input: [<1>x], count: 1}]}")
    words = ["flow", command, flow if command == "try" else str(cases)]
    code = (
        "import sys; from cli.main import tree\n"
        f"try: tree({words!r}, prog_name='flumeng')\n"
        "finally: print([m for m in ('pandas', 'pyspark', 'kazoo', 'rich') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], input="<1>x\n", capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("after", ["sources", "filters"])
def test_flow_that_reads_a_flow_warns_that_the_others_filters_do_not_run(
    tmp_path: Path, after: str
) -> None:
    flow = tmp_path / "alarms.yaml"
    flow.write_text(
        f"flow: alarms\nsources: [flow: {{name: web, after: {after}}}]\n"
        "filters: [where: \"host <> ''\"]\nsinks: [noop]\n"
    )
    result = run(str(flow), given=b"x\n")
    told = "flumeng: the filters of web do not run here, only this flow's own"
    assert result.stderr.startswith(told) == (after == "filters")
    assert result.stderr.endswith("flumeng: 1 event in, 1 out\n")
