"""The data directory of a process: only its user can enter it, for any umask or creator. At the
start, others lose access to older files, but only below named parts: never to a flow's output."""

from __future__ import annotations

import logging
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from flumeng.platform.errors import UserError

log = logging.getLogger(__name__)

OTHERS = 0o077
DIRECTORY_MODE, FILE_MODE = 0o700, 0o600


def make_private(directory: Path, names: Iterable[str]) -> None:
    """Create the directory if necessary; remove other users' access to it and to all below
    ``names``. Raises UserError when that fails, or another user owns it; root may use any."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        owner = directory.stat().st_uid
        if owner != os.geteuid() and os.geteuid() != 0:
            raise UserError(
                f"the data directory {directory} belongs to {_user(owner)}, and this process runs "
                f"as {_user(os.geteuid())}: give it a directory of its own, or chown this one"
            )
        closed = [directory] if _close(directory.resolve()) else []
        closed += [path for name in names for path in _below(directory / name) if _close(path)]
    except OSError as error:
        raise UserError(
            f"cannot write to the data directory {directory}: {error.strerror}"
        ) from error
    if closed:
        log.warning(
            "the data directory %s was open to other users: %d files and directories in it, such "
            "as %s, are closed to them now",
            *(directory, len(closed), closed[-1]),
        )


def open_private(path: str, flags: int) -> int:
    """Open a file; a new one is readable by this user only. An ``opener`` for ``open``."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def write_private(file: Path, text: str) -> None:
    """Write a file; a new one is readable by this user only. Not durable, see ``durable_files``."""
    with open(file, "w", encoding="utf-8", opener=open_private) as handle:
        handle.write(text)


def _below(path: Path) -> Iterator[Path]:
    """Yield the path (of a link, the target) and everything below."""
    top = path.resolve()
    yield top
    for directory, directories, files in os.walk(top):
        for name in (*directories, *files):
            yield Path(directory) / name


def _close(path: Path) -> bool:
    """Remove other users' access to a file or directory; return whether they had any."""
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if (stat.S_ISDIR(mode) or stat.S_ISREG(mode)) and mode & OTHERS:
            opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.fchmod(opened, stat.S_IMODE(mode) & ~OTHERS)
            finally:
                os.close(opened)
            return True
    return False


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
