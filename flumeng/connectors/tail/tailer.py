"""Decides which files a tail source reads, through rotation and restarts. Blocking.

Rules
1. A file is identified by device and inode, under any name. A missing file continues in a file with
   its path and content: on another device that is a remounted volume.
2. A file that the globs match is followed. A file that matched once, or whose position is in the
   journal, is read to its end under its name in the folder, and when it grows later.
3. A new file is noted durably before it is read, so that it is recognised under another name too. A
   file rotated before its discovery is recognised by number and age.
4. A renamed or deleted file has ended after some quiet seconds; then its last line needs no
   newline. By option this holds for any file that was quiet for long.
5. A file that is shorter than its position or begins differently was truncated or rewritten. If it
   was open it is read from its beginning; else it is another file with a reused inode.
6. Unread content that a file no longer has is read from a copy in its folders. From then on the
   copy is treated as the file. Compressed files are read only as copies.
7. A file that only repeats the beginning of another is a copy of it, and not read.
8. Missing content that may not have been read whole is reported and counted. A copy of truncated
   content is searched twice, some seconds apart, since copies are renamed and compressed.
9. A file without new content for a minute is closed until it changes; earlier in a shortage of
   descriptors. Bytes written to a closed file that is deleted before the next poll are lost.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from flumeng.connectors.api.received_block import LineRules, Origin, ReceivedBlock
from flumeng.connectors.tail.compressed_file import MAGIC_BYTES, CompressedFile, is_compressed
from flumeng.connectors.tail.descriptors import Descriptors, of_followed_files
from flumeng.connectors.tail.file_position import FileKey, FilePosition, state_key
from flumeng.connectors.tail.options import Tail
from flumeng.connectors.tail.rotated_copies import may_be_made_of, rest_of
from flumeng.connectors.tail.tailed_file import Following, ReplacedError, TailedFile
from flumeng.connectors.tail.tracked_files import TrackedFiles
from flumeng.journal.log.disk import OUT_OF_DESCRIPTORS

log = logging.getLogger(__name__)

QUIET_SECONDS = 5.0
POLL_BYTES = 4 << 20
SCAN_SHARE = 0.05  # of the time, at most, goes into the search for files
IDLE_SECONDS = 60.0
MEASURE_SECONDS = 5.0
CHECK_SHARE = 0.05  # of the time, at most, goes into checks of files without news
CHECK_SECONDS = 0.002  # but at least this much at each poll
FRESH_SECONDS = 0.25
ACTIVE_SECONDS = 10.0
OTHERS_FIRST = 10  # every so many polls


class Tailer:
    """Reads the files of a source. ``state`` is the journaled and noted source state; ``note``
    makes changes durable at once. Calls must not overlap.

    ``unread_bytes``: bytes beyond the positions at the last poll. ``starved``: the last ``poll``
    lacked descriptors. ``cut`` counts files truncated without a copy, so that lines may be lost.
    """

    def __init__(
        self,
        options: Tail,
        hostname: str,
        state: Mapping[str, object],
        clock_us: Callable[[], int],
        timer: Callable[[], float] = time.perf_counter,
        *,
        note: Callable[[Mapping[str, object]], None] = lambda _: None,
        allows: Callable[[str], bool] = lambda _: True,
        descriptors: Descriptors | None = None,
    ) -> None:
        self.cut = 0
        rules = LineRules(options.max_line_bytes, b"\r", keep_empty=True)
        files = descriptors or of_followed_files()
        self._following = Following(hostname, rules, options.encoding, clock_us, allows, files)
        self._last_line_seconds = options.last_line_seconds or float("inf")
        self._poll_seconds = options.poll_seconds
        self._timer = timer
        self._next_scan = self._next_measure = self._next_sum = float("-inf")
        self.starved = False
        self.unread_bytes = 0
        self._files: dict[FileKey, TailedFile] = {}
        self._turns = Turns(self._files, timer)
        self.tracked = TrackedFiles(
            options, state, self._files, self._following, note=note, on_new=self._turns.add
        )
        self._copies = self.tracked.copies
        self._unreadable: dict[FileKey, tuple[str, str]] = {}

    @property
    def hole_bytes(self) -> int:
        return self._following.hole_bytes

    @property
    def unsearched(self) -> dict[str, str]:
        """Existing folders that could not be searched, with the reasons."""
        return {
            folder: error.strerror or str(error)
            for folder, error in self.tracked.unsearched.items()
            if not isinstance(error, FileNotFoundError)
        }

    @property
    def unreadable(self) -> dict[str, str]:
        """Reasons of unreadable files, by path."""
        return dict(self._unreadable.values())

    def poll(self, now: float) -> list[ReceivedBlock]:
        """Read new lines of files in rotation, about 4 MiB at most. ``now`` must only grow."""
        self.starved = False
        self._scan(now)
        blocks: list[ReceivedBlock] = []
        taken = 0
        for key in self._turns.due(now, lambda: self.starved):
            if taken >= POLL_BYTES:
                self._turns.first_next_time(key)
                break
            file = self._files.get(key)
            if file is None:
                continue
            block = self._step(file, now)
            if block is not None:
                blocks.append(block)
                taken += len(block.data)
                self._turns.had_news(key, now)
        self._sum_up(now)
        changes = map(self._state_chunk, self.tracked.take_changes())
        return [*changes, *blocks]

    def watch(self, now: float) -> None:
        """Find and note files, and measure unread bytes; called while paused."""
        self.starved = False
        self._scan(now)
        if now < self._next_measure:
            return
        began = self._timer()
        self.unread_bytes = self.tracked.measure()
        self.tracked.note_changes()
        self._next_measure = now + max(MEASURE_SECONDS, (self._timer() - began) / SCAN_SHARE)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _sum_up(self, now: float) -> None:
        if now < self._next_sum:
            return
        began = self._timer()
        self.unread_bytes = sum([file.unread for file in self._files.values()])
        self._next_sum = now + (self._timer() - began) / SCAN_SHARE

    def _scan(self, now: float) -> None:
        if now < self._next_scan:
            return
        began = self._timer()
        try:
            self.tracked.scan(now)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS:
                raise
            self._starve()
        else:
            remaining = self._files.keys() & self._unreadable.keys()
            self._unreadable = {key: self._unreadable[key] for key in remaining}
            self._next_scan = now + max(self._poll_seconds, (self._timer() - began) / SCAN_SHARE)
        self.tracked.note_changes()

    def _step(self, file: TailedFile, now: float) -> ReceivedBlock | None:
        try:
            block = self._take(file, now)
        except FileNotFoundError:
            return None  # renamed or deleted since the scan; the next scan finds out
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                self._starve()
            else:
                self._not_readable(self._files[file.key], error)
            return None
        if at := self._unreadable.pop(file.key, None):
            log.info("file %s is readable again", at[0])
        if block is None and self._files.get(file.key) is file and self._may_rest(file, now):
            file.rest()
        return block

    def _starve(self) -> None:
        self.starved = True
        self._following.descriptors.lack()

    def _may_rest(self, file: TailedFile, now: float) -> bool:
        """Return whether to close a file without new content."""
        quiet = now - file.quiet_since >= IDLE_SECONDS or self._following.descriptors.is_short
        return (
            quiet
            and file.is_open
            and not isinstance(file, CompressedFile)
            and file.followed
            and file.name == file.cursor.path
            and file.key not in self.tracked.to_skip
        )

    def _take(self, file: TailedFile, now: float) -> ReceivedBlock | None:
        if (file.search_at or now) > now:
            return None
        if not file.is_open:
            if file.name is None:
                return self._finish(file, now)
            if not (file.followed or file.cursor.offset or may_be_made_of(file)):
                return self._forget(file)
            started = file.rests or file.cursor.offset > 0
            due = (
                (file.followed and not started)
                or file.has_changed(file.name)
                or (file.has_last_line and self._waited_long(file, now))
            )
            if not due or not file.open(file.name):
                return None
        if file.cursor.offset == 0 and is_compressed(file.beginning(MAGIC_BYTES)):
            self.tracked.skip_packed(file.key, file.cursor.path)
            return self._forget(file)
        if file.key in self.tracked.to_skip:
            self.tracked.to_skip.discard(file.key)
            if file.size:
                return file.start_at_end()
        unread = file.cursor.offset == 0 and not isinstance(file, CompressedFile)
        if unread and self._copies.is_copy(file):
            if file.copy_of:
                self.tracked.unnote(file.key)
            gone = file.name is None and now - file.quiet_since >= QUIET_SECONDS
            return self._forget(file) if gone else None
        try:
            return self._read(file, now)
        except ReplacedError:
            if file.name is None and not file.trusted:
                return self._finish(file, now)
            return self._start_over(file)

    def _read(self, file: TailedFile, now: float) -> ReceivedBlock | None:
        more = file.has_more(now)
        file.trusted |= file.followed
        block = file.read() if more else None
        if block is None and file.has_last_line and self._waited_long(file, now):
            block = file.read(ended=True)
        renamed = file.name != file.cursor.path
        if block is None and renamed and now - file.quiet_since >= QUIET_SECONDS:
            block = file.read(ended=True)
            if block is None and not file.followed:
                if file.name is None:
                    copy = self._copies.find(file)
                    return self._hand_over(file, *copy) if copy else self._forget(file)
                file.close()
        return block

    def _waited_long(self, file: TailedFile, now: float) -> bool:
        """Return whether the file was quiet long enough to take its last line without newline."""
        return now - file.quiet_since >= self._last_line_seconds

    def _start_over(self, file: TailedFile) -> ReceivedBlock:
        """Read a truncated or rewritten file from its beginning, or release a replaced one."""
        before = file.cursor
        is_copy = before.identity and file.name != before.path
        was_there = file.followed and file.name == before.path
        suspect = file.trusted or (was_there and self.tracked.is_newest(before))
        if not file.trusted or is_copy:
            return self._state_chunk(self._switch_file(file, suspect=suspect))
        log.info("file %s was truncated or rewritten: reading from its beginning", before.path)
        start = before.at_start(modified_ns=before.modified_ns)
        file.continue_from(start)
        kept = self.tracked.keep(file.key, before, suspect=True)
        return self._state_chunk({**kept, state_key(file.key): start.to_state()})

    def _switch_file(self, file: TailedFile, *, suspect: bool) -> dict[str, object]:
        """Release a file whose inode is another file's. Read the other file if it is followed, or
        named like a generation of the log."""
        before, key = file.cursor, file.key
        position = FilePosition.new(file.name) if file.followed and file.name is not None else None
        if not file.followed and may_be_made_of(file) and not before.identity:
            position = before.at_start()
        state = self.tracked.leave(file, suspect=suspect)
        if position is not None:
            log.info("file %s has other content: reading from its beginning", file.name)
            new = self.tracked.add(key, position)
            new.name, new.followed = file.name, file.followed
            state[state_key(key)] = new.cursor.to_state()
        return state

    def _finish(self, file: TailedFile, now: float) -> ReceivedBlock | None:
        """Continue a missing file in its copy; without one search compressed files."""
        copy = self._copies.find(file)
        if copy is not None:
            return self._hand_over(file, *copy)
        if isinstance(file, CompressedFile):
            return self._give_up(file, now)
        file.close()
        compressed = CompressedFile(file.key, file.cursor, self._following)
        compressed.unread, compressed.copy_of = file.unread, file.copy_of
        return self._take(self.tracked.enter(compressed), now)

    def _hand_over(self, file: TailedFile, copy: TailedFile, rest: FilePosition) -> ReceivedBlock:
        """Replace the file by its copy; a copy that was itself read keeps its position. Unread
        former content under the copy's inode is tracked."""
        log.info("file %s was rotated: reading on in its copy %s", file.cursor.path, copy.name)
        before = copy.cursor
        self.tracked.enter(copy)
        state: dict[str, object] = {}
        if not before.offset or rest_of(copy, copy) is None:
            copy.continue_from(rest)
            self._copies.changed()
            if 0 < before.offset < before.size:
                state = self.tracked.keep(copy.key, before, suspect=True)
        forgotten = self._forget(file)
        state |= {**(forgotten.state or {}), state_key(copy.key): copy.cursor.to_state()}
        return replace(forgotten, state=state)

    def _give_up(self, file: CompressedFile, now: float) -> ReceivedBlock | None:
        cursor = file.cursor
        if cursor.suspect and file.search_at is None:
            file.search_at = now + QUIET_SECONDS
            file.close()
            return None
        if cursor.suspect:
            self.cut += 1
            log.warning(
                "file %s was truncated or replaced, with no copy: lines after byte %d may be lost",
                cursor.path,
                cursor.offset,
            )
        elif (cursor.offset < cursor.size or file.unread) and not file.copy_of:
            self.tracked.miss(f"file {cursor.path} is gone, read only up to byte {cursor.offset}")
        return self._forget(file)

    def _forget(self, file: TailedFile) -> ReceivedBlock:
        self.tracked.forget(file)
        self._unreadable.pop(file.key, None)
        return self._state_chunk({state_key(file.key): None})

    def _state_chunk(self, state: Mapping[str, object]) -> ReceivedBlock:
        return ReceivedBlock(
            b"",
            Origin(self._following.hostname, (), self._following.rules),
            self._following.clock_us(),
            state=state,
        )

    def _not_readable(self, file: TailedFile, error: OSError) -> None:
        path = getattr(file, "path", "") or file.name or file.cursor.path
        reason = error.strerror or str(error)
        file.close()
        self.tracked.to_skip.discard(file.key)
        if file.key not in self._unreadable:
            log.warning("cannot read %s, retrying: %s", path, reason)
        self._unreadable[file.key] = path, reason


