"""The node's data directory: its lock, the node's identity, and the last assignment."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import logging
import os
import struct
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flumeng.agent.node.claim import Claim
from flumeng.agent.node.events import Assigned
from flumeng.events.journal_names import is_journal
from flumeng.platform import private_directory
from flumeng.platform.durable_files import write_durably
from flumeng.platform.errors import UnavailableError, UserError
from zkschema import codec
from zkschema.records import Assignment

AT_EMPTY_PATH = 0x1000
STATX_BTIME = 0x800
STATX_BYTES = 256
BTIME_AT = 80
MASK = struct.Struct("=I")
SECONDS = struct.Struct("=q")


def birth_time(descriptor: int) -> int | None:
    """Return the file's creation time in whole seconds since 1970; None if the system has none."""
    statx = getattr(ctypes.CDLL(None), "statx", None)
    if statx is None:
        return None
    buffer = ctypes.create_string_buffer(STATX_BYTES)
    if statx(descriptor, b"", AT_EMPTY_PATH, STATX_BTIME, buffer) != 0:
        return None
    (mask,) = MASK.unpack_from(buffer)
    (seconds,) = SECONDS.unpack_from(buffer, BTIME_AT)
    return int(seconds) if mask & STATX_BTIME else None


log = logging.getLogger(__name__)

T = TypeVar("T")

ASSIGNMENT = "assignment.json"
FLOWS, REPLICAS = "flows.json", "copies.json"
CLAIM = "claim.json"
RUN_MARK = "running"
DAMAGED = ".damaged"
KEPT = (
    *("lock", "uuid", "cluster", ASSIGNMENT, FLOWS, REPLICAS, CLAIM, RUN_MARK),
    *(ASSIGNMENT + DAMAGED, FLOWS + DAMAGED, REPLICAS + DAMAGED),
    *("journals", "copies", "sources", "jobs", "collector", "cache"),
)
"""All names that the node and its children use in the directory."""
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class KnownNames:
    generation: int = 0
    names: frozenset[str] = frozenset()

    def after(
        self, generation: int, present: Collection[str], local: Collection[str]
    ) -> KnownNames:
        """Return the ``local`` names that are ``present``, or known of this ``generation``."""
        before = self.names if generation == self.generation else frozenset()
        return KnownNames(generation, (before | frozenset(present)) & frozenset(local))

    def deleted(self, absent: Collection[str]) -> tuple[str, ...]:
        return tuple(sorted(self.names.intersection(absent)))


