"""A collector that has lost one of the threads that it needs does not live on without it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from flumeng.platform.fail_fast import EXIT_CODE

PATIENCE_SECONDS = 30.0
BROKEN = {
    "any": """
        from flumeng.platform import fail_fast
        fail_fast.start("any", fail)
        """,
    "timers": """
        from flumeng.agent.collector.scheduler import Scheduler
        Scheduler(clock=fail)
        """,
    "a turn": """
        from flumeng.agent.collector.scheduler import Scheduler
        class Actor:
            turn = on_hang = fail
        Scheduler().add(Actor())
        """,
    "reports": """
        from flumeng.agent.collector.status import Reports
        class Parent:
            send = fail
        Reports(Parent().send).answer(1, [], {})
        """,
    "slots": """
        from flumeng.agent.collector.job import Jobs
        from flumeng.agent.collector.slot import Request
        class Member:
            begin = fail
        Jobs(None, 1, on_stuck=print).ask(Request("web", Member(), 1, True))
        """,
    "watch": """
        from flumeng.agent.collector.worker import Worker
        from tests.testkit.store import FakeStore
        class Parent:
            def send(self, message): pass
            def messages(self):
                worker._scheduler.check_limits = fail
                time.sleep(30)
        worker = Worker(
            Parent(), FakeStore(), engine=None, slots=1, build=None, positions=None, on_stuck=print
        )
        worker.run()
        """,
    "positions": """
        from flumeng.connectors.journals.positions import PositionWatcher
        class Addresses:
            retain = fail
        PositionWatcher(Addresses()).watch("owner", ["web.n1.0.0"], print)
        """,
}
HEAD = """
import time

def fail(*_args):
    raise RuntimeError("on purpose")
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(script) + "\ntime.sleep(3)\n"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("thread", BROKEN)
def test_failed_thread_ends_the_process(thread: str) -> None:
    ended = run(BROKEN[thread])
    assert (ended.returncode, "on purpose" in ended.stderr) == (EXIT_CODE, True), ended.stderr


@pytest.mark.slow
def test_threads_continue_when_the_system_gives_no_more_of_them() -> None:
    ended = run(
        """
        import threading
        from flumeng.agent.collector.threads import Threads

        threads, done = Threads("call", 2, limit_seconds=60.0), []
        threads.submit(lambda: time.sleep(0.5), print)
        real, threading.Thread.start = threading.Thread.start, fail
        threads.submit(lambda: done.append("while there is none"), print)
        time.sleep(1.0)
        threading.Thread.start = real
        threads.submit(lambda: time.sleep(1.0), print)
        threads.submit(lambda: done.append("beside the others"), print)
        time.sleep(0.5)
        print(done)
        """
    )
    assert ended.stdout == "['while there is none', 'beside the others']\n", ended.stderr
