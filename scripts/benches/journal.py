"""How fast a journal takes and gives events, how fast a large one is opened after a crash, and
whether its memory stays flat.

Each part runs in a process of its own, below /var/tmp, which is a disk also where /tmp is memory.
Megabytes are decimal and those of the events' bodies, as they were before compression, if nothing
else is said.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import linear_regression
from typing import Any

import numpy as np
import pyarrow as pa

from benches import disk
from benches.senders import LINE_BYTES, make_lines
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.frame import Payload
from flumeng.journal.log.group_commit import GroupCommit
from flumeng.journal.log.journal import SEGMENT_BYTES, Journal
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.server import JournalServer

ID = "bench.n1.0.0a1b2c3d"
LINES = 100_000
FRAME_ROWS = 20_000  # 4 MB, as much as the journal syncs at once when it is busy
SMALL_ROWS = 20  # a frame under light load: those of the last segment, which are all read
FRAMES_AT_ONCE = 500
BUILD_SECONDS = 60.0
LEAVE_FREE_BYTES = 4 << 30
LOOK_SECONDS = 0.25
LOAD_ROWS, LOAD_SECONDS = 1_000, 0.01  # of the memory's part: 100,000 events a second
WARM_UP_SECONDS = 60.0
FULL_MINUTES = 10.0


def run(
    events: int = 10_000_000, recovery_gb: float = 10.0, minutes: float = 0.5
) -> dict[str, Any]:
    """``recovery_gb`` is what the journal that is recovered holds on disk, less where the disk has
    no room or would take more than a minute. Memory is watched for ``minutes``; its growth is said
    per ten minutes only when it was watched for ten.
    """
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        place = Path(folder)
        plain = disk.fdatasync_mb_per_second(place, 1 << 29)
        (place / "plain").unlink()
        return {
            "disk_fdatasync_mb_per_second": round(plain, 1),
            **_measure_append(place / "events", events),
            **_measure_read(place / "events", events),
            **_measure_recovery(place / "large", recovery_gb),
            **_measure_memory(place / "steady", minutes),
        }


def _measure_append(place: Path, events: int) -> dict[str, Any]:
    with _part("append", place, events) as part:
        found = _answer(part)
    return {
        "append_mb_per_second": round(events * LINE_BYTES / 1e6 / found["seconds"], 1),
        "append_events_per_second": round(events / found["seconds"]),
        "append_disk_mb_per_second": round(found["disk_bytes"] / 1e6 / found["seconds"], 1),
        "append_cpu_seconds_per_gb": round(found["cpu_seconds"] / (events * LINE_BYTES / 1e9), 2),
    }


def _append(place: Path, events: int) -> None:
    """As fast as it goes, a sync after each frame."""
    lines = Lines()
    journal = Journal.create(place, ID)
    cpu_before, began = time.process_time(), time.monotonic()
    while journal.next_seq < events:
        journal.append(lines.batch(journal.next_seq, min(FRAME_ROWS, events - journal.next_seq)))
        journal.sync()
    seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu_before
    journal.close()
    _tell(seconds=seconds, cpu_seconds=cpu_seconds, disk_bytes=_disk_bytes(place))


def _measure_read(place: Path, events: int) -> dict[str, Any]:
    """All of it through Flight, from the page cache, every event compared with what went in."""
    lines = Lines()
    with _part("serve", place) as part, JournalClient(_answer(part)["address"]) as client:
        assert client.positions()[ID].safe == events
        cpu_before, began = time.process_time(), time.monotonic()
        seq = 0
        for batch in client.read(ID, 0, events):
            lines.check(batch, seq)
            seq += batch.num_rows
        seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu_before
        assert seq == events, f"{seq} of {events} events came back"
    return {
        "read_mb_per_second": round(events * LINE_BYTES / 1e6 / seconds, 1),
        "read_events_per_second": round(events / seconds),
        "read_cpu_seconds_per_gb": round(cpu_seconds / (events * LINE_BYTES / 1e9), 2),
    }


def _serve(place: Path) -> None:
    """Until its input ends."""
    journal = Journal.open(place / ID)
    server = JournalServer("127.0.0.1", journals=lambda: {ID: journal})
    _tell(address=server.address)
    sys.stdin.read()
    server.stop()
    journal.close()


def _measure_recovery(place: Path, gigabytes: float) -> dict[str, Any]:
    """After SIGKILL, with nothing of the journal in the page cache."""
    with _part("build", place, gigabytes) as part:
        built = _answer(part)
        part.wait()
    _forget_cached(place)
    held = _disk_bytes(place)
    with _part("recover", place) as part:
        found = _answer(part)
    assert found["safe"] >= built["safe"], "acknowledged events are gone"
    assert found["read_bytes"] < held / 10 or held < 1e9, "recovery reads the whole journal"
    shutil.rmtree(place)
    return {
        "recovery_gb": round(held / 1e9, 2),
        "recovery_seconds": round(found["seconds"], 3),
        "recovery_read_mb": round(found["read_bytes"] / 1e6, 1),
        "recovery_segments": built["segments"],
        "recovery_frames_checked": built["last_frames"],
    }


def _build(place: Path, gigabytes: float) -> None:
    """Bulk that does not compress, then a last segment full of small frames; ends with SIGKILL.

    The last segment is what recovery reads, so small frames are its worst case.
    """
    journal = Journal.create(place, ID)
    wanted = min(gigabytes * 1e9, shutil.disk_usage(place).free - LEAVE_FREE_BYTES) - SEGMENT_BYTES
    chance = np.random.default_rng(1)
    bulk = _events(pa.array([chance.bytes(1 << 20) for _ in range(4)], pa.binary()), 0)
    deadline = time.monotonic() + BUILD_SECONDS
    while (journal.bytes < wanted and time.monotonic() < deadline) or not _last_is_full(place):
        journal.append(bulk)
        journal.sync()
    lines, last_frames, bulk_segments = Lines(), 0, len(_segments(place))
    while len(_segments(place)) == bulk_segments or not _last_is_full(place):
        for _ in range(FRAMES_AT_ONCE):
            journal.append(lines.batch(journal.next_seq, SMALL_ROWS))
        journal.sync()
        last_frames += FRAMES_AT_ONCE
    _tell(safe=journal.safe, segments=len(_segments(place)), last_frames=last_frames)
    os.kill(os.getpid(), signal.SIGKILL)


def _recover(place: Path) -> None:
    before, began = _bytes_read(), time.monotonic()
    journal = Journal.open(place / ID)
    seconds, read_bytes = time.monotonic() - began, _bytes_read() - before
    lines = Lines()
    end = journal.safe
    for batch in journal.read(end - SMALL_ROWS, end):
        lines.check(batch, end - SMALL_ROWS)
    assert sum(batch.num_rows for batch in journal.read(0, 4)) == 4
    _tell(seconds=seconds, read_bytes=read_bytes, safe=end)


def _measure_memory(place: Path, minutes: float) -> dict[str, Any]:
    """Of a process that appends, serves and trims at a steady rate, while this one reads it all."""
    warm_up = min(WARM_UP_SECONDS, minutes * 60 / 2)
    lines = Lines()
    seconds: list[float] = []
    sizes: list[float] = []
    with _part("steady", place) as part, JournalClient(_answer(part)["address"]) as client:
        assert part.stdin
        began = time.monotonic()
        seq = 0
        while (now := time.monotonic() - began) < warm_up + minutes * 60:
            safe = client.positions()[ID].safe
            for batch in client.read(ID, seq, safe):
                lines.check(batch, seq)
                seq += batch.num_rows
            part.stdin.write(f"{seq}\n")
            part.stdin.flush()
            if now >= warm_up:
                seconds.append(now)
                sizes.append(_rss_mb(part.pid))
            time.sleep(LOOK_SECONDS)
        part.stdin.close()
        held = _answer(part)
    assert seq > 0 and held["floor"] > 0, "nothing was read or trimmed"
    slope = linear_regression(seconds, sizes).slope
    return {
        "rss_minutes": minutes,
        "rss_mb": round(sizes[-1], 1),
        "rss_growth_mb": round(slope * minutes * 60, 2),
        "rss_growth_mb_per_10_min": round(slope * 600, 2) if minutes >= FULL_MINUTES else None,
        "rss_events_per_second": round(seq / now),
    }


def _steady(place: Path) -> None:
    """Appends at one rate and serves; each line of its input is an ack. Ends with its input."""
    lines = Lines()
    journal = Journal.create(place, ID)
    commit: GroupCommit[pa.RecordBatch] = GroupCommit(
        journal, functools.partial(map, Payload.encode)
    )
    server = JournalServer("127.0.0.1", journals=lambda: {ID: journal})
    ended = threading.Event()

    def follow() -> None:
        for line in sys.stdin:
            commit.trim(int(line))
        ended.set()

    threading.Thread(target=follow, daemon=True).start()
    _tell(address=server.address)
    seq = 0
    while not ended.wait(LOAD_SECONDS):
        commit.submit(lines.batch(seq, LOAD_ROWS))
        seq += LOAD_ROWS
    commit.stop()
    server.stop()
    _tell(floor=journal.floor)
    journal.close()


class Lines:
    """Events whose body follows from their seq."""

    def __init__(self) -> None:
        lines = pa.array(make_lines(LINES), pa.binary())
        self._bodies = pa.concat_arrays([lines, lines])

    def batch(self, first: int, count: int) -> pa.RecordBatch:
        return _events(self._bodies.slice(first % LINES, count), first)

    def check(self, batch: pa.RecordBatch, first: int) -> None:
        """That these are the events from ``first`` on, with their seqs."""
        count = batch.num_rows
        assert batch.column("body").equals(self._bodies.slice(first % LINES, count)), first
        seqs = batch.column("seq").to_numpy()
        assert seqs[0] == first and np.all(np.diff(seqs) == 1), first


def _events(bodies: pa.Array, first: int) -> pa.RecordBatch:
    count = len(bodies)
    return pa.RecordBatch.from_arrays(
        [
            bodies,
            pa.array(np.arange(first, first + count)).cast(EVENT_SCHEMA.field("ts").type),
            pa.repeat("web-1", count),
            pa.nulls(count, EVENT_SCHEMA.field("attrs").type),
        ],
        schema=EVENT_SCHEMA,
    )


def _segments(place: Path) -> list[Path]:
    return sorted((place / ID).glob("*.segment"))


def _last_is_full(place: Path) -> bool:
    """Or nearly so."""
    return _segments(place)[-1].stat().st_size >= SEGMENT_BYTES - (8 << 20)


def _disk_bytes(place: Path) -> int:
    """As the file system counts them: blocks that are really there."""
    return sum(path.stat().st_blocks * 512 for path in _segments(place))


def _forget_cached(place: Path) -> None:
    for path in (place / ID).iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _bytes_read() -> int:
    """By this process, from files, whether cached or not."""
    return int(Path("/proc/self/io").read_text().partition("rchar:")[2].split()[0])


@contextlib.contextmanager
def _part(name: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """This file as another process; it ends when its input does, at the latest."""
    part = subprocess.Popen(
        [sys.executable, "-m", "benches.journal", name, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield part
        assert part.stdin
        part.stdin.close()
        part.wait(timeout=60)
    finally:
        part.kill()
        part.wait()


def _answer(part: subprocess.Popen[str]) -> dict[str, Any]:
    assert part.stdout
    line = part.stdout.readline()
    assert line, "a part of the bench has ended"
    found: dict[str, Any] = json.loads(line)
    return found


def _tell(**found: object) -> None:
    print(json.dumps(found), flush=True)


PARTS: dict[str, Callable[..., None]] = {
    "append": lambda place, events: _append(Path(place), int(events)),
    "serve": lambda place: _serve(Path(place)),
    "build": lambda place, gigabytes: _build(Path(place), float(gigabytes)),
    "recover": lambda place: _recover(Path(place)),
    "steady": lambda place: _steady(Path(place)),
}

if __name__ == "__main__":
    PARTS[sys.argv[1]](*sys.argv[2:])
