"""Rotation torture: programs write into files that are rotated in every style, the journal becomes
full again and again, and the worker is killed or stopped. Each line is in the journal exactly once,
under the identity of its file and its offset.

``FLUMENG_ROTATIONS=1000`` asks for the long form.

Cases that are not promised are avoided or counted apart. A file is deleted only once it has been
read. A file that is copied and truncated is so only once a part of it has been read. Its lines that
were written after the copying and before the truncation are nowhere on disk: they may be lost; and
such a copy may be read as a file of its own, where the globs match it. A generation that was
compressed before the worker saw it is lost, and each such loss is reported. The test prints how
many of all these there were.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.testkit.ingest_worker import WorkerProcess, flow_text

ROTATIONS = int(os.environ.get("FLUMENG_ROTATIONS", "120"))
ROTATIONS_A_KILL = 12
ROTATIONS_A_HOLD = 20
GENERATIONS_WHILE_HELD = 3
FILL_BYTES = 1 << 20
KEPT_FILES = 4
WRITE_SECONDS = 0.001
READ_SECONDS = 0.03
COPY_BYTES = 4096
TICK_SECONDS = 0.02  # more than a file system's clock needs for the next time


class Generation:
    """One file from its creation to its end, with the offsets of its lines."""

    def __init__(self, path: Path) -> None:
        status = path.stat()
        self.identity = f"{status.st_dev}:{status.st_ino}"
        self.identities = {self.identity}
        self.offsets: dict[str, int] = {}
        self.uncopied: set[str] = set()
        self.size = 0


class Log:
    """A program's log and its rotated generations. Used under ``lock``."""

    def __init__(self, folder: Path, style: str) -> None:
        self.lock = threading.Lock()
        self.chance = random.Random(style)
        self.style = style
        self.path = folder / f"{style}.log"
        self.rotated: list[tuple[Path, Generation]] = []
        self.ended: list[Generation] = []
        self.discarded: list[Generation] = []
        self.copied = False
        self.rotations = self.lines = 0
        self.reuse_inode = False
        if style == "switched":
            (folder / "release-0").mkdir()
            self.path.symlink_to(folder / "release-0" / "app")
        self.open()

    def open(self) -> None:
        self.file = self.path.open("ab", buffering=0)
        self.current = Generation(self.path)

    def write(self) -> None:
        """Write a few lines; one write may end within a line."""
        data = b""
        for _ in range(self.chance.randrange(1, 8)):
            text = f"{self.style} {self.lines} {'x' * self.chance.randrange(300)}"
            self.lines += 1
            self.current.offsets[text] = self.current.size + len(data)
            if self.copied:
                self.current.uncopied.add(text)
            data += text.encode() + b"\n"
        cut = self.chance.randrange(len(data))
        for part in (data[:cut], data[cut:]):
            self.file.write(part)
        self.current.size += len(data)

    def reopen(self, moved: Path) -> None:
        self.file.close()
        self.rotated.append((moved, self.current))
        self.open()

    def generations(self) -> Iterator[Generation]:
        yield from self.ended
        yield from (generation for _, generation in self.rotated)
        yield self.current

    def rotate(self) -> None:
        self.rotations += 1
        getattr(self, f"_{self.style}")()

    def _renamed(self) -> None:
        """The program goes on writing into the old file for a moment."""
        moved = self.path.with_name(f"{self.path.name}-{self.rotations:05}")
        self.path.rename(moved)
        self.write()
        self.reopen(moved)

    def _numbered(self) -> None:
        """log.1 becomes log.2, and so on."""
        newest = self.number_on()
        self.path.rename(newest)
        self.reopen(newest)

    def number_on(self) -> Path:
        newest = self.path.with_name(f"{self.path.name}.1")
        for index, (path, generation) in enumerate(self.rotated):
            further = newest.with_suffix(f".{len(self.rotated) - index + 1}")
            path.rename(further)
            self.rotated[index] = further, generation
        return newest

    def truncate(self, copy: Path) -> None:
        """Truncate the log while the program goes on writing and perhaps the worker reads."""
        with self.path.open("rb") as source, copy.open("wb", buffering=0) as target:
            while data := source.read(COPY_BYTES):
                target.write(data)
                if self.chance.random() < 0.2:
                    self.write()
                    time.sleep(READ_SECONDS)
        self.copied = True
        if self.chance.random() < 0.5:
            self.write()
            time.sleep(self.chance.choice((0, 0, READ_SECONDS)))
        self.copied = False
        self.current.identities.add(Generation(copy).identity)
        self.rotated.append((copy, self.current))
        os.truncate(self.path, 0)
        self.current = Generation(self.path)

    def compress(self, plain: Path) -> None:
        with (
            plain.open("rb") as file,
            gzip.open(f"{plain}.gz", "wb", compresslevel=1) as compressed,
        ):
            shutil.copyfileobj(file, compressed)
        plain.unlink()
        self.ended.append(self.rotated.pop()[1])

    def _compressed(self) -> None:
        plain = self.path.with_name(f"{self.path.name}.{self.rotations:05}")
        self.path.rename(plain)
        self.reopen(plain)
        self.compress(plain)

    def _deleted(self) -> None:
        """Delete the file. Some file systems reuse its inode at once; this simulates it, since ext4
        waits for some seconds."""
        self.file.close()
        if self.reuse_inode:
            os.truncate(self.path, 0)
        else:
            self.path.unlink()
        self.ended.append(self.current)
        self.open()

    def _unmatched(self) -> None:
        """Numbered generations outside the globs: sometimes two rotations at once."""
        for _ in range(self.chance.choice((1, 1, 2))):
            self.write()
            time.sleep(TICK_SECONDS)
            self._numbered()

    def _discarded(self) -> None:
        """As before; while the worker is down an unread generation is created and compressed."""
        self._numbered()
        if self.reuse_inode:
            time.sleep(TICK_SECONDS)
            self.write()
            self._numbered()
            newest, _ = self.rotated[-1]
            with gzip.open(f"{newest}.gz", "wb") as compressed:
                compressed.write(newest.read_bytes())
            self.discarded.append(self.rotated.pop()[1])
            newest.unlink()
            time.sleep(TICK_SECONDS)

    def _truncated(self) -> None:
        self.write()
        self.truncate(self.number_on())

    def _matched(self) -> None:
        """Truncated, and the globs match the copies too: an unknown copy is read as a file of its
        own."""
        self.write()
        self.truncate(self.path.with_name(f"{self.path.name}-{self.rotations:05}"))

    def _packed(self) -> None:
        """Truncated, and the copy is compressed at once."""
        plain = self.path.with_name(f"{self.path.name}.{self.rotations:05}")
        self.truncate(plain)
        self.compress(plain)

    def _switched(self) -> None:
        """The log is a symlink that is switched to another folder."""
        old = self.path.resolve()
        folder = self.path.with_name(f"release-{self.rotations}")
        folder.mkdir()
        link = self.path.with_name("link")
        link.symlink_to(folder / "app")
        link.replace(self.path)
        self.write()
        self.reopen(old)


