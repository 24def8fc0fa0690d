"""Dead letter files below the path of a flow's ``files`` sink; other files are ignored."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyarrow import fs

from flumeng.events.pattern_path import PatternPath
from flumeng.platform import secrets
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from flumeng.platform.file_store import FileStore, open_store
from flumeng.platform.memory import require_memory
from flumeng.platform.options.patterns import FIELD, fixed_part, split_query
from flumeng.platform.remote_store import Resolve

THREADS = 8
FILES_AT_ONCE = 100
BYTES_AT_ONCE = 16 * 1024 * 1024
"""Limits of the files that a thread processes in one step: their number and bytes."""
NAME = r"part-[0-9a-f]{32}\.(?:parquet|json(?:\.zst|\.gz)?)"
_PATTERN = re.compile(rf"(%[YmdHM]|{FIELD.pattern})")
DAMAGE = (ValueError, TypeError, LookupError, pa.ArrowException)
T = TypeVar("T")
OnProgress = Callable[[int], None]


@dataclass(frozen=True)
class DeadLetterFile:
    """A file: ``path`` in the store, ``name`` below the root; ``modified`` in epoch seconds."""

    path: str
    name: str
    bytes: int
    modified: float


class DeadLetterDirectory:
    def __init__(self, location: str, resolve: Resolve = secrets.resolve) -> None:
        """Open the store at ``location``, the path of the sink ``files``. Raises UserError."""
        self.store: FileStore
        self.store, self.root = open_store(PatternPath(location).root, resolve)
        self._ours = re.compile(_expression(location))

    def files(self) -> list[DeadLetterFile]:
        """Return the files, sorted by name. Raises UserError, UnavailableError."""
        selector = fs.FileSelector(self.root, allow_not_found=True, recursive=True)
        with self.errors(self.root):
            infos = self.store.files.get_file_info(selector)
        start = len(self.path_of(""))
        files = [
            DeadLetterFile(info.path, info.path[start:], info.size, (info.mtime_ns or 0) / 1e9)
            for info in infos
            if info.type == fs.FileType.File and self._ours.fullmatch(info.path[start:])
        ]
        return sorted(files, key=lambda file: file.name)

    def path_of(self, *names: str) -> str:
        return "/".join((self.root.rstrip("/"), *names))

    @contextmanager
    def errors(self, path: str) -> Iterator[None]:
        """Convert errors to CorruptError (damage), GoneError, UserError, UnavailableError."""
        try:
            yield
        except FileNotFoundError as error:
            raise GoneError(f"{path} no longer exists") from error
        except PermissionError as error:
            raise UserError(f"no permission to read or write {path}: {error}") from error
        except OSError as error:
            if error.errno is None and "AWS Error" not in str(error):
                require_memory(error)
                raise CorruptError(f"{path}: {error}") from error
            explained = self.store.explained(error)
            if isinstance(explained, OSError):
                raise UnavailableError(f"{path}: {error}") from error
            raise explained from error
        except MemoryError:  # also one of Arrow's exceptions
            raise
        except DAMAGE as error:
            raise CorruptError(f"{path}: {error}") from error


def each(
    files: Iterable[DeadLetterFile],
    work: Callable[[DeadLetterFile], T],
    damaged: dict[str, str],
    on_progress: OnProgress = lambda _files: None,
) -> Generator[tuple[DeadLetterFile, T]]:
    """Yield ``work``'s results other than None in order, in parallel. Damaged files and reasons go
    to ``damaged``, missing ones are skipped. ``on_progress`` gets increments of finished files."""

    def done(file: DeadLetterFile) -> tuple[T | None, CorruptError | None]:
        try:
            return work(file), None
        except CorruptError as error:
            return None, error
        except GoneError:
            return None, None

    def all_done(some: list[DeadLetterFile]) -> list[tuple[T | None, CorruptError | None]]:
        return [done(file) for file in some]

    groups = list(_groups(files))
    with ThreadPoolExecutor(THREADS, "letters") as pool:
        for some, results in zip(groups, pool.map(all_done, groups), strict=True):
            for file, (result, error) in zip(some, results, strict=True):
                if error is not None:
                    damaged[file.path] = str(error)
                elif result is not None:
                    yield file, result
            on_progress(len(some))


def _groups(files: Iterable[DeadLetterFile]) -> Iterator[list[DeadLetterFile]]:
    """Group files, so that a thread processes several small ones in one step."""
    group: list[DeadLetterFile] = []
    size = 0
    for file in files:
        if group and (len(group) == FILES_AT_ONCE or size + file.bytes > BYTES_AT_ONCE):
            yield group
            group, size = [], 0
        group.append(file)
        size += file.bytes
    if group:
        yield group


class GoneError(UserError):
    """A dead letter file no longer exists."""


def _expression(location: str) -> str:
    """Return a pattern for the names of the sink's files below the root of ``location``."""
    path = split_query(location)[0].rstrip("/")
    fixed = fixed_part(path)
    rest = "" if fixed == path else path[fixed.rfind("/") + 1 :]
    parts = [
        ("[0-9]{4}" if part == "%Y" else "[0-9]{2}" if part.startswith("%") else "[^/]+")
        if _PATTERN.fullmatch(part)
        else re.escape(part)
        for part in re.split(r"(%[YmdHM]|\{[A-Za-z_][A-Za-z0-9_]*\})", rest)
    ]
    return f"{''.join(parts)}/{NAME}" if rest else NAME
