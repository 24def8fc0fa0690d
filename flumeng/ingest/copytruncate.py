"""Which files are copies of followed ones, as rotation by copy and truncate makes them.

A copy is told by its name (``names.originals``) and by its content: it begins as the other file
did, and has before an offset what that had there. A file that only begins alike is no copy, and a
copy in the making is one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from flumeng.ingest.compressed_file import CompressedFile, has_compressed_name
from flumeng.ingest.file_position import MARK_BYTES, FileKey, FilePosition, Mark
from flumeng.ingest.names import copies_beside, is_numbered, originals
from flumeng.ingest.tailed_file import TailedFile
from flumeng.journal.disk import OUT_OF_DESCRIPTORS

log = logging.getLogger(__name__)


class CopytruncateIndex:
    """Looks among ``files``, those of the tailer, and beside them. ``make`` makes one that is not
    among them. ``changed`` must be called when a file came, went, or has another path."""

    def __init__(
        self,
        files: dict[FileKey, TailedFile],
        make: Callable[[FileKey, FilePosition], TailedFile],
    ) -> None:
        self._files = files
        self._make = make
        self._by_path: dict[str, list[TailedFile]] = {}

    def changed(self) -> None:
        self._by_path.clear()

    def is_copy(self, file: TailedFile) -> bool:
        """Whether an open file that was not read yet has nothing but what another one has or had.
        One that is still empty may become a copy; what is read from a compressed copy has no other.

        The content of the other one is compared first: when it was cut meanwhile, then the copy is
        complete, and the marks tell.
        """
        return self._is_copy(file, file.cursor.path)

    def _is_copy(self, file: TailedFile, path: str) -> bool:
        return not file.size or any(
            _is_beginning(file, other) or rest_of(file, other.cursor) is not None
            for other in self._originals(path)
            if other is not file and not (isinstance(other, CompressedFile) and other.is_found)
        )

    def find(self, file: TailedFile, *, whole: bool) -> tuple[TailedFile, FilePosition] | None:
        """The largest copy of a file that is gone, open, and the cursor from which it is to be read
        on. One that is not ``whole`` lacks what was read last, and so has nothing that is unread.
        Raises OSError when what may be one cannot be read."""
        cursor = file.cursor
        identified = replace(cursor, identity=cursor.identity or file.key.identity)
        best: tuple[TailedFile, FilePosition] | None = None
        least = cursor.offset if whole else 0
        for copy in self._beside(cursor):
            try:
                rest = rest_of(copy, identified)
            except OSError:
                self._let_go(copy, best and best[0])
                raise
            if rest is None or rest.end < least or self._is_old(copy, rest):
                self._let_go(copy)
                continue
            self._let_go(best and best[0])
            best, least = (copy, rest), rest.end + 1
        return best

    def _is_old(self, copy: TailedFile, rest: FilePosition) -> bool:
        """Whether the globs do not mean it and it cannot have what comes after that cursor."""
        return (
            copy.key not in self._files
            and rest.offset < rest.end
            and copy.modified_ns < rest.modified_ns
        )

    def unknown_since(self, cursor: FilePosition) -> Iterator[tuple[TailedFile, FilePosition]]:
        """Copies of the same file that were made later and nobody has read, open: of what was in it
        between that cursor and now; each with the cursor from which to read it. Raises OSError when
        what may be one cannot be read."""
        for copy in self._beside(cursor):
            try:
                is_one = self._is_unknown_since(copy, cursor)
            except OSError:
                self._let_go(copy)
                raise
            if is_one:
                end, identity = copy.size, cursor.identity
                yield copy, FilePosition(cursor.path, cursor.folder, identity=identity, end=end)
            else:
                self._let_go(copy)

    def _is_unknown_since(self, copy: TailedFile, cursor: FilePosition) -> bool:
        path = copy.name or copy.cursor.path
        return (
            is_numbered(Path(path).name, Path(cursor.path).name)
            and copy.modified_ns >= cursor.modified_ns
            and not self._is_known(copy)
            and not self._is_copy(copy, path)
        )

    def _is_known(self, copy: TailedFile) -> bool:
        """Whether it is read in its own right; another file may have the inode of one that was."""
        known = self._files.get(copy.key)
        return known is not None and (
            not known.cursor.offset or rest_of(copy, known.cursor) is not None
        )

    def _beside(self, cursor: FilePosition) -> Iterator[TailedFile]:
        """What may be copies, open; also those that were found, are not read yet, and are gone."""
        beside = copies_beside(cursor)
        for file in self._files.values():
            unread = file.is_open and file.cursor.offset == 0
            if unread and cursor.path in _originals(file.cursor.path):
                beside.setdefault(file.key, file.cursor.path)
        for key, path in beside.items():
            copy = self._files.get(key)
            if has_compressed_name(path) or isinstance(copy, CompressedFile):
                continue
            if copy is None or not copy.is_open:
                copy = self._make(key, copy.cursor if copy else FilePosition.new(path))
                copy.name = path
            try:
                if copy.is_open or copy.open(path):
                    yield copy
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    raise
                log.warning("cannot read %s: %s", path, error.strerror or error)

    def _let_go(self, *copies: TailedFile | None) -> None:
        for copy in copies:
            if copy is not None and self._files.get(copy.key) is not copy:
                copy.close()

    def _originals(self, path: str) -> Iterator[TailedFile]:
        if not self._by_path:
            for known in self._files.values():
                self._by_path.setdefault(known.cursor.path, []).append(known)
        for original in _originals(path):
            yield from self._by_path.get(original, ())


def _originals(path: str) -> Iterator[str]:
    return (str(Path(path).with_name(name)) for name in originals(Path(path).name))


def may_be_made_of(file: TailedFile) -> bool:
    """Whether rotation may give its name to what was found under its path."""
    return file.name is not None and file.cursor.path in {file.name, *_originals(file.name)}


def rest_of(copy: TailedFile, cursor: FilePosition) -> FilePosition | None:
    """From where to read a copy of what the cursor has read of; None when it is no copy.

    What was written and read after it was copied and before it was cut is not in the copy, which is
    shorter than what was read then. It agrees at a place where the cursor stood shortly before.
    """
    size = copy.size
    if not cursor.offset or not _begins_alike(copy, cursor, size):
        return None
    copied = replace(cursor, end=size)
    if size >= cursor.offset:
        return copied if copy.has_before(cursor.place) else None
    place = next((place for place in reversed(cursor.earlier) if place.offset <= size), None)
    if place is None or not copy.has_before(place):
        return None
    offset, last = copy.place_at(size)
    head = Mark.of(copy.beginning(MARK_BYTES))
    return replace(copied, offset=offset, last=last, head=head)


def _begins_alike(copy: TailedFile, cursor: FilePosition, size: int) -> bool:
    if size >= cursor.head.length:
        return copy.has_before(cursor.beginning)
    return size > 0 and cursor.start.startswith(copy.beginning(size))


def _is_open(file: TailedFile) -> bool:
    """Opens it when it only rests. Raises OSError when there is no descriptor for that."""
    if file.rests and file.name is not None:
        try:
            return file.open(file.name)
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                raise
    return file.is_open


def _is_beginning(copy: TailedFile, file: TailedFile) -> bool:
    """Whether what is in it is what is in the other file at the same place."""
    size = copy.size
    if isinstance(file, CompressedFile) or not _is_open(file) or file.size < size:
        return False
    length = min(size, MARK_BYTES)
    return copy.beginning(length) == file.beginning(length) and file.has_before(copy.place_at(size))
