"""A child of the node over real pipes: its end is noticed after any output."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flumeng.agent.node.events import Ended, Event, Reported
from flumeng.agent.node.process import LINE_BYTES, ChildProcess
from flumeng.platform.metrics.channel import Channel
from tests.testkit.descriptors import own_descriptors
from tests.testkit.waiting import wait_for

SECONDS = 10.0
READY = b'{"type": "ready", "address": "h:1"}\n'
STATUS = {"type": "status", "answers": 1, "tasks": {}, "journals": {}, "kept_flows": []}


class Children:
    """Starts scripts as children, and ends those that still run."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._started: list[ChildProcess] = []

    def start(self, script: str) -> ChildProcess:
        child = ChildProcess("c", [sys.executable, "-c", script], self.heard.put)
        self._started.append(child)
        return child

    def until_end(self) -> list[Event]:
        """All events up to the end of the child."""
        events = [self.heard.get(timeout=SECONDS)]
        while not isinstance(events[-1], Ended):
            events.append(self.heard.get(timeout=SECONDS))
        return events

    def close(self) -> None:
        for child in self._started:
            child.kill()


@pytest.fixture
def children() -> Iterator[Children]:
    children = Children()
    with contextlib.closing(children):
        yield children


def writes(*chunks: bytes, then: str = "") -> str:
    lines = [f"os.write(1, {chunk!r})" for chunk in chunks]
    return "\n".join(["import os, signal, sys, time", *lines, then])


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    [
        b'{"type": "sta',
        b"\xff\xfe{}\n",
        b"[1, 2]\n",
        b"null\n",
        b"\n",
        b'{"type": 7}\n',
        b'{"type": "sing"}\n',
        b'{"type": "status"}\n',
        b'{"type": "status", "answers": 1, "tasks": []}\n',
        b'{"type": "status", "answers": 1, "tasks": {"f/t": {"epoch": "1"}}}\n',
        b'{"type": "status", "answers": 1, "tasks": {}, "journals": {"j": 1}}\n',
        b'{"type": "ready", "address": 5}\n',
        b"[" * 100_000 + b"\n",
        b"1" * 10_000 + b"\n",
    ],
)
def test_malformed_message_is_ignored(children: Children, broken: bytes) -> None:
    """Also the last, which a child that is killed leaves unfinished."""
    after = json.dumps(STATUS).encode() + b"\n"
    parts = [READY, broken, after] if broken.endswith(b"\n") else [READY, broken]
    children.start(writes(*parts, then="os.kill(os.getpid(), signal.SIGKILL)"))
    expected: list[Event] = [Reported("c", {"type": "ready", "address": "h:1"})]
    if broken.endswith(b"\n"):
        expected.append(Reported("c", STATUS))
    assert children.until_end() == [*expected, Ended("c", -signal.SIGKILL)]


def test_endless_line_takes_no_memory_and_the_next_message_is_read(children: Children) -> None:
    script = f"""
import os
for _ in range({LINE_BYTES // (1 << 20)} + 2):
    os.write(1, b"x" * (1 << 20))
os.write(1, b"\\n" + {READY!r})
"""
    children.start(script)
    assert children.until_end() == [
        Reported("c", {"type": "ready", "address": "h:1"}),
        Ended("c", 0),
    ]


@pytest.mark.slow
def test_end_of_a_child_is_noticed_while_another_process_holds_the_pipe(children: Children) -> None:
    """A process that the child has left behind, in a session of its own."""
    script = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
os.write(1, b'{"type": "ready"}\\n')
os._exit(3)
"""
    began = time.monotonic()
    children.start(script)
    assert children.until_end() == [Reported("c", {"type": "ready"}), Ended("c", 3)]
    assert time.monotonic() - began < SECONDS


def session_of(pid: int) -> list[int]:
    """The running processes of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == pid and state != "Z":
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize("how", ["killed", "ended by itself"])
@pytest.mark.parametrize("group", ["the same", "its own"])
def test_no_process_of_a_child_is_left(children: Children, how: str, group: str) -> None:
    """Not even a stopped one, such as the JVM of a collector."""
    script = f"""
import os, signal, subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                              process_group={0 if group == "its own" else None})
os.kill(grandchild.pid, signal.SIGSTOP)
os.write(1, b'{{"type": "ready"}}\\n')
time.sleep({0 if how == "ended by itself" else 60})
os._exit(0)
"""
    child = children.start(script)
    assert children.heard.get(timeout=SECONDS) == Reported("c", {"type": "ready"})
    if how == "killed":
        os.kill(child.pid, signal.SIGSTOP)
        child.kill()
    assert children.until_end() == [Ended("c", 0 if how == "ended by itself" else -9)]
    wait_for(lambda: not session_of(child.pid), seconds=SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("full", ["descriptors", "threads"])
def test_a_child_that_cannot_be_started_leaves_nothing(children: Children, full: str) -> None:
    """Neither a process nor a descriptor, of its metrics' channel neither."""
    descriptors, processes = own_descriptors(), own_children()
    script = "import time; time.sleep(60)"
    with no_more(full), pytest.raises((OSError, RuntimeError)):
        children.start(script)
    with no_more(full), pytest.raises((OSError, RuntimeError)):
        Channel("c")
    wait_for(
        lambda: own_descriptors() <= descriptors and own_children() <= processes,
        "what other threads open is gone by then",
        seconds=SECONDS,
    )


@contextlib.contextmanager
def no_more(what: str) -> Iterator[None]:
    """Leave one free descriptor, which is too few for a process, and no thread."""
    if what == "threads":
        size = threading.stack_size(1 << 46)
        try:
            yield
        finally:
            threading.stack_size(size)
        return
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def own_children() -> set[str]:
    return set(Path("/proc/thread-self/children").read_text().split())


STRANGERS = """
import os, queue, sys, time
from flumeng.agent.node.process import ChildProcess
heard = queue.SimpleQueue()
child = ChildProcess("c", ["sh", "-c", "sleep 3 & exec sleep 1"], heard.put)
time.sleep(0.2)
os.setresuid(65534, 65534, 65534)
child.kill()
print(heard.get(timeout=10))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
def test_end_of_a_child_is_noticed_though_its_session_has_foreign_processes() -> None:
    """Such as those that sudo has started: they cannot be killed."""
    command = [sys.executable, "-c", STRANGERS]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout == "Ended(child='c', code=0, running=frozenset(), why='')\n", ran.stderr
