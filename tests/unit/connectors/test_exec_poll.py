"""Commands that run at due times: real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flumeng.config import check_flow
from flumeng.connectors.exec.options import Exec
from flumeng.connectors.exec.poll import ExecPoll
from flumeng.connectors.polls.options import Answers, Schedule
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from flumeng.platform.options.problems import SpecError
from tests.testkit.daemons import is_alive
from tests.testkit.descriptors import own_descriptors
from tests.testkit.waiting import happens, wait_for

DUE = datetime(2026, 11, 26, 12, tzinfo=UTC)


def poll(script: str, timeout_seconds: float = 20.0, max_line_bytes: int = 2**20) -> ExecPoll:
    options = Exec(
        command=("/bin/sh", "-c", script),
        once_per="cluster",
        schedule=Schedule(every_seconds=60),
        answers=Answers(path="/tmp/answers"),
        timeout_seconds=timeout_seconds,
        max_line_bytes=max_line_bytes,
    )
    return ExecPoll(options)


def ends(pid: int, seconds: float = 5.0) -> bool:
    return happens(lambda: not is_alive(pid), seconds=seconds)


def test_each_line_is_an_event() -> None:
    answer = poll(r"printf 'one\r\n\ntwo\377\nlast'").ask("", DUE)
    assert answer.bodies.to_pylist() == [b"one", b"", b"two\xff", b"last"]
    assert not answer.more
    assert poll("true").ask("", DUE).bodies.to_pylist() == []


def test_a_line_that_is_too_long_is_cut() -> None:
    answer = poll("printf '%0100d\nshort\n' 0", max_line_bytes=64).ask("", DUE)
    assert answer.bodies.to_pylist() == [b"0" * 64, b"short"]


def test_command_gets_its_due_time_and_the_previous_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of this process's own environment."""
    monkeypatch.setenv("FLUMENG_SECRET_X", "hidden")
    asked = poll("echo $FLUMENG_DUE ${FLUMENG_SINCE-never} ${FLUMENG_SECRET_X-unknown}")
    first = asked.ask("", DUE)
    assert first.bodies.to_pylist() == [b"2026-11-26T12:00:00+00:00 never unknown"]
    second = asked.ask(first.state, DUE.replace(hour=13))
    assert second.bodies.to_pylist() == [
        b"2026-11-26T13:00:00+00:00 2026-11-26T12:00:00+00:00 unknown"
    ]


def test_late_repeat_of_a_due_time_does_not_move_the_window_back() -> None:
    asked = poll("echo $FLUMENG_DUE ${FLUMENG_SINCE-never}")
    late = asked.ask(asked.ask("", DUE.replace(hour=13)).state, DUE)
    assert late.bodies.to_pylist() == [b"2026-11-26T12:00:00+00:00 2026-11-26T12:00:00+00:00"]
    following = asked.ask(late.state, DUE.replace(hour=14))
    assert following.bodies.to_pylist() == [b"2026-11-26T14:00:00+00:00 2026-11-26T13:00:00+00:00"]


def test_state_of_another_kind_of_poll_is_reported_with_advice() -> None:
    with pytest.raises(CorruptError, match="make a new flow"):
        poll("true").ask('{"v":1,"until":"2026-11-26T12:00:00Z"}', DUE)


def test_failing_command_is_reported_with_its_output() -> None:
    with pytest.raises(UserError, match=r"/bin/sh ended with status 3: no\s?such host"):
        poll("echo taken; echo 'no such' >&2; echo host >&2; exit 3").ask("", DUE)
    with pytest.raises(UserError, match="ended with status 143"):
        poll("kill -TERM $$").ask("", DUE)
    missing = Exec(command=("/no/such/program",), once_per="cluster")
    with pytest.raises(UserError, match=r"/no/such/program ended with status 127: No such file"):
        ExecPoll(missing).ask("", DUE)


@pytest.mark.slow
def test_command_beyond_its_timeout_is_ended_with_its_children(tmp_path: Path) -> None:
    """Also when it ignores SIGTERM."""
    script = f"trap '' TERM; sleep 60 & echo $! > {tmp_path}/child; while :; do sleep 60; done"
    began = time.monotonic()
    with pytest.raises(UserError, match=r"did not end within 0\.5 s"):
        poll(script, timeout_seconds=0.5).ask("", DUE)
    assert time.monotonic() - began < 6
    assert ends(int((tmp_path / "child").read_text()))


def test_command_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    """A child that has its output open delays no poll."""
    script = f"(trap '' TERM; sleep 60) & echo $! > {tmp_path}/child; echo done"
    began = time.monotonic()
    assert poll(script).ask("", DUE).bodies.to_pylist() == [b"done"]
    assert time.monotonic() - began < 5
    assert ends(int((tmp_path / "child").read_text()))


def test_a_command_that_prints_without_end_is_ended() -> None:
    with pytest.raises(UserError, match="printed more than 32 MiB"):
        poll("yes").ask("", DUE)


@pytest.mark.slow
def test_a_poll_that_is_closed_ends_its_command() -> None:
    asked = poll("sleep 60")
    threading.Timer(0.5, asked.close).start()
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="closed"):
        asked.ask("", DUE)
    assert time.monotonic() - began < 5
    with pytest.raises(UnavailableError, match="closed"):
        asked.ask("", DUE)


@pytest.mark.slow
def test_command_ends_with_the_polling_process(tmp_path: Path) -> None:
    """However that ends."""
    script = f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 60"
    code = (
        "from datetime import *; from flumeng.connectors.exec.poll import ExecPoll;"
        "from flumeng.connectors.exec.options import Exec;"
        f"ExecPoll(Exec(command=('/bin/sh', '-c', {script!r}))).ask('', datetime.now(UTC))"
    )
    asking = subprocess.Popen([sys.executable, "-c", code])
    wait_for((tmp_path / "pid").exists, "the command has not started")
    os.kill(asking.pid, signal.SIGKILL)
    asking.wait()
    assert ends(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
def test_command_poll_leaves_no_descriptor_open() -> None:
    asked = poll("echo x")
    asked.ask("", DUE)
    before = own_descriptors()
    for _ in range(5):
        asked.ask("", DUE)
    assert own_descriptors() <= before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("once_per: cluster, answers: {path: /a}", "schedule: expected with"),
        ("once_per: cluster, schedule: {every_seconds: 60}", "answers: expected with"),
        ("schedule: {every_seconds: 60}", "needs `once_per: cluster`"),
        (
            "once_per: cluster, answers: {path: /a}, schedule: {every_seconds: 60}, mode: once",
            "has no effect with `once_per: cluster`",
        ),
    ],
)
def test_options_that_exclude_each_other_are_refused(given: str, message: str) -> None:
    flow = (
        f"flow: probe\nsources:\n  - exec: {{command: [/bin/true], {given}}}\nsinks:\n"
        "  - noop: {}\n"
    )
    with pytest.raises(SpecError, match=message):
        check_flow(flow)


def test_placement_and_needs_of_a_poll_follow_its_mode() -> None:
    pinned = Exec(command=("/bin/true",), mode="once")
    assert (pinned.placing, pinned.weighed, pinned.keeps_place) == ("pinned", False, True)
    assert list(pinned.needs()) == [("command", ("/bin/true",))]
    options = poll("true")._options
    assert (options.placing, options.weighed, options.keeps_place) == ("partitioned", True, False)
    assert ("output", "/tmp/answers") in list(options.needs())
    assert (options.local_path, options.local) == ("/tmp/answers", True)
