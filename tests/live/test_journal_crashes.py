"""A journal's process killed, or refused, at each single system call that changes its files.

Acknowledged events survive without gaps or phantoms, terms rise, torn tails are cut, errors are
final, the order on disk is kept and a full disk is waited for. The real kernel and strace are in
the place of a simulated disk.

Killed is right before the call, so every state between two calls is left behind once. Power cuts
come at every third call; with FLUMENG_TEST_FULL set at every one, and in all ways that ext4 knows.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flumeng.journal.log.journal import Journal
from tests.live.power_cut import PowerCut
from tests.testkit.journal import numbered_events


def can_trace() -> bool:
    try:
        return subprocess.run(["strace", "-o", "/dev/null", "true"], check=False).returncode == 0
    except FileNotFoundError:
        return False


FULL = bool(os.environ.get("FLUMENG_TEST_FULL"))
pytestmark = pytest.mark.skipif(not can_trace(), reason="needs strace, and to be let use it")

CHILD = "tests.live.journal_child"
ROWS = 3
SEGMENT_BYTES = 1500
DONE, FAILED, KILLED = 0, 3, -signal.SIGKILL
WRITES = "/^pwrite"
SYNCS = ("fdatasync", "fsync")
NAMES = ("/^rename", "/^unlink", "/^mkdir")
CALLS = (WRITES, *SYNCS, *NAMES, "ftruncate")
"""All system calls by which a journal changes files, as strace names them."""


class Children:
    """The process that forks the children."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, what: str, journal: Path, told: Path, fault: str = "") -> tuple[int, bool]:
        """Run one child to its end; returns its exit code, negative for a signal, and whether the
        fault has struck.

        The fault is in strace's words: ``fsync:error=EIO:when=3``.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        stdin.write(f"{what} {journal} {told}\n")
        stdin.flush()
        pid = int(stdout.readline())
        tracer = _trace(pid, fault) if fault else None
        os.kill(pid, signal.SIGUSR1)
        ended = int(stdout.readline())
        calls = tracer.communicate()[1] if tracer else ""
        return ended, "INJECTED" in calls or ended == KILLED

    def stop(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _trace(pid: int, fault: str) -> subprocess.Popen[str]:
    """Put strace on a process and return when it is there; it writes to its standard error."""
    call = fault.partition(":")[0]
    tracer = subprocess.Popen(
        ["strace", "-e", f"trace={call}", "-e", f"inject={fault}", "-p", str(pid)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr
    first = tracer.stderr.readline()
    assert "attached" in first, first + tracer.stderr.read()
    return tracer


def read_told(told: Path) -> dict[str, int]:
    """Name -> the last value that the child reported."""
    lines = told.read_text().splitlines() if told.exists() else []
    return {name: int(value) for name, value in (line.split() for line in lines)}


def check(path: Path, told: dict[str, int]) -> None:
    """All reported events are there, and none beyond the attempted ones."""
    if path not in Journal.find(path.parent):
        assert not told, f"the journal is gone, and was said to be at {told}"
        return
    journal = open_journal(path)
    assert journal.term > told.get("term", 0)
    assert told.get("safe", 0) <= journal.safe == journal.next_seq <= told.get("trying", 0)
    assert told.get("floor", 0) <= journal.floor <= told.get("ack", 0)
    assert journal.safe % ROWS == 0, "a frame was kept in part"
    assert dict(journal.state) == ({"end": journal.safe} if journal.safe else {})
    assert bodies(journal) == list(range(journal.floor, journal.safe))
    assert journal.closed or not told.get("closed")
    assert min(path.glob("*.segment*")).name.startswith(f"{journal.floor:020d}.segment")
    if not journal.closed:
        journal.append(numbered_events(journal.safe, ROWS))
        journal.sync()
    safe = journal.safe
    journal.check()
    journal.close()
    again = open_journal(path)
    assert bodies(again) == list(range(again.floor, safe))
    again.close()


def open_journal(path: Path) -> Journal:
    return Journal.open(path, segment_bytes=SEGMENT_BYTES, keep_free_bytes=0)


def bodies(journal: Journal) -> list[int]:
    batches = journal.read(journal.floor, journal.safe)
    return [int(body.as_py().rstrip(b".")) for batch in batches for body in batch.column("body")]


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.stop()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory if possible: a killed process loses no written page anyway."""
    place = tmp_path / "mount"
    place.mkdir()
    tmpfs = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(place)]
    mounted = subprocess.run(tmpfs, check=False, capture_output=True).returncode == 0
    yield place
    if mounted:
        subprocess.run(["umount", "--lazy", place], check=True)


