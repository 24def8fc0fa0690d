"""Finds copies that copy-and-truncate rotation makes, even unfinished ones. A copy has a rotated
name (``rotated_names.originals``), and the same bytes at the start and before an offset."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flumeng.connectors.tail.compressed_file import CompressedFile, has_compressed_name
from flumeng.connectors.tail.file_position import MARK_BYTES, FileKey, FilePosition, Mark
from flumeng.connectors.tail.rotated_names import (
    Sight,
    base_name,
    copies_beside,
    has_shape,
    is_numbered,
    originals,
    regular_files,
)
from flumeng.connectors.tail.tailed_file import Following, TailedFile
from flumeng.journal.log.disk import OUT_OF_DESCRIPTORS

log = logging.getLogger(__name__)


class Copies:
    """Finds copies of ``files``. When a file is added, removed or gets other paths, call ``went``
    before and ``came`` after, or ``changed`` after."""

    def __init__(self, files: dict[FileKey, TailedFile], following: Following) -> None:
        self._files = files
        self._following = following
        self._by_path: dict[str, list[TailedFile]] = {}

    def came(self, file: TailedFile) -> None:
        if self._by_path:
            self._enter(file)

    def went(self, file: TailedFile) -> None:
        for path in file.cursor.paths:
            files = self._by_path.get(path, [])
            if file not in files:
                return self.changed()
            files.remove(file)
        return None

    def changed(self) -> None:
        self._by_path.clear()

    def _enter(self, file: TailedFile) -> None:
        for path in file.cursor.paths:
            self._by_path.setdefault(path, []).append(file)

    def known_as(self, path: str) -> list[TailedFile]:
        """Return the files found under ``path``, also as the resolved path of a link."""
        if not self._by_path:
            for file in self._files.values():
                self._enter(file)
        return self._by_path.get(path, [])

    def is_copy(self, file: TailedFile) -> bool:
        """Return whether an open unread file is a copy of another file, and note that file in its
        ``copy_of``; True for an empty file, which may become a copy. The other file's content is
        compared first: if it is truncated meanwhile, the copy is complete and the marks match."""
        size = file.size
        if not size:
            return True
        candidates = [name for path in file.cursor.paths for name in _originals(path)]
        for path in dict.fromkeys(candidates):
            for other in self.known_as(path):
                if isinstance(other, CompressedFile) and other.is_recognised:
                    continue
                if _is_beginning(file, other):
                    file.copy_of = other.key, size
                    return True
                if rest_of(file, other) is not None:
                    file.copy_of = other.key._replace(cut=0), size
                    return True
        return False

    def find(self, file: TailedFile) -> tuple[TailedFile, FilePosition] | None:
        """Return the largest copy of a missing file, opened, and the position to continue from;
        None without a copy. Raises OSError if reading fails or out of descriptors."""
        best: tuple[TailedFile, FilePosition] | None = None
        copy: TailedFile | None = None
        try:
            for copy in self._beside(file.cursor):
                rest = rest_of(copy, file)
                if rest is None or (best and rest.size <= best[1].size) or self._is_old(copy, rest):
                    self._let_go(copy)
                    continue
                self._let_go(best and best[0])
                best = copy, rest
        except OSError:
            self._let_go(copy, best and best[0])
            raise
        return best

    def has_content(self, key: FileKey, path: str, tracked: TailedFile) -> bool:
        """Return whether ``path`` has the content of a file tracked under another key. On the same
        device 256 read bytes are needed to compare. Raises OSError if out of descriptors."""
        is_short = tracked.key.device == key.device and tracked.cursor.offset < MARK_BYTES
        return not is_short and bool(self._is_rest(key, path, tracked))

    def is_another(self, file: TailedFile, path: str) -> bool:
        """Return whether ``path`` has a closed file's inode, but other content; False if it is
        unreadable. Raises OSError if out of descriptors."""
        return self._is_rest(file.key, path, file) is False

    def newest(self, path: str) -> TailedFile:
        """Return the newest file found under ``path``; of equally new ones the one still there."""
        return max(
            self.known_as(path),
            key=lambda file: (file.cursor.modified_ns, file.name in file.cursor.paths),
        )

    def unseen_beside(self, path: str) -> dict[FileKey, Sight]:
        """Return files rotated away from ``path`` before discovery: younger than all known files of
        the path, not tracked, no copies of them, and numbered or named like a known generation."""
        tracked = self.known_as(path)
        newest = self.newest(path)
        names = {base_name(path) for path in newest.cursor.paths}
        generations = [
            base_name(file.name)
            for file in tracked
            if file.name is not None and file.name not in file.cursor.paths
        ]

        def is_generation(name: str) -> bool:
            return (
                name in names
                or any(is_numbered(name, original) for original in names)
                or any(has_shape(name, generation) for generation in generations)
            )

        # The target of a changed link is a candidate too.
        beside = copies_beside(newest.cursor) | regular_files([newest.cursor.real_path])
        return {
            key: sight
            for key, sight in beside.items()
            if key not in self._files
            and key.device == newest.key.device
            and sight.modified_ns > newest.cursor.modified_ns > 0
            and is_generation(_unpacked_name(sight.path))
            and not any(self._is_made_of(key, sight.path, file) for file in tracked)
        }

    def _is_made_of(self, key: FileKey, path: str, tracked: TailedFile) -> bool:
        """Return whether an untracked file has a known file's content, or is an unfinished copy."""
        if not has_compressed_name(path):
            return bool(self._is_rest(key, path, tracked, or_beginning=True))
        compressed = CompressedFile(tracked.key, tracked.cursor, self._following)
        return tracked.name == path.removesuffix(Path(path).suffix) or compressed.begins_alike(path)

    def _is_rest(
        self, key: FileKey, path: str, tracked: TailedFile, *, or_beginning: bool = False
    ) -> bool | None:
        """Return whether a file has a known file's content, or with ``or_beginning`` only the
        beginning; None when ``path`` is unreadable or has another inode."""
        file = TailedFile(key, tracked.cursor, self._following)
        try:
            if not file.open(path):
                return None
            is_rest = rest_of(file, tracked) is not None
            return is_rest or (or_beginning and _is_beginning(file, tracked))
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                raise
            return None
        finally:
            file.close()

    def _is_old(self, copy: TailedFile, rest: FilePosition) -> bool:
        """Return whether an untracked copy has bytes after ``rest``, but is older than the file was
        when last seen, so that they are not its unread ones."""
        return (
            copy.key not in self._files
            and rest.offset < rest.size
            and copy.modified_ns < rest.modified_ns
        )

    def _beside(self, cursor: FilePosition) -> Iterator[TailedFile]:
        """Yield opened candidates for copies, including known files that are unread."""
        beside = {key: sight.path for key, sight in copies_beside(cursor, within=True).items()}
        for file in self._files.values():
            unread = file.is_open and file.cursor.offset == 0
            if unread and is_name_of(file.cursor.path, cursor):
                beside.setdefault(file.key, file.cursor.path)
        for key, path in beside.items():
            copy = self._files.get(key)
            if has_compressed_name(path) or isinstance(copy, CompressedFile):
                continue
            if copy is None or not copy.is_open:
                position = copy.cursor if copy else FilePosition.new(path)
                copy = TailedFile(key, position, self._following)
                copy.name = path
            try:
                if copy.is_open or copy.open(path):
                    yield copy
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    raise
                args = path, cursor.path, error.strerror or error
                log.warning("cannot read %s, which may have unread lines of %s: %s", *args)

    def _let_go(self, *copies: TailedFile | None) -> None:
        for copy in copies:
            if copy is not None and self._files.get(copy.key) is not copy:
                copy.close()


