"""Decides which files a tail source reads, through rotation and restarts. Blocking.

Rules
1. A file is a device and inode, under any name. A missing file continues in a file with its path
   and content: on another device that is a remounted volume.
2. A file that the globs match is followed. A file that matched once, or whose position is in the
   journal, is read to its end under its name in the folder, and when it grows later.
3. A new file is noted durably before it is read, so that it is recognised under another name too. A
   file rotated before its discovery is recognised by number and age.
4. A renamed or deleted file has ended after some quiet seconds; then its last line needs no
   newline, nor, by option, does that of any file that was quiet for long.
5. A file that is shorter than its position or begins differently was truncated or rewritten. If it
   was open it is read from its beginning; else it is another file with a reused inode.
6. The rest of missing content is read from a copy beside it. From then on the copy is the file.
   Compressed files are read as copies only.
7. A file that only repeats the beginning of another is a copy of it, and not read.
8. Missing content that may not have been read whole is reported and counted. A copy of truncated
   content is searched twice, some seconds apart, since copies are renamed and compressed.
9. A file without new content for a minute is closed until it changes; earlier in a shortage of
   descriptors. Bytes written to a closed file that is deleted before the next look are lost.
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
from flumeng.connectors.tail.copies import may_be_made_of, rest_of
from flumeng.connectors.tail.descriptors import of_followed_files
from flumeng.connectors.tail.file_position import FileKey, FilePosition, state_key
from flumeng.connectors.tail.known_files import KnownFiles
from flumeng.connectors.tail.options import Tail
from flumeng.connectors.tail.tailed_file import Following, ReplacedError, TailedFile
from flumeng.journal.log.disk import OUT_OF_DESCRIPTORS

log = logging.getLogger(__name__)

QUIET_SECONDS = 5.0
POLL_BYTES = 4 << 20
SCAN_SHARE = 0.05  # of the time, at most, goes into looking for files
IDLE_SECONDS = 60.0
MEASURE_SECONDS = 5.0
LOOK_SHARE = 0.05  # of the time, at most, goes into looking at files without recent news
LOOK_SECONDS = 0.002  # but at least this much at each look
FRESH_SECONDS = 0.25
ACTIVE_SECONDS = 10.0
OTHERS_FIRST = 10  # every so many looks


class Tailer:
    """``state`` is the journaled and noted source state; ``note`` makes changes durable at once.
    Calls must not overlap.

    ``unread_bytes``: beyond the positions at the last look. ``starved``: the last ``poll`` lacked
    descriptors. ``cut`` counts files truncated without a copy, so that lines may be lost.
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
    ) -> None:
        self.cut = 0
        rules = LineRules(options.max_line_bytes, b"\r", keep_empty=True)
        self._following = Following(hostname, rules, options.encoding, clock_us, allows)
        self._last_line_seconds = options.last_line_seconds or float("inf")
        self._poll_seconds = options.poll_seconds
        self._timer = timer
        self._next_scan = self._next_measure = self._next_sum = float("-inf")
        self._descriptors = of_followed_files()
        self.starved = False
        self.unread_bytes = 0
        self._files: dict[FileKey, TailedFile] = {}
        self._turns = Turns(self._files, timer)
        self.known = KnownFiles(
            options, state, self._files, self._following, note=note, found=self._turns.found
        )
        self._copies = self.known.copies
        self._unreadable: dict[FileKey, tuple[str, str]] = {}

    @property
    def hole_bytes(self) -> int:
        return self._following.hole_bytes

    @property
    def unsearched(self) -> dict[str, str]:
        """Existing folders that could not be searched, with the reasons."""
        return {
            folder: error.strerror or str(error)
            for folder, error in self.known.unsearched.items()
            if not isinstance(error, FileNotFoundError)
        }

    @property
    def unreadable(self) -> dict[str, str]:
        """Path -> reason."""
        return dict(self._unreadable.values())

    def poll(self, now: float) -> list[ReceivedBlock]:
        """Read new lines of files in turn, about 4 MiB at most. ``now`` only grows."""
        self.starved = False
        self._look_around(now)
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
        changes = map(self._state_chunk, self.known.take_changes())
        return [*changes, *blocks]

    def watch(self, now: float) -> None:
        """While paused: find and note files, and measure unread bytes."""
        self.starved = False
        self._look_around(now)
        if now < self._next_measure:
            return
        began = self._timer()
        self.unread_bytes = self.known.measure()
        self.known.note_changes()
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

    def _look_around(self, now: float) -> None:
        if now < self._next_scan:
            return
        began = self._timer()
        try:
            self.known.scan(now)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS:
                raise
            self._starve()
        else:
            known = self._files.keys() & self._unreadable.keys()
            self._unreadable = {key: self._unreadable[key] for key in known}
            self._next_scan = now + max(self._poll_seconds, (self._timer() - began) / SCAN_SHARE)
        self.known.note_changes()

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
        self._unreadable.pop(file.key, None)
        if block is None and self._files.get(file.key) is file and self._may_rest(file, now):
            file.rest()
        return block

    def _starve(self) -> None:
        self.starved = True
        self._descriptors.lack()

    def _may_rest(self, file: TailedFile, now: float) -> bool:
        """Whether to close a file without news."""
        quiet = now - file.quiet_since >= IDLE_SECONDS or self._descriptors.is_short
        return (
            quiet
            and file.is_open
            and not isinstance(file, CompressedFile)
            and file.followed
            and file.name == file.cursor.path
            and file.key not in self.known.to_skip
        )

    def _take(self, file: TailedFile, now: float) -> ReceivedBlock | None:
        if (file.look_at or now) > now:
            return None
        if not file.is_open:
            if file.name is None:
                return self._finish(file, now)
            if not (file.followed or file.cursor.offset or may_be_made_of(file)):
                return self._forget(file)
            known = file.rests or file.cursor.offset > 0
            wanted = (
                (file.followed and not known)
                or file.has_changed(file.name)
                or (file.has_last_line and self._waited_long(file, now))
            )
            if not wanted or not file.open(file.name):
                return None
        if file.cursor.offset == 0 and is_compressed(file.beginning(MAGIC_BYTES)):
            self.known.skip_packed(file.key, file.cursor.path)
            return self._forget(file)
        if file.key in self.known.to_skip:
            self.known.to_skip.discard(file.key)
            if file.size:
                return file.start_at_end()
        unread = file.cursor.offset == 0 and not isinstance(file, CompressedFile)
        if unread and self._copies.is_copy(file):
            if file.copy_of:
                self.known.unnote(file.key)
            gone = file.name is None and now - file.quiet_since >= QUIET_SECONDS
            return self._forget(file) if gone else None
        try:
            return self._read(file, now)
        except ReplacedError:
            if file.name is None and not file.trusted:
                return self._finish(file, now)
            return self._start_over(file)

    def _read(self, file: TailedFile, now: float) -> ReceivedBlock | None:
        more = file.look(now)
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
        """Whether its last line is taken without a newline."""
        return now - file.quiet_since >= self._last_line_seconds

    def _start_over(self, file: TailedFile) -> ReceivedBlock:
        """The file was truncated, rewritten, or replaced."""
        if file.followed or file.trusted:
            log.info("%s was cut or rewritten; reading it from its beginning", file.name)
        before = file.cursor
        is_copy = before.identity and file.name != before.path
        was_there = file.followed and file.name == before.path
        suspect = file.trusted or (was_there and self.known.is_newest(before))
        if not file.trusted or is_copy:
            return self._state_chunk(self._begin_anew(file, suspect=suspect))
        anew = before.anew(modified_ns=before.modified_ns)
        file.continue_from(anew)
        kept = self.known.keep(file.key, before, suspect=True)
        return self._state_chunk({**kept, state_key(file.key): anew.to_state()})

    def _begin_anew(self, file: TailedFile, *, suspect: bool) -> dict[str, object]:
        """Another file has its inode: read it if followed, or named like a generation of the
        log."""
        before, key = file.cursor, file.key
        found = FilePosition.new(file.name) if file.followed and file.name is not None else None
        if not file.followed and may_be_made_of(file) and not before.identity:
            found = before.anew()
        state = self.known.leave(file, suspect=suspect)
        if found is not None:
            anew = self.known.add(key, found)
            anew.name, anew.followed = file.name, file.followed
            state[state_key(key)] = anew.cursor.to_state()
        return state

    def _finish(self, file: TailedFile, now: float) -> ReceivedBlock | None:
        """The file is missing: continue in a copy, if there is one."""
        copy = self._copies.find(file)
        if copy is not None:
            return self._hand_over(file, *copy)
        if isinstance(file, CompressedFile):
            return self._give_up(file, now)
        file.close()
        compressed = CompressedFile(file.key, file.cursor, self._following)
        compressed.unread, compressed.copy_of = file.unread, file.copy_of
        return self._take(self.known.enter(compressed), now)

    def _hand_over(self, file: TailedFile, copy: TailedFile, rest: FilePosition) -> ReceivedBlock:
        """Replace the file by its copy, unless the copy is followed itself. Unread former content
        under the copy's inode is tracked."""
        log.info("%s goes on in its copy %s", file.cursor.path, copy.name)
        before = copy.cursor
        self.known.enter(copy)
        state: dict[str, object] = {}
        if not before.offset or rest_of(copy, copy) is None:
            copy.continue_from(rest)
            self._copies.changed()
            if 0 < before.offset < before.size:
                state = self.known.keep(copy.key, before, suspect=True)
        forgotten = self._forget(file)
        state |= {**(forgotten.state or {}), state_key(copy.key): copy.cursor.to_state()}
        return replace(forgotten, state=state)

    def _give_up(self, file: CompressedFile, now: float) -> ReceivedBlock | None:
        cursor = file.cursor
        if cursor.suspect and file.look_at is None:
            file.look_at = now + QUIET_SECONDS
            file.close()
            return None
        if cursor.suspect:
            self.cut += 1
            log.warning(
                "%s was cut and no copy was found: what came after its first %d bytes may be lost",
                cursor.path,
                cursor.offset,
            )
        elif (cursor.offset < cursor.size or file.unread) and not file.copy_of:
            self.known.miss(
                f"{cursor.path} is gone, and was read up to its byte {cursor.offset} only"
            )
        return self._forget(file)

    def _forget(self, file: TailedFile) -> ReceivedBlock:
        self.known.forget(file)
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
        file.close()
        self.known.to_skip.discard(file.key)
        path, reason = file.cursor.path, error.strerror or str(error)
        if file.key not in self._unreadable:
            log.warning("cannot read %s: %s", path, reason)
        self._unreadable[file.key] = path, reason