class Turns:
    """The order in which many ``files``, which may change, are checked. Files with recent new lines
    come first, least recently read ones ahead; then others in rotation, within a share of the time;
    then new files. Some polls reverse the order, as a backlog may use up a poll."""

    def __init__(self, files: Collection[FileKey], timer: Callable[[], float]) -> None:
        self._files = files
        self._timer = timer
        self._round: deque[FileKey] = deque()
        self._fresh: deque[FileKey] = deque()
        self._active: dict[FileKey, float] = {}
        self._checked_at = 0.0
        self._polls = 0

    def add(self, key: FileKey) -> None:
        self._fresh.append(key)

    def had_news(self, key: FileKey, now: float) -> None:
        self._active.pop(key, None)
        self._active[key] = now + ACTIVE_SECONDS

    def first_next_time(self, key: FileKey) -> None:
        self._round.appendleft(key)

    def due(self, now: float, starved: Callable[[], bool]) -> Iterator[FileKey]:
        """Return the files to check now; new ones wait during a shortage of descriptors."""
        self._polls += 1
        parts = [self._with_news(now), self._in_turn(now), self._new(starved)]
        if self._polls % OTHERS_FIRST == 0:
            parts.reverse()
        return chain.from_iterable(parts)

    def _with_news(self, now: float) -> Iterator[FileKey]:
        for key, until in list(self._active.items()):
            if until < now or key not in self._files:
                del self._active[key]
            else:
                yield key

    def _in_turn(self, now: float) -> Iterator[FileKey]:
        end = self._timer() + max(CHECK_SECONDS, CHECK_SHARE * (now - self._checked_at))
        self._checked_at = now
        if not self._round:
            self._round.extend(self._files)
        for number in range(len(self._round)):
            if (number % 64 == 63 and self._timer() > end) or not self._round:
                break
            key = self._round.popleft()
            if key not in self._active:
                yield key

    def _new(self, starved: Callable[[], bool]) -> Iterator[FileKey]:
        end = self._timer() + FRESH_SECONDS
        while self._fresh and not starved() and self._timer() <= end:
            if (key := self._fresh.popleft()) not in self._active:
                yield key
