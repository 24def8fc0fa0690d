"""``python -m tests.testkit.light_servers DIRECTORY [--together]``: light hosts.

For tests and benches of readers of many hosts: each journal has a server of its own, or all have
one ``together``, in memory, in one process. The first line of its input names the journals, and it
prints the address of each. Then it takes lines: ``commit RATE`` appends and syncs an event to one
journal after the other, so many times a second in all, and ``report`` prints each commit since the
last report, as [journal, safe, seconds of the machine's monotonic clock]. It ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from flumeng.journal.log.limits import Limits
from flumeng.journal.log.memory import MemoryJournal
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.security import credentials
from tests.testkit.journal import numbered_events

JOURNAL_BYTES = 1 << 20
KEPT_EVENTS = 100


Commit = tuple[str, int, float]


class LightServers:
    """The process of the servers, with methods that control it."""

    def __init__(self, directory: Path, names: Sequence[str], *, together: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.testkit.light_servers", str(directory)]
        self._process = subprocess.Popen(
            [*command, "--together"] if together else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._tell(json.dumps(list(names)))
        self.pid = self._process.pid
        self.addresses: dict[str, str] = json.loads(self._answer())

    def commit(self, rate: float) -> None:
        """Append and sync so many times a second, to one journal after the other."""
        self._tell(f"commit {rate}")

    def report(self) -> list[Commit]:
        """Each commit since the last report: journal, safe seq, time."""
        self._tell("report")
        return [(name, safe, at) for name, safe, at in json.loads(self._answer())]

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the servers have ended"
        return line


class Committer:
    """Appends to the journals in turn, at the last rate that was set."""

    def __init__(self, journals: Sequence[MemoryJournal]) -> None:
        self._journals = journals
        self._rate = 0.0
        self._commits: list[Commit] = []
        self._changed = threading.Event()
        threading.Thread(target=self._run, name="committer", daemon=True).start()

    def commit(self, rate: float) -> None:
        self._rate = rate
        self._changed.set()

    def report(self) -> list[Commit]:
        found, self._commits = self._commits, []
        return found

    def _run(self) -> None:
        self._changed.wait()
        due = time.monotonic()
        number = 0
        while True:
            rate = self._rate
            if not rate:
                self._changed.clear()
                self._changed.wait()
                due = time.monotonic()
                continue
            journal = self._journals[number % len(self._journals)]
            number += 1
            journal.append(numbered_events(journal.next_seq, 1))
            safe = journal.sync()
            self._commits.append((journal.id, safe, time.monotonic()))
            if safe % KEPT_EVENTS == 0:
                journal.trim(safe)
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))


def main(directory: Path, *, together: bool) -> None:
    keystore = credentials.keystore_of("node")
    names = json.loads(sys.stdin.readline())
    journals = [
        MemoryJournal.create(directory, name, limits=Limits(JOURNAL_BYTES)) for name in names
    ]
    if together:
        served = dict(zip(names, journals, strict=True))
        server = JournalServer("127.0.0.1", journals=lambda: served, keystore=keystore)
        addresses = dict.fromkeys(names, server.address)
    else:
        servers = [
            JournalServer(
                "127.0.0.1", journals=partial(dict, {journal.id: journal}), keystore=keystore
            )
            for journal in journals
        ]
        addresses = {name: one.address for name, one in zip(names, servers, strict=True)}
    print(json.dumps(addresses), flush=True)
    committer = Committer(journals)
    for line in sys.stdin:
        command, _, rate = line.strip().partition(" ")
        if command == "commit":
            committer.commit(float(rate))
        else:
            print(json.dumps(committer.report()), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), together="--together" in sys.argv)
    sys.stdout.flush()
    os._exit(0)  # a server whose reader is frozen cannot be stopped
