"""Reads whole lines of one file from its position on, under any name. Only a finished file's last
line may lack its newline. NUL bytes before a line are skipped once other bytes follow."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from flumeng.connectors.api.framing import TRAILER_BYTES
from flumeng.connectors.api.received_block import LineRules, Origin, ReceivedBlock
from flumeng.connectors.tail.descriptors import Descriptors
from flumeng.connectors.tail.file_position import (
    MARK_BYTES,
    FileKey,
    FilePosition,
    Mark,
    MarkedOffset,
    state_key,
)
from flumeng.connectors.tail.file_text import MARK_BYTES as TEXT_MARK_BYTES
from flumeng.connectors.tail.file_text import CutLines, FileText
from flumeng.journal.log.frame import MAX_ROWS

log = logging.getLogger(__name__)

READ_BYTES = 1 << 20


@dataclass
class Following:
    """Settings that all files of a source share. ``hole_bytes`` counts skipped NUL bytes."""

    hostname: str
    rules: LineRules
    encoding: str
    clock_us: Callable[[], int]
    allows: Callable[[str], bool]
    descriptors: Descriptors
    hole_bytes: int = 0


class ReplacedError(Exception):
    """The file was truncated or rewritten: content that was read is no longer in it."""


class TailedFile:
    """A file and its ``cursor``, the read position; the last blocks before it may not be durable.

    ``unread``: bytes after the cursor at the last check. The tailer sets ``name`` (the present
    path, None when missing), ``followed`` (the globs match), ``trusted`` (they matched since it was
    opened), ``copy_of`` (a file with the same first bytes, and how many), and ``search_at`` (time
    of the next search for truncated content). Reading raises ``OSError`` and ``ReplacedError``.
    """

    def __init__(self, key: FileKey, cursor: FilePosition, following: Following) -> None:
        self.key = key
        self.cursor = cursor
        self.name: str | None = cursor.path
        self.followed = False
        self.trusted = False
        self.copy_of: tuple[FileKey, int] | None = None
        self.search_at: float | None = None
        self.quiet_since = 0.0
        self.unread = 0
        self._following = following
        self._limit = (following.rules.max_line_bytes + TRAILER_BYTES + 2) // 2 * 2  # for UTF-16
        self._fd = -1
        self._left: tuple[int, int] | None = None
        self.continue_from(cursor)

    def continue_from(self, cursor: FilePosition) -> None:
        """Continue at ``cursor``, under its path and identity."""
        self.cursor = cursor
        self._left = None
        self._seen: tuple[int, int] | None = None
        self._ended_as: tuple[int, int] | None = None
        self._size_of_rest = -1
        self._text: FileText | None = None
        path = os.fsencode(cursor.path).decode(errors="replace")
        identity = cursor.identity or self.key.identity
        attrs = (("source", "tail"), ("path", path), ("inode", identity))
        self._origin = Origin(self._following.hostname, attrs, self._following.rules)

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    @property
    def modified_ns(self) -> int:
        return os.fstat(self._fd).st_mtime_ns

    def has_changed(self, path: str) -> bool:
        """Return whether the file changed since ``rest`` or since it was read to its end; False if
        ``path`` has another inode. A changed file may be another one with the same inode."""
        status = os.stat(path)  # noqa: PTH116  a Path for each of 100,000 files costs more
        if FileKey.of(status) != self.key:
            return False  # renamed meanwhile
        self.unread = max(0, status.st_size - self.cursor.offset)
        return not self.is_as_left(status.st_size, status.st_mtime_ns)

    def is_as_left(self, size: int, modified_ns: int) -> bool:
        left = self._left or (self.cursor.offset, self.cursor.modified_ns)
        return (size, modified_ns) == left

    def open(self, path: str) -> bool:
        """Open ``path``; return False when it is another file now. Access is checked on the open
        file: names can be redirected. Raises OSError, with EMFILE beyond the descriptor budget."""
        if not self._following.descriptors.take():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            if FileKey.of(os.fstat(fd)) != self.key:
                os.close(fd)
                self._following.descriptors.give_back()
                return False
            self._require_allowed(fd)
        except OSError:
            self._following.descriptors.give_back()
            raise
        self._fd = fd
        self._left = None
        return True

    def rest(self) -> None:
        """Close the file until it changes."""
        status, seen, ended_as = os.fstat(self._fd), self._seen, self._ended_as
        self.close()
        self._left = status.st_size, status.st_mtime_ns
        if seen == self._left:
            self._seen, self._ended_as = seen, ended_as

    @property
    def rests(self) -> bool:
        return self._left is not None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._following.descriptors.give_back()
        self._left = None
        self._fd = self._size_of_rest = -1
        self._seen = self._ended_as = None
        self._text = None
        self.trusted = False

    def beginning(self, length: int) -> bytes:
        return self._read_at(0, length)

    def has_before(self, marked: MarkedOffset) -> bool:
        """Return whether the bytes before the marked offset are the expected ones."""
        offset, last = marked
        return Mark.of(self._read_at(offset - last.length, last.length)) == last

    def marked_at(self, offset: int) -> MarkedOffset:
        length = min(offset, MARK_BYTES)
        return MarkedOffset(offset, Mark.of(self._read_at(offset - length, length)))

    def start_at_end(self) -> ReceivedBlock:
        """Start at the file's end; the remainder of an incomplete line is skipped."""
        text = self._recognize()
        status = os.fstat(self._fd)
        end = status.st_size // text.width * text.width
        before = self._read_at(max(0, end - MARK_BYTES), min(end, MARK_BYTES))
        self.cursor = replace(
            self.cursor,
            offset=end,
            head=Mark.of(self.beginning(min(end, MARK_BYTES))),
            last=Mark.of(before),
            skipping=end > text.mark_bytes and not len(text.ends(before[-text.width :])),
            size=status.st_size,
            modified_ns=status.st_mtime_ns,
        )
        return self._block(None, b"", end)

    def has_more(self, now: float) -> bool:
        """Return whether there is more to read; a change sets ``quiet_since`` to ``now``."""
        status = os.fstat(self._fd)
        size, seen = status.st_size, (status.st_size, status.st_mtime_ns)
        if seen != self._seen:
            head, least = self.cursor.head, self.cursor.offset or self.cursor.size
            if size < least or Mark.of(self.beginning(head.length)) != head:
                raise ReplacedError
            self._seen, self.quiet_since = seen, now
            self.cursor = replace(self.cursor, size=size, modified_ns=status.st_mtime_ns)
        self.unread = max(0, size - self.cursor.offset)
        return size > self.cursor.offset and size != self._size_of_rest

    def read(self, *, ended: bool = False) -> ReceivedBlock | None:
        """Return the next lines, about 1 MiB, or None. With ``ended`` the last needs no newline.
        The block is empty when it only skips the rest of an overlong line."""
        text = self._recognize()
        before, block = self._read_on(READ_BYTES)
        block = text.whole(block)
        begin = self.cursor.offset
        if self.cursor.skipping and block:
            ends = text.ends(block)
            taken = int(ends[0]) if len(ends) else len(block)
            self._advance(before, block, taken, skipping=not len(ends))
            return self._block(text, b"", begin)
        if self.cursor.unterminated:
            newline = text.newline_bytes(block)
            if newline is None:
                return self._nothing_until_it_grows(ended=ended)
            self._advance(before, block, newline)
            return self.read(ended=ended)
        if block.startswith(text.nul):
            if not self._pass_hole(text, before):
                return self._nothing_until_it_grows(ended=ended)
            return self.read(ended=ended)
        end = _end_of_lines(text, block)
        if not end and len(block) >= min(READ_BYTES, self._limit):
            before, block = self._read_on(self._limit)
            block = text.whole(block)
            end = _end_of_lines(text, block)
        if end:
            self._advance(before, block, end)
            return self._block(text, block[:end], begin)
        overlong = len(block) >= self._limit
        if overlong or (ended and block):
            self._advance(before, block, len(block), skipping=overlong, unterminated=not overlong)
            return self._block(text, block, begin)
        return self._nothing_until_it_grows(ended=ended)

    def _nothing_until_it_grows(self, *, ended: bool) -> ReceivedBlock | None:
        self._size_of_rest = self.cursor.size
        if ended:
            self._ended_as = self._seen
        return None

    @property
    def has_last_line(self) -> bool:
        """Whether unread bytes remain that were not yet tried as a last line without newline."""
        return self.unread > 0 and (self._ended_as is None or self._ended_as != self._seen)

    def _recognize(self) -> FileText:
        """Return the encoding, recognised by the first bytes; skip the byte order mark."""
        if self._text is not None:
            return self._text
        beginning = self._read_at(0, TEXT_MARK_BYTES)
        text = FileText(self._following.encoding, beginning)
        if self.cursor.offset < text.mark_bytes:
            self._advance(b"", beginning, text.mark_bytes)
        if len(beginning) == TEXT_MARK_BYTES:
            self._text = text
        return text

    def _pass_hole(self, text: FileText, before: bytes) -> bool:
        """Skip NUL bytes that are followed by other bytes; return whether any were skipped. At the
        end of the file they stay, as a program may still write there."""
        begin = self.cursor.offset
        end = self._end_of_nuls(begin) // text.width * text.width
        if end == begin:
            return False
        nuls = bytes(min(end - begin, MARK_BYTES))
        head, last = (before + nuls)[:MARK_BYTES], (before + nuls)[-MARK_BYTES:]
        if self.cursor.head.length < MARK_BYTES:
            self.cursor = replace(self.cursor, head=Mark.of(head))
        self.cursor = replace(self.cursor, offset=end, last=Mark.of(last))
        self.unread = max(0, self.unread - (end - begin))
        self._following.hole_bytes += end - begin
        log.info("file %s: skipped %d NUL bytes from byte %d", self.cursor.path, end - begin, begin)
        return True

    def _end_of_nuls(self, begin: int) -> int:
        """Return the offset of the first byte other than NUL; ``begin`` when there is none."""
        offset = begin
        while True:
            with contextlib.suppress(OSError):  # no known holes, or a hole up to the end
                offset = max(offset, os.lseek(self._fd, offset, os.SEEK_DATA))
            data = self._read_at(offset, READ_BYTES)
            if not data:
                return begin
            if rest := data.lstrip(b"\0"):
                return offset + len(data) - len(rest)
            offset += len(data)

    def _read_on(self, size: int) -> tuple[bytes, bytes]:
        """Return the bytes before the cursor, once checked, and the bytes after it."""
        last = self.cursor.last
        data = self._read_at(self.cursor.offset - last.length, last.length + size)
        before, block = data[: last.length], data[last.length :]
        if Mark.of(before) != last:
            raise ReplacedError
        return before, block

    def _read_at(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def _advance(
        self,
        before: bytes,
        block: bytes,
        taken: int,
        *,
        skipping: bool = False,
        unterminated: bool = False,
    ) -> None:
        """Move the cursor. Marks are made of the bytes read, as the file may have changed."""
        offset = self.cursor.offset + taken
        if self.cursor.head.length < MARK_BYTES:
            head = before + block[:MARK_BYTES]
            self.cursor = replace(self.cursor, head=Mark.of(head[: min(offset, MARK_BYTES)]))
        last = Mark.of(_last(before, block, taken))
        self.unread = max(0, self.unread - taken)
        self.cursor = replace(
            self.cursor, offset=offset, last=last, skipping=skipping, unterminated=unterminated
        )

    def _block(self, text: FileText | None, block: bytes, begin: int) -> ReceivedBlock:
        lines = text.cut(block) if text is not None and block else CutLines(b"")
        self._following.hole_bytes += lines.hole_bytes
        return ReceivedBlock(
            lines.data,
            self._origin,
            self._following.clock_us(),
            lines.bounds,
            state={state_key(self.key): self.cursor.to_state()},
            file_offset=begin,
            file_places=lines.places,
        )

    def _require_allowed(self, fd: int) -> None:
        if not self._following.allows(str(Path(f"/proc/self/fd/{fd}").readlink())):
            os.close(fd)
            raise PermissionError(errno.EPERM, "this node's policy file does not allow it")


def _last(before: bytes, block: bytes, taken: int) -> bytes:
    """Return the bytes before ``taken`` that a mark covers."""
    if taken >= MARK_BYTES:
        return block[taken - MARK_BYTES : taken]
    return (before + block[:taken])[-MARK_BYTES:]


def _end_of_lines(text: FileText, block: bytes) -> int:
    """Return the end of the last whole line that fits into a frame; 0 when there is none."""
    ends = text.ends(block)[:MAX_ROWS]
    return int(ends[-1]) if len(ends) else 0
