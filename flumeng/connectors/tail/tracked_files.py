"""The files of a tail source, and their present paths; the rules are in ``tailer``. Blocking."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from itertools import count

from flumeng.connectors.tail.compressed_file import CompressedFile, has_compressed_name
from flumeng.connectors.tail.descriptors import require_directories
from flumeng.connectors.tail.file_globs import FileSearch, expand, matches
from flumeng.connectors.tail.file_position import (
    FileKey,
    FilePosition,
    cursors,
    reused,
    reused_key,
    state_key,
)
from flumeng.connectors.tail.options import Tail
from flumeng.connectors.tail.rotated_copies import Copies, is_name_of, may_be_made_of
from flumeng.connectors.tail.rotated_names import Folders, Sight, regular_files
from flumeng.connectors.tail.tailed_file import Following, TailedFile

log = logging.getLogger(__name__)

BLOCK_STATES = 100
_SEEN_PREFIX = "tail-seen:"


class TrackedFiles:
    """The files of a source. ``on_new`` is called for each new file. ``to_skip``: files to start at
    their end. ``skipped`` counts compressed files, ``missed`` those gone or compressed unread.
    ``not_noted``: the last note's error, or empty."""

    def __init__(
        self,
        options: Tail,
        state: Mapping[str, object],
        files: dict[FileKey, TailedFile],
        following: Following,
        *,
        note: Callable[[Mapping[str, object]], None],
        on_new: Callable[[FileKey], None],
    ) -> None:
        self._patterns = [glob for path in options.paths for glob in expand(path)]
        self._excluded = [glob for path in options.exclude for glob in expand(path)]
        self._search = FileSearch(self._patterns)
        self._missing: set[str] = set()
        self._following = following
        self._note = note
        self.skipped = self.missed = 0
        self.not_noted = ""
        self.files = files
        self.copies = Copies(self.files, following)
        self._on_new = on_new
        self._packed: dict[FileKey, str] = {}
        """Skipped compressed files and their names; under another name it may be another file."""
        self._to_note: dict[str, object] = {}
        self.to_skip: set[FileKey] = set()
        self._noted: dict[FileKey, str] = {}
        """State keys of noted files."""
        self._compared: dict[FileKey, Sight] = {}
        """Closed files as they were when their content was last compared."""
        self._changes: dict[str, object] = {}
        """State changes to journal with the next blocks."""
        for key, cursor in cursors(state).items():
            if self.is_included(cursor.path):
                self.add(key, cursor)
                if not cursor.offset:
                    self._noted[key] = state_key(key)
        for key, cursor in reused(state).items():
            self._noted[key] = reused_key(key)
            older = self.files.get(key)
            if older is not None and older.cursor.modified_ns < cursor.modified_ns:
                self._changes |= self.keep(key, older.cursor, suspect=False)
                self._changes[state_key(key)] = self.add(key, cursor).cursor.to_state()
            else:
                self.unnote(key)  # the journal has it by now
        self._skip_existing: list[str] = []
        if options.start_from == "end":
            self._skip_existing = [
                pattern for pattern in self._patterns if _SEEN_PREFIX + pattern not in state
            ]

    def is_included(self, path: str) -> bool:
        return any(matches(path, glob) for glob in self._patterns) and not self._is_excluded(path)

    def _is_excluded(self, path: str) -> bool:
        return any(matches(path, glob) for glob in self._excluded)

    @property
    def unsearched(self) -> dict[str, OSError]:
        return self._search.unsearched

    def take_changes(self) -> Iterator[dict[str, object]]:
        """Yield pending state changes for the journal, in parts."""
        if self._skip_existing and not self.to_skip:
            self._changes |= {_SEEN_PREFIX + pattern: True for pattern in self._skip_existing}
            self._skip_existing = []
        changes, self._changes = list(self._changes.items()), {}
        for start in range(0, len(changes), BLOCK_STATES):
            yield dict(changes[start : start + BLOCK_STATES])

    def measure(self) -> int:
        total = 0
        for file in self.files.values():
            if file.name is not None:
                with contextlib.suppress(OSError):
                    file.has_changed(file.name)
            if file.key in self._noted and file.unread > 0 == file.cursor.size:
                file.cursor = replace(file.cursor, size=file.unread)
                self._to_note[self._noted[file.key]] = file.cursor.to_state()
            total += file.unread
        return total

    def forget(self, file: TailedFile) -> None:
        file.close()
        self.copies.went(self.files.pop(file.key))
        self.to_skip.discard(file.key)
        self._compared.pop(file.key, None)
        self.unnote(file.key)

    def unnote(self, key: FileKey) -> None:
        if key in self._noted:
            self._to_note[self._noted.pop(key)] = None

    def add(self, key: FileKey, cursor: FilePosition) -> TailedFile:
        return self.enter(TailedFile(key, cursor, self._following))

    def enter(self, file: TailedFile) -> TailedFile:
        if file.key in self.files:
            self.copies.went(self.files[file.key])
        self.files[file.key] = file
        self.copies.came(file)
        return file

    def keep(self, key: FileKey, before: FilePosition, *, suspect: bool) -> dict[str, object]:
        """Track the former content of a file under a key of its own; return the state changes. For
        a ``suspect`` file, rotated files outside the globs that may be unread count as missed."""
        gone = next(cut for n in count(1) if (cut := key._replace(cut=n)) not in self.files)
        identity = before.identity or key.identity
        file = self.add(gone, replace(before, identity=identity, suspect=suspect))
        file.name = None
        for sight in self.copies.unseen_beside(before.real_path).values() if suspect else ():
            if sight.path != before.real_path and not self.is_included(sight.path):
                self.miss(f"file {sight.path} may be an unread copy of {before.path}")
        return {state_key(gone): file.cursor.to_state()}

    def is_newest(self, cursor: FilePosition) -> bool:
        """Return whether no known file of the same name is newer; older ones were rotated."""
        newest = self.copies.newest(cursor.real_path).cursor
        return newest.modified_ns <= cursor.modified_ns

    def scan(self, now: float) -> None:
        """Find new files, and the paths of known ones. Raises OSError if out of descriptors, when
        files would falsely seem to be gone."""
        require_directories()
        hits = regular_files(path for path in self._search.paths() if not self._is_excluded(path))
        require_directories()
        missing = {
            folder
            for folder, error in self._search.unsearched.items()
            if isinstance(error, FileNotFoundError)
        }
        for folder in missing - self._missing:
            log.warning("directory %s does not exist: globs in it match no file", folder)
        self._missing = missing
        self._packed = {key: path for key, path in self._packed.items() if key in hits}
        folders = Folders()
        sights = {
            key: hits.get(key) or folders.find(key, file.cursor) for key, file in self.files.items()
        }
        others = self._make_room(hits, sights)
        left = {
            file.cursor.real_path: file.cursor
            for key, file in others.items()
            if file.name != file.cursor.path
        }
        left |= self._locate(hits, sights, now)
        unseen = {
            path: self.copies.unseen_beside(path)
            for path in left
            if self.copies.known_as(path) and not _is_where_found(self.copies.newest(path))
        }
        for key, sight in hits.items():
            if key in self.files:
                continue
            if has_compressed_name(sight.path):
                self.skip_packed(key, sight.path)
            elif self._packed.get(key) != sight.path and not self._goes_on(key, sight.path, hits):
                if any(matches(sight.path, pattern) for pattern in self._skip_existing):
                    self.to_skip.add(key)
                self._follow_new(key, FilePosition.new(sight.path), sight, others).followed = True
        for key, file in others.items():
            at = sights[key]
            if at and key not in self.files and may_be_made_of(file) and not file.cursor.identity:
                left[file.cursor.real_path] = file.cursor
                unseen.setdefault(file.cursor.real_path, {})[key] = at
        for path, seen in unseen.items():
            for key, sight in seen.items():
                if has_compressed_name(sight.path):
                    self.miss(f"file {sight.path} was compressed before it was found: not read")
                elif key not in self.files:
                    log.info("file %s was found, formerly %s: reading it", sight.path, path)
                    self._follow_new(key, left[path], sight, others)

    def _make_room(
        self, hits: Mapping[FileKey, Sight], sights: Mapping[FileKey, Sight | None]
    ) -> dict[FileKey, TailedFile]:
        """Release files whose inode now belongs to another file; return the released ones."""
        others = {}
        for key, sight in sights.items():
            file = self.files[key]
            if sight is None or not self._is_another(file, sight):
                continue
            others[key] = file
            file.name, file.followed = sight.path, key in hits
            was_cut = file.followed and file.name == file.cursor.path
            suspect = was_cut and self.is_newest(file.cursor)
            self._changes |= self.leave(file, suspect=suspect)
        return others

    def _locate(
        self, hits: Mapping[FileKey, Sight], sights: Mapping[FileKey, Sight | None], now: float
    ) -> dict[str, FilePosition]:
        """Update the path of each file. Return, by original path, the positions of files that were
        renamed or vanished since the last scan."""
        renamed = {}
        for key, file in self.files.items():
            if isinstance(file, CompressedFile):
                continue
            file.followed = key in hits
            sight = sights.get(key)
            name = sight and sight.path
            if name is None and file.name is not None and _is_there(key, file.name):
                continue  # a folder was unreadable
            if not file.cursor.file_name and name == file.cursor.path:
                cursor = file.cursor
                file_name = FilePosition.new(name).file_name
                self.copies.went(file)
                file.cursor = replace(cursor, file_name=file_name)
                self.copies.came(file)
            if name != file.name:
                file.name, file.quiet_since = name, now
                if name != file.cursor.path and not key.cut:
                    renamed[file.cursor.real_path] = file.cursor
        return renamed

    def _is_another(self, file: TailedFile, sight: Sight) -> bool:
        """Return whether a closed file's inode has other content or, if unread, a foreign name."""
        if file.is_open:
            return False
        if not file.cursor.offset:
            return not is_name_of(sight.path, file.cursor)
        if file.is_as_left(sight.size, sight.modified_ns) or self._compared.get(file.key) == sight:
            return False
        another = self.copies.is_another(file, sight.path)
        if not another:
            self._compared[file.key] = sight
        return another

    def leave(self, file: TailedFile, *, suspect: bool) -> dict[str, object]:
        """Release a file whose inode is another file's; return the state changes. The released
        content is tracked, unless it was renamed unread, or is a copy that was read to its end."""
        before, key = file.cursor, file.key
        is_copy = before.identity and file.name != before.path
        is_renamed = file.followed and not before.offset and file.name != before.path
        before = replace(before, size=max(before.size, before.offset + file.unread))
        self.forget(file)
        state: dict[str, object] = {state_key(key): None}
        if not is_renamed and (not is_copy or before.offset < before.size):
            state |= self.keep(key, before, suspect=suspect)
        return state

    def _follow_new(
        self, key: FileKey, original: FilePosition, sight: Sight, others: Container[FileKey]
    ) -> TailedFile:
        """Follow a new file from its beginning, under the paths of ``original``. The journal may
        have keys in ``others`` for older files."""
        cursor = original.at_start(size=sight.size, modified_ns=sight.modified_ns)
        file = self.add(key, cursor)
        file.name = sight.path
        self._on_new(key)
        if key in others:
            self._changes[state_key(key)] = cursor.to_state()
        if key not in self.to_skip:
            self._noted[key] = reused_key(key) if key in others else state_key(key)
            self._to_note[self._noted[key]] = cursor.to_state()
        return file

    def note_changes(self) -> None:
        if not self._to_note:
            return
        try:
            self._note(self._to_note)
        except OSError as error:
            self.not_noted = error.strerror or str(error)
        else:
            self.not_noted, self._to_note = "", {}

    def _goes_on(self, key: FileKey, path: str, hits: Mapping[FileKey, Sight]) -> bool:
        """Return whether ``path`` continues a missing file, and then take over its position. Raises
        OSError if out of descriptors."""
        for tracked in self.copies.known_as(path):
            gone = tracked.name is None and not tracked.is_open and not tracked.key.cut
            if gone and tracked.cursor.offset and self.copies.has_content(key, path, tracked):
                log.info("file %s was recognised by its content: reading on", path)
                identity = tracked.cursor.identity or tracked.key.identity
                self.copies.went(self.files.pop(tracked.key))
                cursor = replace(tracked.cursor, identity=identity)
                self._changes |= {state_key(tracked.key): None, state_key(key): cursor.to_state()}
                file = self.add(key, cursor)
                file.name, file.followed = path, key in hits
                return True
        return False

    def miss(self, reason: str) -> None:
        self.missed += 1
        log.warning("%s", reason)

    def skip_packed(self, key: FileKey, path: str) -> None:
        if key not in self._packed:
            self.skipped += 1
            log.info("file %s is compressed, and is not read", path)
        self._packed[key] = path


def _is_where_found(file: TailedFile) -> bool:
    return file.name in file.cursor.paths


def _is_there(key: FileKey, path: str) -> bool:
    try:
        return FileKey.of(os.stat(path)) == key  # noqa: PTH116  needs no descriptor
    except OSError:
        return False
