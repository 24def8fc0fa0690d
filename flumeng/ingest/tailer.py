"""Which files a tail source reads, through rotation and restarts. Blocking; no event loop.

Rules
1. A file is what device and inode name. It is read under whatever name it has.
2. A file that the globs mean is followed. One that they meant once (rotated, or its cursor lies in
   the journal) is read to its end under whatever name its folder has it, and when it grows later.
3. A file that was renamed or deleted has ended when it was quiet for some seconds; then its last
   line needs no newline.
4. A file that is shorter than its cursor, or begins otherwise than before, was cut or written anew.
   If it was open meanwhile it is read from its beginning. Else it is another file with the inode of
   an old one: it is forgotten, and found like any new file when the globs mean it.
5. What is gone, a file or what was in it before it was cut, is finished from its copy beside it, if
   there is one. From then on the copy is the file: what the journal knew of that, it knows of the
   copy. A compressed copy is read in place of the file; compressed files are not read otherwise.
6. A file that has nothing but what the beginning of another one has is a copy of it, and not read.
7. What was cut and has no copy is looked for again some seconds later, since copies are renamed and
   compressed. Then it is told and counted.
8. Of a file that was seen cut, and then filled, copied and cut again before the next look, nothing
   but the copy is left: one that nobody knows and that is younger is read.
9. The cursor of a file that is gone and fully read is removed from the state.
10. A file in which nothing was new for a minute is closed, and opened when it is another than it
   was; earlier when descriptors are short. What is written into a closed file that is deleted
   before the next look is not seen.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count

from flumeng.ingest.compressed_file import (
    MAGIC_BYTES,
    CompressedFile,
    has_compressed_name,
    is_compressed,
)
from flumeng.ingest.copytruncate import CopytruncateIndex, may_be_made_of, rest_of
from flumeng.ingest.descriptors import of_followed_files
from flumeng.ingest.file_position import FileKey, FilePosition, cursors, state_key
from flumeng.ingest.names import Folders, matches, matching
from flumeng.ingest.received_block import LineRules, Origin, ReceivedBlock
from flumeng.ingest.tailed_file import ReplacedError, TailedFile
from flumeng.journal.disk import OUT_OF_DESCRIPTORS
from flumeng.spec.sources import Tail

log = logging.getLogger(__name__)

QUIET_SECONDS = 5.0
POLL_BYTES = 4 << 20
SCAN_SHARE = 0.05  # of the time, at most, goes into looking for files
SCAN_DESCRIPTORS = 4  # so many directories may be open at once while files are looked for
LOOK_SHARE = (
    0.05  # of the time, at most, goes into looking at files in which nothing was new lately
)
LOOK_SECONDS = 0.002  # but at least so much at each look
FRESH_SECONDS = 0.25
ACTIVE_SECONDS = 10.0
IDLE_SECONDS = 60.0
MEASURE_SECONDS = 5.0
_SEEN_PREFIX = "tail-seen:"


class Tailer:
    """``state`` is the journaled source state. Its methods are called one at a time.

    ``unread_bytes`` is what the files had beyond their cursors when they were last looked at.
    ``starved`` tells that the last ``poll`` lacked descriptors. ``skipped`` counts compressed files
    that are not read, ``cut`` those of which lines may be lost, since they were cut and have no
    copy.
    """

    def __init__(
        self,
        options: Tail,
        hostname: str,
        state: Mapping[str, object],
        clock_us: Callable[[], int],
        timer: Callable[[], float] = time.perf_counter,
        *,
        allows: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.skipped = 0
        self.cut = 0
        self._patterns = options.paths
        self._poll_seconds = options.poll_seconds
        self._hostname = hostname
        self._rules = LineRules(options.max_line_bytes, b"\r", keep_empty=True)
        self._clock_us = clock_us
        self._timer = timer
        self._allows = allows
        self._next_scan = self._next_measure = float("-inf")
        self._round: deque[FileKey] = deque()
        self._fresh: deque[FileKey] = deque()
        self._active: dict[FileKey, float] = {}
        self._looked_at = 0.0
        self._descriptors = of_followed_files()
        self.starved = False
        self.unread_bytes = 0
        self._files: dict[FileKey, TailedFile] = {}
        self._unreadable: dict[FileKey, tuple[str, str]] = {}
        self._copies = CopytruncateIndex(self._files, self._make)
        self._packed: dict[FileKey, str] = {}
        """The names of those that are skipped; under another name it may be another file."""
        self._look_again: dict[FileKey, float | None] = {}
        """When what was cut is looked for the last time; None when it was not looked for yet."""
        for key, cursor in cursors(state).items():
            if any(matches(cursor.path, pattern) for pattern in self._patterns):
                file = self._add(key, cursor)
                if key.cut:
                    self._look_again[key] = None
                elif cursor.is_emptied:
                    file.emptied = cursor
        self._skip_what_is_there: list[str] = []
        if options.start_from == "end":
            self._skip_what_is_there = [
                pattern for pattern in self._patterns if _SEEN_PREFIX + pattern not in state
            ]
        self._to_skip: set[FileKey] = set()

    @property
    def unreadable(self) -> dict[str, str]:
        """Why, by path."""
        return dict(self._unreadable.values())

    def poll(self, now: float) -> list[ReceivedBlock]:
        """Take what is new, about 4 MiB at most, turn and turn about. ``now`` only grows."""
        self.starved = False
        if now >= self._next_scan and self._may_scan():
            self._scan(now)
        blocks: list[ReceivedBlock] = []
        taken = 0
        for key in self._due(now):
            if taken >= POLL_BYTES:
                self._round.appendleft(key)
                break
            file = self._files.get(key)
            if file is None:
                continue
            before = file.unread
            block = self._step(file, now)
            if block is not None:
                blocks.append(block)
                taken += len(block.data)
                self._active[key] = now + ACTIVE_SECONDS
            if self._files.get(key) is file:
                self.unread_bytes += file.unread - before
        if self._skip_what_is_there and not self._to_skip:
            seen = {_SEEN_PREFIX + pattern: True for pattern in self._skip_what_is_there}
            blocks.append(self._state_chunk(seen))
            self._skip_what_is_there = []
        return blocks

    def measure(self, now: float) -> None:
        """Find out how much is unread, while nothing is to be read. ``now`` as for ``poll``."""
        if now < self._next_measure:
            return
        began = self._timer()
        total = 0
        for file in self._files.values():
            if file.name is not None:
                with contextlib.suppress(OSError):
                    file.note_size(os.stat(file.name).st_size)  # noqa: PTH116  many files
            total += file.unread
        self.unread_bytes = total
        self._next_measure = now + max(MEASURE_SECONDS, (self._timer() - began) / SCAN_SHARE)

    def _due(self, now: float) -> Iterator[FileKey]:
        """The files to look at now: those in which something was new lately, then the others in
        turn, as many as a small part of the time allows, and more of those that were just found."""
        for key, until in list(self._active.items()):
            if until < now or key not in self._files:
                del self._active[key]
            else:
                yield key
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
        end = self._timer() + FRESH_SECONDS
        while self._fresh and not self.starved and self._timer() <= end:
            if (key := self._fresh.popleft()) not in self._active:
                yield key

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _add(self, key: FileKey, cursor: FilePosition) -> TailedFile:
        return self._enter(self._make(key, cursor))

    def _enter(self, file: TailedFile) -> TailedFile:
        self._files[file.key] = file
        self._copies.changed()
        return file

    def _make(
        self, key: FileKey, cursor: FilePosition, kind: type[TailedFile] = TailedFile
    ) -> TailedFile:
        return kind(key, cursor, self._hostname, self._rules, self._clock_us, allows=self._allows)

    def _scan(self, now: float) -> None:
        began = self._timer()
        found = matching(self._patterns)
        if not self._may_scan():  # what was found may be but a part of what is there
            return
        self._packed = {key: path for key, path in self._packed.items() if key in found}
        for key, path in found.items():
            if key in self._files:
                continue
            if has_compressed_name(path):
                self._skip_packed(key, path)
            elif self._packed.get(key) != path:
                self._add(key, FilePosition.new(path))
                self._fresh.append(key)
                if any(matches(path, pattern) for pattern in self._skip_what_is_there):
                    self._to_skip.add(key)
        folders = Folders()
        for key, file in self._files.items():
            if isinstance(file, CompressedFile):
                continue
            file.followed = key in found
            name = found.get(key) or folders.find(key, file.cursor)
            if name is None and file.name is not None and _is_there(key, file.name):
                continue  # a folder could not be looked into
            if name != file.name:
                file.name, file.quiet_since = name, now
        took = self._timer() - began
        self._next_scan = now + max(self._poll_seconds, took / SCAN_SHARE)

    def _step(self, file: TailedFile, now: float) -> ReceivedBlock | None:
        try:
            block = self._take(file, now)
        except FileNotFoundError:
            return None  # renamed or deleted since the scan; the next one tells
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
        """There is no descriptor for a file, or for looking into a directory."""
        self.starved = True
        self._descriptors.lack()

    def _may_scan(self) -> bool:
        """Whether directories can be looked into. Where they cannot, files only seem to be gone."""
        probes: list[int] = []
        try:
            for _ in range(SCAN_DESCRIPTORS):
                probes.append(os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                self._starve()
                return False
        finally:
            for probe in probes:
                os.close(probe)
        return True

    def _may_rest(self, file: TailedFile, now: float) -> bool:
        """Whether a file in which nothing is new is closed until something is. Not while something
        else is to be done with it that needs what is open."""
        quiet = now - file.quiet_since >= IDLE_SECONDS or self._descriptors.is_short
        return (
            quiet
            and file.is_open
            and not isinstance(file, CompressedFile)
            and file.followed
            and file.name == file.cursor.path
            and not file.emptied
            and file.key not in self._look_again
            and file.key not in self._to_skip
        )

    def _take(self, file: TailedFile, now: float) -> ReceivedBlock | None:
        if (self._look_again.get(file.key) or now) > now:
            return None
        if not file.is_open:
            if file.name is None:
                return self._finish(file, now)
            if not (file.followed or file.cursor.offset or may_be_made_of(file)):
                return self._forget(file)
            known = file.rests or (file.cursor.offset > 0 and not file.emptied)
            wanted = (file.followed and not known) or file.has_changed(file.name)
            if not wanted or not file.open(file.name):
                return None
        if file.cursor.offset == 0 and is_compressed(file.beginning(MAGIC_BYTES)):
            self._skip_packed(file.key, file.cursor.path)
            return self._forget(file)
        if file.key in self._to_skip:
            self._to_skip.discard(file.key)
            if file.size:
                return file.start_at_end()
        return self._take_after_cut(file, now) if file.emptied else self._take_open(file, now)

    def _take_after_cut(self, file: TailedFile, now: float) -> ReceivedBlock | None:
        """First what is in it now, then the copies: one of that is known as such then, also when
        the file is cut meanwhile."""
        before, modified_ns = file.cursor, file.modified_ns
        block = self._take_open(file, now)
        since = file.emptied
        if since is None or (block is None and modified_ns == since.modified_ns):
            return block
        try:
            state = self._read_unknown(file.key, since)
        except OSError:
            file.continue_from(before)
            raise
        if block is not None:
            file.emptied = None
            return replace(block, state={**(block.state or {}), **state})
        file.emptied = replace(since, modified_ns=modified_ns)
        return self._state_chunk(state) if state else None

    def _take_open(self, file: TailedFile, now: float) -> ReceivedBlock | None:
        unread = file.cursor.offset == 0 and not isinstance(file, CompressedFile)
        if unread and self._copies.is_copy(file):
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
        renamed = file.name != file.cursor.path
        if block is None and renamed and now - file.quiet_since >= QUIET_SECONDS:
            block = file.read(ended=True)
            if block is None and not file.followed:
                if file.name is None:
                    copy = self._copies.find(file, whole=isinstance(file, CompressedFile))
                    return self._hand_over(file, *copy) if copy else self._forget(file)
                file.close()
        return block

    def _start_over(self, file: TailedFile) -> ReceivedBlock:
        """It was cut, written anew, or is another file; what was in it before is gone."""
        if file.followed or file.trusted:
            log.info("%s was cut or written anew; reading it from its beginning", file.name)
        before, key, is_copy = file.cursor, file.key, bool(file.cursor.end)
        missed = file.trusted or (file.followed and self._is_newest(before))
        state: dict[str, object] = {state_key(key): None}
        if file.trusted and not is_copy:
            state = self._mark_emptied(file, FilePosition(before.path, before.folder))
        else:
            self._forget(file)
            if file.followed and file.name is not None:
                anew = self._add(key, FilePosition.new(file.name))
                anew.followed = True
                with contextlib.suppress(OSError):
                    if anew.open(file.name):  # its copies are known by what is in it
                        state = self._mark_emptied(anew, anew.cursor)
        if not is_copy or before.offset < before.end:
            state |= self._keep(key, before, missed=missed)
        return self._state_chunk(state)

    def _mark_emptied(self, file: TailedFile, cursor: FilePosition) -> dict[str, object]:
        file.continue_from(replace(cursor, modified_ns=file.modified_ns))
        file.emptied = file.cursor
        return {state_key(file.key): file.cursor.to_state()}

    def _keep(self, key: FileKey, cursor: FilePosition, *, missed: bool) -> dict[str, object]:
        """Look for what a file had in it until now, under a key of its own. ``missed``: it is
        counted when there is no copy."""
        gone = next(cut for n in count(1) if (cut := key._replace(cut=n)) not in self._files)
        file = self._add(gone, replace(cursor, identity=cursor.identity or key.identity))
        file.name = None
        if missed:
            self._look_again[gone] = None
        return {state_key(gone): file.cursor.to_state()}

    def _is_newest(self, cursor: FilePosition) -> bool:
        """Of the files that were found under the same name; the others were rotated before."""
        return not any(
            file.cursor.path == cursor.path and file.cursor.modified_ns > cursor.modified_ns
            for file in self._files.values()
        )

    def _finish(self, file: TailedFile, now: float) -> ReceivedBlock | None:
        """The file is gone, but perhaps not all that was in it. A copy that lacks some of it counts
        only once no whole one is found, compressed or not."""
        if file.emptied:
            return self._forget(file)
        copy = self._copies.find(file, whole=not isinstance(file, CompressedFile))
        if copy is not None:
            return self._hand_over(file, *copy)
        if isinstance(file, CompressedFile):
            return self._give_up(file, now)
        file.close()
        compressed = self._enter(self._make(file.key, file.cursor, CompressedFile))
        return self._take(compressed, now)

    def _hand_over(self, file: TailedFile, copy: TailedFile, rest: FilePosition) -> ReceivedBlock:
        """From now on the copy is read, and known, instead."""
        log.info("%s goes on in its copy %s", file.cursor.path, copy.name)
        return self._forget(file, self._read_as_copy(copy, rest))

    def _read_as_copy(self, copy: TailedFile, rest: FilePosition) -> dict[str, object]:
        """From there on, unless it is read already in its own right. What had its inode before is
        gone: what was not read of that is looked for."""
        self._enter(copy)
        state: dict[str, object] = {}
        before = copy.cursor
        if not before.offset or rest_of(copy, before) is None:
            copy.continue_from(rest)
            if 0 < before.offset < before.end:
                state = self._keep(copy.key, before, missed=True)
        return {**state, state_key(copy.key): copy.cursor.to_state()}

    def _read_unknown(self, key: FileKey, since: FilePosition) -> dict[str, object]:
        """Copies of what was in that file since then, from now on."""
        state: dict[str, object] = {}
        identified = replace(since, identity=since.identity or key.identity)
        for copy, rest in self._copies.unknown_since(identified):
            log.info("%s was made of %s meanwhile; reading it", copy.name, since.path)
            state |= self._read_as_copy(copy, rest)
        return state

    def _give_up(self, file: CompressedFile, now: float) -> ReceivedBlock | None:
        if file.key in self._look_again and self._look_again[file.key] is None:
            self._look_again[file.key] = now + QUIET_SECONDS
            file.close()
            return None
        cursor = file.cursor
        if file.key in self._look_again or cursor.offset < cursor.end:
            self.cut += 1
            log.warning(
                "%s was cut and no copy was found: what came after its first %d bytes may be lost",
                cursor.path,
                cursor.offset,
            )
        return self._forget(file)

    def _skip_packed(self, key: FileKey, path: str) -> None:
        if key not in self._packed:
            self.skipped += 1
            log.info("%s is compressed and not read", path)
        self._packed[key] = path

    def _forget(self, file: TailedFile, state: Mapping[str, object] | None = None) -> ReceivedBlock:
        """``state`` becomes true together with that."""
        unknown: dict[str, object] = {}
        if file.key in self._look_again:
            unknown = self._read_unknown(file.key, file.cursor)
            del self._look_again[file.key]
        elif file.emptied:
            unknown = self._read_unknown(file.key, file.emptied)
            file.emptied = None
        file.close()
        self.unread_bytes -= file.unread
        file.unread = 0
        del self._files[file.key]
        self._copies.changed()
        self._to_skip.discard(file.key)
        self._unreadable.pop(file.key, None)
        return self._state_chunk({state_key(file.key): None, **(state or {}), **unknown})

    def _state_chunk(self, state: Mapping[str, object]) -> ReceivedBlock:
        return ReceivedBlock(
            b"", Origin(self._hostname, (), self._rules), self._clock_us(), state=state
        )

    def _not_readable(self, file: TailedFile, error: OSError) -> None:
        file.close()
        self._to_skip.discard(file.key)
        path, reason = file.cursor.path, error.strerror or str(error)
        if file.key not in self._unreadable:
            log.warning("cannot read %s: %s", path, reason)
        self._unreadable[file.key] = path, reason


def _is_there(key: FileKey, path: str) -> bool:
    try:
        return FileKey.of(os.stat(path)) == key  # noqa: PTH116  needs no descriptor
    except OSError:
        return False
