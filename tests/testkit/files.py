"""Files of a directory into which other processes write and from which they remove."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path


def files_below(folder: Path, pattern: str = "*") -> Iterator[Path]:
    """Yield the files at any depth whose names match. A directory that is removed meanwhile is no
    error, as it is for ``Path.rglob``."""
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names if fnmatch(name, pattern))


def contents_below(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the regular files at any depth with their bytes, without those removed meanwhile."""
    for file in filter(Path.is_file, files_below(folder)):
        with suppress(FileNotFoundError):
            yield file, file.read_bytes()