STYLES = [name[1:] for name in vars(Log) if name.startswith("_") and not name.startswith("__")]


class Reader:
    """The lines in the journals so far, with their path and offset."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker = worker
        self.read: dict[str, int] = {}
        self.taken: dict[str, list[tuple[str, int]]] = {}

    def look(self) -> None:
        """Ack the lines that were read, so that there is room."""
        for journal, position in self.worker.journals("f").items():
            begin = self.read.get(journal, 0)
            for batch in self.worker.client.read(journal, begin, position.safe):
                bodies, attrs = (batch.column(name).to_pylist() for name in ("body", "attrs"))
                for body, pairs in zip(bodies, map(dict, attrs), strict=True):
                    if pairs["source"] == "http":
                        continue
                    place = pairs["inode"], int(pairs["offset"])
                    self.taken.setdefault(body.decode(), []).append(place)
            self.read[journal] = position.safe
            self.worker.send(type="acks", acks={journal: position.safe})

    def knows(self, generation: Generation) -> bool:
        self.look()
        return any(text in self.taken for text in generation.offsets) or not generation.offsets

    def has_read(self, generation: Generation) -> bool:
        return all(text in self.taken for text in generation.offsets.keys() - generation.uncopied)

    def has_read_now(self, generation: Generation) -> bool:
        self.look()
        return self.has_read(generation)


class Torture:
    def __init__(self, folder: Path, worker: WorkerProcess) -> None:
        self.chance = random.Random(1)
        self.worker = worker
        self.reader = Reader(worker)
        self.logs = [Log(folder, style) for style in STYLES]
        alone = ("truncated", "compressed", "switched", "unmatched", "discarded")
        wanted = [f"{log.path}*" for log in self.logs if log.style not in alone]
        wanted += [str(log.path) for log in self.logs if log.style in alone]
        tail = f"tail: {{paths: {json.dumps(wanted)}, poll_seconds: 0.01}}"
        self.flow = flow_text("f", tail, 'http: {listen: "127.0.0.1:0"}')
        self.flow += "journal: {max_bytes: 16 MiB}\n"
        self.seen = {
            "kills": 0,
            "stops": 0,
            "holds": 0,
            "discarded": 0,
            "inodes used again": 0,
            "compressed before it was read": 0,
        }
        self.ended = threading.Event()
        self.writer = threading.Thread(target=self._write, daemon=True)

    def run(self, rotations: int) -> None:
        self.worker.run(self.flow)
        self.writer.start()
        for number in range(rotations):
            self._rotate(self.logs[number % len(self.logs)])
            if self.chance.random() < 1 / ROTATIONS_A_HOLD:
                self._hold()
        self.ended.set()
        self.writer.join()

    def _write(self) -> None:
        while not self.ended.is_set():
            for log in self.logs:
                if log.lock.acquire(blocking=False):
                    log.write()
                    log.lock.release()
                time.sleep(WRITE_SECONDS)

    def _rotate(self, log: Log) -> None:
        killed = self.chance.random() < 1 / ROTATIONS_A_KILL
        down = killed and self.chance.random() < 0.5
        ready = self.reader.has_read_now if log.style == "deleted" else self.reader.knows
        with log.lock:
            self._wait(ready, log.current)
            if down:
                self.worker.kill()
            if log.style != "deleted":
                for _ in range(10):
                    log.write()
            before = log.current
            log.reuse_inode = down
            log.rotate()
            log.write()
        again = log.style == "deleted" and log.current.identity == before.identity
        self.seen["inodes used again"] += again
        early = log.style == "compressed" and down and not self.reader.has_read(before)
        self.seen["compressed before it was read"] += early
        if killed and not down:
            time.sleep(self.chance.uniform(0, READ_SECONDS))
            self.worker.kill()
        if killed:
            self.seen["kills"] += 1
            self.worker.start()
            self.worker.run(self.flow)
        while len(log.rotated) > KEPT_FILES:
            path, generation = log.rotated[0]
            self._wait(self.reader.has_read_now, generation)
            with log.lock:
                path.unlink()
                log.ended.append(log.rotated.pop(0)[1])

    def _hold(self) -> None:
        """Fill the journal; logs are rotated meanwhile; then perhaps the worker ends."""
        self.seen["holds"] += 1
        while self._post() == 200:
            pass
        for log in (log for log in self.logs if log.style in ("numbered", "unmatched")):
            for _ in range(GENERATIONS_WHILE_HELD):
                with log.lock:
                    log.write()
                    log.rotations += 1
                    log._numbered()
                    log.write()
                time.sleep(TICK_SECONDS)
        end = self.chance.choice(("kills", "stops", ""))
        if end:
            self.seen[end] += 1
            self.worker.kill() if end == "kills" else self.worker.stop()
            self.worker.start()
            self.worker.run(self.flow)

    def _post(self) -> int:
        address = next(filter(None, self.worker.task("f")["listen"]))
        body = base64.b64encode(self.chance.randbytes(FILL_BYTES // 4 * 3))
        lines = b"\n".join(body[at : at + 1024] for at in range(0, len(body), 1024))
        request = urllib.request.Request(f"http://{address}/", lines)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status: int = answer.status
                return status
        except urllib.error.HTTPError as error:
            return error.code

    def _wait(self, ask: Callable[[Generation], bool], generation: Generation) -> None:
        try:
            self.worker.eventually(lambda: ask(generation))
        except AssertionError as error:
            unread = sorted(generation.offsets.keys() - self.reader.taken.keys(), key=len)
            lines = f"{len(unread)} of {len(generation.offsets)} lines"
            raise AssertionError(
                f"{generation.identities}: {lines} are not read: {unread[:3]}"
            ) from error


@pytest.mark.long
def test_each_line_is_taken_once_by_file_and_offset(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = WorkerProcess(tmp_path / "node")
    folder = tmp_path / "logs"
    folder.mkdir()
    try:
        torture = Torture(folder, worker)
        torture.run(ROTATIONS)
        for log in torture.logs:
            for generation in log.generations():
                torture._wait(torture.reader.has_read_now, generation)
        taken = torture.reader.taken
        uncopied = lost = twice = 0
        for log in torture.logs:
            for generation in log.generations():
                uncopied += len(generation.uncopied)
                for text, offset in generation.offsets.items():
                    places = taken.pop(text, [])
                    if text in generation.uncopied and not places:
                        lost += 1
                    elif generation.uncopied and log.style in ("matched", "packed"):
                        twice += len(places) - 1
                        assert {taken_at for _, taken_at in places} == {offset}
                    else:
                        assert len(places) == 1, f"{text:.30}: {places}"
                        ((identity, taken_at),) = places
                        assert identity in generation.identities
                        assert taken_at == offset
        assert taken == {}
        told = capfd.readouterr().err
        discarded = [gone for log in torture.logs for gone in log.discarded]
        torture.seen["discarded"] = len(discarded)
        counted = told.count("was compressed before it was found")
        lines = sum(log.lines for log in torture.logs)
        with capfd.disabled():
            print(
                f"{lines} lines; {torture.seen}; {uncopied} in no copy, of which {lost} are lost "
                f"and {twice} more were read twice; {counted} generations were told as lost"
            )
        assert counted >= len(discarded)
        assert torture.seen["kills"] >= ROTATIONS // ROTATIONS_A_KILL // 2
        assert ROTATIONS < 500 or all(torture.seen.values())
    finally:
        if worker.process.poll() is None:
            worker.kill()
