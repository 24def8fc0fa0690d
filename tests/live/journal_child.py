"""A process that runs journal operations, to be killed or failed at any system call.

Reads lines ``OPERATION JOURNAL PROMISES`` and forks once for each: the child waits for SIGUSR1, so
that a tracer can attach, then runs OPERATION on the directory JOURNAL and appends each promise of
the journal to the file PROMISES. This process answers with the child's pid and then with its exit.
Forking saves the imports: hundreds of crashes take seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from flumeng.journal.log.checkpoint import Durability
from flumeng.journal.log.errors import DiskFullError, JournalFailedError
from flumeng.journal.log.journal import Journal
from flumeng.platform.errors import FlumengError
from tests.testkit.journal import numbered_events

ROWS = 3
SEGMENT_BYTES = 1500  # two frames
FAILED = 3
"""The exit code of a child whose journal has failed, as expected after an error."""

_PR_SET_PTRACER, _ANY = 0x59616D61, -1
T = TypeVar("T")


class Child:
    """Uses one journal and writes down which operations it may rely on."""

    def __init__(self, path: Path, told: Path) -> None:
        self._path = path
        self._durability: Durability = "disk"
        self._told = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(self, name: str, value: int) -> None:
        os.write(self._told, f"{name} {value}\n".encode())

    def cycle(self) -> None:
        """Create or open it, append over several segments, trim, reopen and close it."""
        journal = self._open()
        for _ in range(5):
            self._append(journal)
            self._sync(journal)
        self.tell("ack", ack := journal.safe - ROWS)
        self._insist(lambda: journal.trim(ack))
        self.tell("floor", journal.floor)
        self._append(journal)
        self._sync(journal)
        with contextlib.suppress(DiskFullError):  # all is synced
            journal.close()
        journal = self._open()
        self._append(journal)
        self._append(journal)
        self.tell("safe", self._insist(journal.close_for_appends))
        self.tell("closed", 1)
        with contextlib.suppress(DiskFullError):  # all is synced
            journal.close()

    def cycle_of_spill(self) -> None:
        self._durability = "spill"
        self.cycle()

    def short(self) -> None:
        """Open it and append until killed."""
        journal = self._open()
        self._append(journal)
        self._sync(journal)
        os.kill(os.getpid(), signal.SIGKILL)

    def _open(self) -> Journal:
        try:
            journal = self._make_or_open()
        except DiskFullError:
            journal = self._make_or_open()
        self.tell("term", journal.term)
        return journal

    def _make_or_open(self) -> Journal:
        if self._path in Journal.find(self._path.parent):
            return Journal.open(self._path, segment_bytes=SEGMENT_BYTES, keep_free_bytes=0)
        return Journal.create(
            self._path.parent,
            self._path.name,
            durability=self._durability,
            segment_bytes=SEGMENT_BYTES,
            keep_free_bytes=0,
        )

    def _append(self, journal: Journal) -> None:
        first = journal.next_seq
        self.tell("trying", first + ROWS)
        events = numbered_events(first, ROWS)
        assert self._insist(lambda: journal.append(events, {"end": first + ROWS})) == first

    def _sync(self, journal: Journal) -> None:
        self.tell("safe", self._insist(journal.sync))

    def _insist(self, operation: Callable[[], T]) -> T:
        """A full disk has room again at the next try; after a failure nothing may succeed."""
        try:
            return operation()
        except DiskFullError:
            return operation()
        except JournalFailedError:
            with contextlib.suppress(JournalFailedError):
                operation()
                raise AssertionError("it went on after a failure") from None
            raise


def run(what: str, path: Path, told: Path) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY)
    signal.sigwait({signal.SIGUSR1})
    try:
        getattr(Child(path, told), what)()
    except FlumengError as error:
        print(f"{what}: {error!r}", file=sys.stderr)
        return FAILED
    return 0


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    with tempfile.TemporaryDirectory() as spare:  # import everything before the first fault
        Child(Path(spare) / "web.n1.0.0a1b2c3d", Path(spare) / "told").cycle()
    for line in sys.stdin:
        what, path, told = line.split()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                code = run(what, Path(path), Path(told))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
