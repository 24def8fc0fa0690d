"""Reads compressed copies of rotated files. A file's unread rest is read from the copy, under the
file's identity and from its offset. First bytes and those before the offset identify the copy."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa

from flumeng.connectors.tail.file_position import MARK_BYTES, FileKey, FilePosition, Mark
from flumeng.connectors.tail.rotated_names import folders_within, paths_in
from flumeng.connectors.tail.tailed_file import Following, ReplacedError, TailedFile
from flumeng.journal.log.disk import OUT_OF_DESCRIPTORS
from flumeng.platform.memory import require_memory

log = logging.getLogger(__name__)

MAGIC_BYTES = 6
SKIP_BYTES = 64 << 20
"""Most bytes that one call skips, so that other files of the source are read in between."""

_MAGIC: Sequence[tuple[bytes, Literal["gzip", "zstd", "lz4", "bz2"] | None]] = (
    (b"\x1f\x8b\x08", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x04\x22\x4d\x18", "lz4"),
    *((b"BZh%d1A" % level, "bz2") for level in range(1, 10)),
    (b"\xfd7zXZ\x00", None),
)
_SUFFIXES = frozenset({".gz", ".zst", ".lz4", ".bz2", ".xz"})
_UNPACK_BYTES = 1 << 20


def has_compressed_name(path: str) -> bool:
    """Return whether the name is of a compressed file: compressors first create an empty file."""
    return Path(path).suffix in _SUFFIXES


def is_compressed(beginning: bytes) -> bool:
    return any(beginning.startswith(magic) for magic, _ in _MAGIC)


class CompressedFile(TailedFile):
    """The unread rest of a missing file, in a compressed copy. ``is_recognised``: the open file, at
    ``path``, is the copy. Raises ``ReplacedError`` without one, ``OSError`` for a damaged one."""

    def __init__(self, key: FileKey, cursor: FilePosition, following: Following) -> None:
        super().__init__(key, cursor, following)
        self.name = None
        self._stream: pa.CompressedInputStream | None = None
        self.close()

    @property
    def is_open(self) -> bool:
        return True

    def close(self) -> None:
        self._drop()
        self._copies = iter(_newest_first(self.cursor))

    def has_more(self, now: float) -> bool:
        """Search for the copy; return whether it has unread bytes. False too while further calls
        must skip bytes up to the offset."""
        while self._stream is not None or (path := next(self._copies, "")):
            try:
                if self._stream is None:
                    self._open(path)
                return self._is_more(now)
            except ReplacedError:
                self._drop()
            except OSError as error:
                if self.is_recognised or error.errno in OUT_OF_DESCRIPTORS:
                    raise
                args = self.path, self.cursor.path, error.strerror or error
                log.warning("cannot read %s, which may have unread lines of %s: %s", *args)
                self._drop()
        raise ReplacedError

    def begins_alike(self, path: str) -> bool:
        """Return whether ``path`` begins like the file. Raises OSError if out of descriptors."""
        head = self.cursor.head
        try:
            self._open(path)
            return head.length > 0 and Mark.of(self._head[: head.length]) == head
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                raise
            return False
        finally:
            self._drop()

    def _open(self, path: str) -> None:
        self.path = path
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._require_allowed(fd)
        file = os.fdopen(fd, "rb")
        beginning = file.read(MAGIC_BYTES)
        file.seek(0)
        codec = next(
            (codec for magic, codec in _MAGIC if codec and beginning.startswith(magic)), ""
        )
        if not codec:
            file.close()
            return
        self._stream = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
        self._data = self._unpack()
        self._head = self._data[:MARK_BYTES]

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self.path = ""
        self.is_recognised = False
        self._data = self._head = b""  # the last and the first decompressed bytes
        self._begin = 0  # the offset of ``_data``

    def _is_more(self, now: float) -> bool:
        cursor = self.cursor
        if Mark.of(self._head[: cursor.head.length]) != cursor.head:
            raise ReplacedError
        if not self._skip_to(cursor.offset - cursor.last.length):
            self.quiet_since = now
            return False
        self.quiet_since = float("-inf")
        _, rest = self._read_on(1)
        self.is_recognised = True
        return bool(rest)

    def _skip_to(self, offset: int) -> bool:
        """Skip to ``offset``; return whether it is reached. ReplacedError if data ends before."""
        skipped = 0
        while self._begin + len(self._data) < offset and skipped < SKIP_BYTES:
            self._begin += len(self._data)
            self._data = self._unpack()
            skipped += len(self._data)
            if not self._data:
                raise ReplacedError
        return self._begin + len(self._data) >= offset

    def _read_at(self, offset: int, size: int) -> bytes:
        """Return decompressed bytes. Except for the first bytes, offsets must not decrease."""
        if offset + size <= len(self._head):
            return self._head[offset : offset + size]
        while self._begin + len(self._data) < offset + size:
            more = self._unpack()
            if not more:
                break
            self._data = self._data[offset - self._begin :] + more
            self._begin = offset
        return self._data[offset - self._begin :][:size]

    def _unpack(self) -> bytes:
        try:
            data: bytes = self._stream.read(_UNPACK_BYTES) if self._stream is not None else b""
        except OSError as error:
            require_memory(error)
            raise
        return data


def _newest_first(cursor: FilePosition) -> list[str]:
    """Return compressed files in the file's folders, newest first, if first bytes are known."""
    if not cursor.head.length:
        return []
    by_key: dict[FileKey, tuple[int, str]] = {}
    here = {str(Path(cursor.path).parent), cursor.folder}
    for folder in (*here, *folders_within(cursor)):
        for path in filter(has_compressed_name, paths_in(folder)):
            with contextlib.suppress(OSError):
                status = Path(path).stat()
                by_key[FileKey.of(status)] = (status.st_mtime_ns, path)
    return [path for _, path in sorted(by_key.values(), reverse=True)]