def may_be_made_of(file: TailedFile) -> bool:
    """Return whether rotation may have given the file its present name."""
    return file.name is not None and is_name_of(file.name, file.cursor)


def is_name_of(name: str, cursor: FilePosition) -> bool:
    """Return whether the file of ``cursor`` may be called ``name`` after rotation."""
    return not {name, *_originals(name)}.isdisjoint(cursor.paths)


def rest_of(copy: TailedFile, file: TailedFile) -> FilePosition | None:
    """Return where to continue in a copy; None if it is no copy or the file is unread. A copy that
    ends before the file's position has no more to read; it is recognised only if seen earlier."""
    size, cursor = copy.size, file.cursor
    if not cursor.offset:
        return None
    identity = cursor.identity or file.key.identity
    rest = replace(cursor, size=size, identity=identity, suspect=False)
    if size >= cursor.offset:
        is_copy = copy.has_before(cursor.beginning) and copy.has_before(cursor.marked_offset)
        return rest if is_copy else None
    original, seen = copy.copy_of or (None, 0)
    if original != file.key._replace(cut=0) or (seen < MARK_BYTES and seen != size):
        return None
    offset, last = copy.marked_at(size)
    return replace(rest, offset=offset, last=last, head=Mark.of(copy.beginning(MARK_BYTES)))


def _originals(path: str) -> Iterator[str]:
    return (str(Path(path).with_name(name)) for name in originals(Path(path).name))


def _unpacked_name(path: str) -> str:
    return Path(path).stem if has_compressed_name(path) else Path(path).name


def _is_open(file: TailedFile) -> bool:
    """Open an existing file; return whether it is open. Raises OSError if out of descriptors."""
    if not file.is_open and file.name is not None:
        try:
            return file.open(file.name)
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                raise
    return file.is_open


def _is_beginning(copy: TailedFile, file: TailedFile) -> bool:
    """Return whether the copy equals the file's beginning, by its first and its last bytes."""
    size = copy.size
    if isinstance(file, CompressedFile) or not _is_open(file) or file.size < size:
        return False
    length = min(size, MARK_BYTES)
    same = copy.beginning(length) == file.beginning(length)
    return same and file.has_before(copy.marked_at(size))
