"""Which files have the content of followed ones, as rotation by copy and truncate makes them.

A copy is told by its name (``names.originals``) and by its content: it begins as the other file
did, and has before an offset what that had there. A file that only begins alike is no copy, and a
copy in the making is one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from flumeng.connectors.tail.compressed_file import CompressedFile, has_compressed_name
from flumeng.connectors.tail.file_position import MARK_BYTES, FileKey, FilePosition, Mark
from flumeng.connectors.tail.names import (
    Sight,
    base_name,
    copies_beside,
    has_shape,
    is_numbered,
    originals,
    successor,
)
from flumeng.connectors.tail.tailed_file import TailedFile
from flumeng.journal.log.disk import OUT_OF_DESCRIPTORS

log = logging.getLogger(__name__)

Kind = TypeVar("Kind", bound=TailedFile)


class Make(Protocol):
    """Makes a file that is not among those of the tailer."""

    def __call__(self, key: FileKey, cursor: FilePosition, kind: type[Kind]) -> Kind: ...


class Copies:
    """Looks among ``files``, those of the tailer, and beside them. ``came`` and ``went`` must be
    called for each that does, and ``changed`` when one has another path."""

    def __init__(self, files: dict[FileKey, TailedFile], make: Make) -> None:
        self._files = files
        self._make = make
        self._by_path: dict[str, list[TailedFile]] = {}

    def came(self, file: TailedFile) -> None:
        if self._by_path:
            self._enter(file)

    def went(self, file: TailedFile) -> None:
        for path in file.cursor.paths:
            known = self._by_path.get(path, [])
            if file not in known:
                return self.changed()
            known.remove(file)
        return None

    def changed(self) -> None:
        self._by_path.clear()

    def _enter(self, file: TailedFile) -> None:
        for path in file.cursor.paths:
            self._by_path.setdefault(path, []).append(file)

    def known_as(self, path: str) -> list[TailedFile]:
        """The files that were found under that path, or lay there behind a link."""
        if not self._by_path:
            for known in self._files.values():
                self._enter(known)
        return self._by_path.get(path, [])

    def is_copy(self, file: TailedFile) -> bool:
        """Whether an open file that was not read yet has nothing but what another one has or had.
        One that is still empty may become a copy; what is read from a compressed copy has no other.

        The content of the other one is compared first: when it was cut meanwhile, then the copy is
        complete, and the marks tell.
        """
        size = file.size
        if not size:
            return True
        originals_of_it = [one for path in file.cursor.paths for one in _originals(path)]
        for path in dict.fromkeys(originals_of_it):
            for other in self.known_as(path):
                if isinstance(other, CompressedFile) and other.is_found:
                    continue
                if _is_beginning(file, other):
                    file.copy_of = other.key, size
                    return True
                if rest_of(file, other) is not None:
                    file.copy_of = other.key._replace(cut=0), size
                    return True
        return False

    def find(self, file: TailedFile) -> tuple[TailedFile, FilePosition] | None:
        """The largest copy of a file that is gone, open, and the cursor from which it is to be read
        on. Raises OSError when what may be one cannot be read."""
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

    def has_content(self, key: FileKey, path: str, known: TailedFile) -> bool:
        """Whether the file that has a known one's path is that file under another key: its content
        tells. On the same device it is another file unless there is enough to compare. Raises
        OSError when there is no descriptor."""
        is_short = known.key.device == key.device and known.cursor.offset < MARK_BYTES
        return not is_short and bool(self._is_rest(key, path, known))

    def is_another(self, file: TailedFile, path: str) -> bool:
        """Whether what lies there with the inode of a closed file has not what was read of that.
        Raises OSError when there is no descriptor."""
        return self._is_rest(file.key, path, file) is False

    def newest(self, path: str) -> TailedFile:
        """Of the files that were found under that path; of equals the one that is there."""
        return max(
            self.known_as(path),
            key=lambda file: (file.cursor.modified_ns, file.name in file.cursor.paths),
        )

    def unseen_beside(self, path: str) -> dict[FileKey, Sight]:
        """Files rotated away from that path before they were found there. Such a file is younger
        than all known ones of the path, is known under no other path, and is numbered or named
        like a known generation."""
        known = self.known_as(path)
        newest = self.newest(path)
        names = {base_name(path) for path in newest.cursor.paths}
        generations = [
            base_name(file.name)
            for file in known
            if file.name is not None and file.name not in file.cursor.paths
        ]

        def is_generation(name: str) -> bool:
            return (
                name in names
                or any(is_numbered(name, original) for original in names)
                or any(has_shape(name, generation) for generation in generations)
            )

        return {
            key: sight
            for key, sight in (copies_beside(newest.cursor) | successor(newest.cursor)).items()
            if key not in self._files
            and key.device == newest.key.device
            and sight.modified_ns > newest.cursor.modified_ns > 0
            and is_generation(_unpacked_name(sight.path))
            and not any(self._is_made_of(key, sight.path, file) for file in known)
        }

    def _is_made_of(self, key: FileKey, path: str, known: TailedFile) -> bool:
        """Whether a file that is not followed has the content of a known one, or is just being
        copied or compressed from it."""
        if not has_compressed_name(path):
            return bool(self._is_rest(key, path, known, or_beginning=True))
        compressed = self._make(known.key, known.cursor, CompressedFile)
        return known.name == path.removesuffix(Path(path).suffix) or compressed.begins_alike(path)

    def _is_rest(
        self, key: FileKey, path: str, known: TailedFile, *, or_beginning: bool = False
    ) -> bool | None:
        """Whether what lies there has the content of a known file; None when it cannot be read."""
        file = self._make(key, known.cursor, TailedFile)
        try:
            if not file.open(path):
                return None
            return rest_of(file, known) is not None or (or_beginning and _is_beginning(file, known))
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                raise
            return None
        finally:
            file.close()

    def _is_old(self, copy: TailedFile, rest: FilePosition) -> bool:
        """Whether the globs do not mean it and it cannot have what comes after that cursor."""
        return (
            copy.key not in self._files
            and rest.offset < rest.size
            and copy.modified_ns < rest.modified_ns
        )

    def _beside(self, cursor: FilePosition) -> Iterator[TailedFile]:
        """What may be copies, open; also those that were found, are not read yet, and are gone."""
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
                copy = self._make(key, copy.cursor if copy else FilePosition.new(path), TailedFile)
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


def may_be_made_of(file: TailedFile) -> bool:
    """Whether rotation may give its name to what was found under its path."""
    return file.name is not None and is_name_of(file.name, file.cursor)


def is_name_of(name: str, cursor: FilePosition) -> bool:
    """Whether the file of that cursor may have that name after rotation."""
    return not {name, *_originals(name)}.isdisjoint(cursor.paths)


def rest_of(copy: TailedFile, file: TailedFile) -> FilePosition | None:
    """From where to read a copy of what was read of a file; None when it is no copy.

    What was written and read after it was copied and before the file was cut is not in the copy:
    then nothing is left to read. That is known of one that was seen while the file was whole, all
    of it or enough.
    """
    size, cursor = copy.size, file.cursor
    if not cursor.offset:
        return None
    identity = cursor.identity or file.key.identity
    rest = replace(cursor, size=size, identity=identity, suspect=False)
    if size >= cursor.offset:
        is_one = copy.has_before(cursor.beginning) and copy.has_before(cursor.place)
        return rest if is_one else None
    original, seen = copy.copy_of or (None, 0)
    if original != file.key._replace(cut=0) or (seen < MARK_BYTES and seen != size):
        return None
    offset, last = copy.place_at(size)
    return replace(rest, offset=offset, last=last, head=Mark.of(copy.beginning(MARK_BYTES)))


def _originals(path: str) -> Iterator[str]:
    return (str(Path(path).with_name(name)) for name in originals(Path(path).name))


def _unpacked_name(path: str) -> str:
    return Path(path).stem if has_compressed_name(path) else Path(path).name


def _is_open(file: TailedFile) -> bool:
    """Opens it when it is there. Raises OSError when there is no descriptor for that."""
    if not file.is_open and file.name is not None:
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