class Turns:
    """The order of looks at many ``files``, which may change: files with recent news, least
    recently read first; then others in turn, within a share of the time; then new ones. Reversed
    now and then, as a backlog may use up a look."""

    def __init__(self, files: Collection[FileKey], timer: Callable[[], float]) -> None:
        self._files = files
        self._timer = timer
        self._round: deque[FileKey] = deque()
        self._fresh: deque[FileKey] = deque()
        self._active: dict[FileKey, float] = {}
        self._looked_at = 0.0
        self._looks = 0

    def found(self, key: FileKey) -> None:
        self._fresh.append(key)

    def had_news(self, key: FileKey, now: float) -> None:
        self._active.pop(key, None)
        self._active[key] = now + ACTIVE_SECONDS

    def first_next_time(self, key: FileKey) -> None:
        self._round.appendleft(key)

    def due(self, now: float, starved: Callable[[], bool]) -> Iterator[FileKey]:
        """The files to look at now; new ones wait during a shortage of descriptors."""
        self._looks += 1
        parts = [self._with_news(now), self._in_turn(now), self._just_found(starved)]
        if self._looks % OTHERS_FIRST == 0:
            parts.reverse()
        return chain.from_iterable(parts)

    def _with_news(self, now: float) -> Iterator[FileKey]:
        for key, until in list(self._active.items()):
            if until < now or key not in self._files:
                del self._active[key]
            else:
                yield key

    def _in_turn(self, now: float) -> Iterator[FileKey]:
        end = self._timer() + max(LOOK_SECONDS, LOOK_SHARE * (now - self._looked_at))
        self._looked_at = now
        if not self._round:
            self._round.extend(self._files)
        for number in range(len(self._round)):
            if (number % 64 == 63 and self._timer() > end) or not self._round:
                break
            key = self._round.popleft()
            if key not in self._active:
                yield key

    def _just_found(self, starved: Callable[[], bool]) -> Iterator[FileKey]:
        end = self._timer() + FRESH_SECONDS
        while self._fresh and not starved() and self._timer() <= end:
            if (key := self._fresh.popleft()) not in self._active:
                yield key