class DataDirectory:
    """The node's directory and its lock. ``problems``: reasons by unusable file. Raises UserError
    when ``path`` cannot be written, belongs to another user, or is in use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: dict[str, str] = {}
        private_directory.make_private(path, KEPT)
        try:
            for name in ("journals", "sources"):
                (path / name).mkdir(exist_ok=True, mode=private_directory.DIRECTORY_MODE)
            lock = private_directory.open_private(str(path / "lock"), os.O_RDWR | os.O_CREAT)
            self._lock = os.fdopen(lock, "a")
        except OSError as error:
            raise UserError(
                f"cannot write to the data directory {path}: {error.strerror}"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another node runs in {path}: give each its own --data") from error
        except OSError as error:
            raise UserError(f"cannot lock {path / 'lock'}: {error.strerror}") from error
        try:
            self.run_mark = RunMark(path, self._lock.fileno())
        except OSError as error:
            raise UserError(f"cannot read {path / RUN_MARK}: {error.strerror}") from error

    def close(self) -> None:
        self._lock.close()

    def journals(self) -> list[str]:
        """Return the local journals, without replicas of other nodes' journals."""
        directories = (self.path / "journals").glob("*/*")
        return sorted(path.name for path in directories if is_journal(path.name))

    def identity(self) -> str:
        """Return the node's UUID, which the first start creates. Raises UserError."""
        return self._written_once("uuid", uuid.uuid4().hex)

    def belong_to(self, cluster: str) -> None:
        """Bind the directory to the first cluster it joins. Raises UserError for another one."""
        if self._written_once("cluster", cluster) != cluster:
            raise UserError(
                f"ZooKeeper holds another cluster than the one of {self.path}, whose journals "
                "would be removed: restore it (`flumeng schema import`) or use another --data. "
                f"If it is lost for good, apply its flows here and remove {self.path / 'cluster'}"
            )

    def _written_once(self, name: str, text: str) -> str:
        """Return the content of a file, which is ``text`` if there was none. Raises UserError."""
        file = self.path / name
        try:
            if not file.exists():
                write_durably(file, text)
            return file.read_text()
        except OSError as error:
            raise UserError(f"cannot read or write {file}: {error.strerror}") from error

    def claim(self) -> Claim:
        """Return the last claim. Raises UserError for a damaged file, else UnavailableError."""
        file = self.path / CLAIM
        try:
            return _claim(json.loads(file.read_text()))
        except FileNotFoundError:
            return Claim()
        except DAMAGE as error:
            raise UserError(
                f"{file} is damaged: {error}. It only distinguishes this directory from copies. If "
                "no other directory was used under the node's name since, "
                'write {"number": CLAIMS, "token": "CLAIMANT"} into the file, with `claims` and '
                "`claimant` of the node's znode in `flumeng schema export`"
            ) from error
        except OSError as error:
            raise UnavailableError(f"cannot read {file}: {error.strerror}") from error

    def keep_claim(self, claim: Claim) -> None:
        """Store the claim durably. Raises OSError."""
        document = {"number": claim.number, "token": claim.token}
        write_durably(self.path / CLAIM, json.dumps(document))

    def keep(self, assigned: Assigned) -> None:
        """Store the assignment, for a start while ZooKeeper is away. Raises OSError."""
        document = {
            "version": assigned.version,
            "assignment": codec.text_of(assigned.assignment),
            "texts": [[flow, number, text] for (flow, number), text in assigned.texts.items()],
        }
        write_durably(self.path / ASSIGNMENT, json.dumps(document))
        self.problems.pop(ASSIGNMENT, None)

    def kept(self) -> Assigned | None:
        """Return the stored assignment; None when there is none or it is damaged or unreadable."""
        return self._load(ASSIGNMENT, _parse_assignment)

    def keep_known(self, file: str, names: KnownNames) -> None:
        """Store the known names of ``file``, FLOWS or REPLICAS. Raises OSError."""
        document = {"generation": names.generation, Path(file).stem: sorted(names.names)}
        write_durably(self.path / file, json.dumps(document))
        self.problems.pop(file, None)

    def known_names(self, file: str) -> KnownNames:
        return self._load(file, partial(_parse_names, Path(file).stem)) or KnownNames()

    def _load(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """Parse a file; None when absent, unreadable or damaged. A damaged one is renamed."""
        file = self.path / name
        try:
            return parse(json.loads(file.read_text()))
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems[name] = f"cannot read {file}: {error.strerror}"
            return None
        except DAMAGE as error:
            aside = file.with_name(f"{name}{DAMAGED}")
            log.warning("%s is damaged, ignored and kept as %s: %s", file, aside.name, error)
            self.problems[name] = f"{file} was damaged, and was renamed to {aside.name}: {error}"
            with contextlib.suppress(OSError):
                file.replace(aside)
            return None


def _claim(document: Any) -> Claim:
    return Claim(int(document["number"]), str(document["token"]))


def _parse_assignment(document: Any) -> Assigned:
    texts = {(str(flow), int(number)): str(text) for flow, number, text in document["texts"]}
    assignment = codec.decode(Assignment, document["assignment"].encode())
    return Assigned(int(document["version"]), assignment, texts)


def _parse_names(kind: str, document: Any) -> KnownNames:
    return KnownNames(int(document["generation"]), frozenset(map(str, document[kind])))


class RunMark:
    """A file that marks the directory of a running node by its lock file's inode and birth time."""

    def __init__(self, path: Path, lock: int) -> None:
        self._file = path / RUN_MARK
        self._lock = lock
        self.is_foreign = self._kept() not in ("", self._own(), self._by_change_time())
        """Whether this directory was copied while a node ran in the original."""

    def set(self) -> None:
        """Write the mark durably. Raises OSError."""
        os.fsync(self._lock)
        write_durably(self._file, self._own())

    def clear(self) -> None:
        """Remove the mark. Raises OSError."""
        self._file.unlink(missing_ok=True)

    def _own(self) -> str:
        born = birth_time(self._lock)
        if born is None:
            return self._by_change_time()
        return f"{os.fstat(self._lock).st_ino} born {born}"

    def _by_change_time(self) -> str:
        """Return the mark that older versions wrote, and that serves without birth times."""
        status = os.fstat(self._lock)
        return f"{status.st_ino} {int(status.st_ctime)}"  # some file systems keep whole seconds

    def _kept(self) -> str:
        try:
            return self._file.read_text()
        except FileNotFoundError:
            return ""