def leave_a_mess(path: Path) -> dict[str, int]:
    """Leave the most difficult state for an opening: a torn tail, an interrupted trim and an
    interrupted roll."""
    journal = Journal.create(path.parent, path.name, segment_bytes=SEGMENT_BYTES, keep_free_bytes=0)
    while len(list(path.glob("*.segment"))) < 4:
        end = journal.next_seq + ROWS
        journal.append(numbered_events(journal.next_seq, ROWS), {"end": end})
        journal.sync()
    old = {file: file.read_bytes() for file in path.glob("*.segment")}
    safe = journal.safe
    journal.append(numbered_events(safe, ROWS), {"end": safe + ROWS})
    ack = sorted(int(file.stem) for file in old)[2]
    journal.trim(ack)
    left = {file: file.read_bytes() for file in path.iterdir()}
    said = {"safe": safe, "trying": safe + ROWS, "ack": ack, "floor": ack, "term": journal.term}
    journal.close()
    for file, content in {**old, **left}.items():
        file.write_bytes(content)
    newest = max(path.glob("*.segment"))
    newest.write_bytes(newest.read_bytes()[:-30])
    (path / f"{safe:020d}.segment.unfinished").write_bytes(b"FLSG half a header")
    return said


def ends_of(place: Path, children: Children, fault: str, what: str = "cycle") -> set[int]:
    """Inject a fault at the first call, the second and so on until no call is left.

    Checks the files each time; returns how the children ended. They begin without files, and in a
    second round with a recovery.
    """
    ends = set()
    for mess in (False, True):
        for when in itertools.count(1):
            path = place / f"{when}-{mess}" / "web.n1.0.0a1b2c3d"
            path.parent.mkdir()
            said = leave_a_mess(path) if mess else {}
            told = path.with_suffix(".told")
            ended, struck = children.run(what, path, told, f"{fault}:when={when}")
            check(path, {**said, **read_told(told)})
            if not struck:
                assert ended == DONE
                break
            ends.add(ended)
    return ends


@pytest.mark.parametrize("call", CALLS)
def test_i1_kill_before_any_call_loses_nothing_acknowledged(
    place: Path, children: Children, call: str
) -> None:
    assert ends_of(place, children, f"{call}:signal=KILL") == {KILLED}


def test_spilled_events_survive_a_kill_before_any_write(place: Path, children: Children) -> None:
    assert ends_of(place, children, f"{WRITES}:signal=KILL", "cycle_of_spill") == {KILLED}


@pytest.mark.parametrize(
    "fault", [*(f"{call}:error=EIO" for call in CALLS), f"{WRITES}:error=EROFS"]
)
def test_error_of_any_call_is_final_or_harmless(
    place: Path, children: Children, fault: str
) -> None:
    """Of a sync it is always final; nothing is acknowledged that is not there."""
    ends = ends_of(place, children, fault)
    assert FAILED in ends
    assert ends <= ({FAILED} if "sync" in fault else {FAILED, DONE})


@pytest.mark.parametrize("call", [WRITES, "/^mkdir", "/^rename"])
def test_full_disk_at_any_call_is_overcome_by_the_next_try(
    place: Path, children: Children, call: str
) -> None:
    """It goes on where it was, without being reopened."""
    assert ends_of(place, children, f"{call}:error=ENOSPC") == {DONE}


@pytest.fixture(scope="module")
def power(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PowerCut]:
    try:
        power = PowerCut(tmp_path_factory.mktemp("power"))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a power cut needs root, loop devices and mkfs.ext4: {error}")
    yield power
    power.stop()


@pytest.mark.long
@pytest.mark.parametrize("mode", range(3) if FULL else [PowerCut.FLUSH_NOTHING])
@pytest.mark.parametrize("call", [WRITES, *SYNCS, *NAMES])
@pytest.mark.parametrize("mess", [False, True], ids=["new", "recovering"])
def test_power_cut_before_any_call_loses_nothing_acknowledged(
    power: PowerCut, children: Children, call: str, mode: int, mess: bool
) -> None:
    """Also when another process has recovered it and gone on in between."""
    place = Path(tempfile.mkdtemp(dir=power.place))
    for when in itertools.count(1, 1 if FULL else 3):
        path = place / str(when) / "web.n1.0.0a1b2c3d"
        path.parent.mkdir()
        told = place.parent.parent / f"{place.name}-{when}.told"
        said = leave_a_mess(path) if mess else {}
        subprocess.run(["sync", "--file-system", place], check=True)
        _, struck = children.run("cycle", path, told, f"{call}:signal=KILL:when={when}")
        said |= read_told(told)
        if when % 2 and not said.get("closed"):
            children.run("short", path, told)
            said |= read_told(told)
        power.strike(mode)
        check(path, said)
        shutil.rmtree(path.parent)
        if not struck:
            return
