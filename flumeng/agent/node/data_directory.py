"""The node's data directory: one process at a time, an identity, the last assignment."""

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
    """Whole seconds since the epoch; None where it is not available."""
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
        """The names after ``present`` were seen, limited to ``local`` ones."""
        before = self.names if generation == self.generation else frozenset()
        return KnownNames(generation, (before | frozenset(present)) & frozenset(local))

    def deleted(self, absent: Collection[str]) -> tuple[str, ...]:
        return tuple(sorted(self.names.intersection(absent)))


class DataDirectory:
    """``problems``: unusable file -> why. Raises UserError when ``path`` cannot be written, belongs
    to another user, or is in use."""

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
        except OSError as error:
            raise UserError(f"another node runs in {path}: give each its own --data") from error
        try:
            self._run_mark = RunMark(path, self._lock.fileno())
        except OSError as error:
            raise UserError(f"cannot read {path / RUN_MARK}: {error.strerror}") from error

    def close(self) -> None:
        self._lock.close()

    @property
    def is_restored(self) -> bool:
        """Whether it is a copy of a running node's directory."""
        return self._run_mark.is_foreign

    def mark_running(self) -> None:
        """Marks the directory, so that a copy is recognised. Raises OSError."""
        self._run_mark.set()

    def mark_ended(self) -> None:
        """Removes the mark once all children have ended. Raises OSError."""
        self._run_mark.clear()

    def journals(self) -> list[str]:
        """Local journals, without replicas of other nodes' journals."""
        directories = (self.path / "journals").glob("*/*")
        return sorted(path.name for path in directories if is_journal(path.name))

    def identity(self) -> str:
        """The node's UUID, created at the first start."""
        file = self.path / "uuid"
        if not file.exists():
            write_durably(file, uuid.uuid4().hex)
        return file.read_text()

    def belong_to(self, cluster: str) -> None:
        """Binds the directory to the first cluster it joined. Raises UserError for another one."""
        file = self.path / "cluster"
        try:
            if not file.exists():
                write_durably(file, cluster)
            other = file.read_text() != cluster
        except OSError as error:
            raise UserError(f"cannot write {file}: {error.strerror}") from error
        if other:
            raise UserError(
                f"ZooKeeper holds another cluster than the one of {self.path}, whose journals "
                "would be removed: restore it (`flumeng schema import`) or use another --data. "
                f"If it is lost for good, apply its flows here and remove {file}"
            )

    def claim(self) -> Claim:
        """Raises UserError when the file is damaged, UnavailableError when it is unreadable."""
        file = self.path / CLAIM
        try:
            return _claim(json.loads(file.read_text()))
        except FileNotFoundError:
            return Claim()
        except DAMAGE as error:
            raise UserError(
                f"{file} is damaged: {error}. It distinguishes this directory from copies; all "
                "else here is sound. If no other directory was used under the node's name since, "
                'write {"number": CLAIMS, "token": "CLAIMANT"} into the file, with `claims` and '
                "`claimant` of the node's znode in `flumeng schema export`"
            ) from error
        except OSError as error:
            raise UnavailableError(f"cannot read {file}: {error.strerror}") from error

    def keep_claim(self, claim: Claim) -> None:
        """Durable when this returns. Raises OSError."""
        document = {"number": claim.number, "token": claim.token}
        write_durably(self.path / CLAIM, json.dumps(document))

    def keep(self, assigned: Assigned) -> None:
        """Stores the assignment, for a start while ZooKeeper is away."""
        document = {
            "version": assigned.version,
            "assignment": codec.text_of(assigned.assignment),
            "texts": [[flow, number, text] for (flow, number), text in assigned.texts.items()],
        }
        write_durably(self.path / ASSIGNMENT, json.dumps(document))
        self.problems.pop(ASSIGNMENT, None)

    def kept(self) -> Assigned | None:
        """The stored assignment; None when it is damaged."""
        return self._load(ASSIGNMENT, _parse_assignment)

    def keep_known(self, file: str, names: KnownNames) -> None:
        """Stores which ``FLOWS`` or ``REPLICAS`` were seen. Raises OSError."""
        document = {"generation": names.generation, Path(file).stem: sorted(names.names)}
        write_durably(self.path / file, json.dumps(document))
        self.problems.pop(file, None)

    def known_names(self, file: str) -> KnownNames:
        return self._load(file, partial(_parse_names, Path(file).stem)) or KnownNames()

    def _load(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """Parses a file; a damaged one is renamed and listed in ``problems``."""
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
            log.warning("%s is ignored and renamed to %s: %s", file, aside.name, error)
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
    """``lock`` is the descriptor of the directory's lock file."""

    def __init__(self, path: Path, lock: int) -> None:
        self._file = path / RUN_MARK
        self._lock = lock
        self.is_foreign = self._kept() not in ("", self._own(), self._by_change_time())
        """Whether a node ran in another directory when this one was copied from it."""

    def set(self) -> None:
        """Durable when this returns. Raises OSError."""
        os.fsync(self._lock)
        write_durably(self._file, self._own())

    def clear(self) -> None:
        """Raises OSError."""
        self._file.unlink(missing_ok=True)

    def _own(self) -> str:
        born = birth_time(self._lock)
        if born is None:
            return self._by_change_time()
        return f"{os.fstat(self._lock).st_ino} born {born}"

    def _by_change_time(self) -> str:
        """The mark of older versions."""
        status = os.fstat(self._lock)
        return f"{status.st_ino} {int(status.st_ctime)}"  # some file systems keep whole seconds

    def _kept(self) -> str:
        try:
            return self._file.read_text()
        except FileNotFoundError:
            return ""
