"""The encryption of one journal with one key for its whole life, or none, and the lookup of the
key. The journal's directory stores the key's id and references to secrets that may hold the key, so
that a node can serve the journal without the flow's configuration. A replica on another node has
the same file, and encrypted frames without the key."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from flumeng.journal.log.disk import Disk
from flumeng.journal.log.encryption import NO_KEYS, Key, Keyring, Sealer, aligned, key_of
from flumeng.journal.log.errors import KeyMissingError
from flumeng.journal.log.frame import BadFrameError, FrameHeader, identity
from flumeng.journal.log.segment import UNFINISHED, Window
from flumeng.platform import secrets
from flumeng.platform.durable_files import read_object
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError, UserError
from flumeng.platform.options.patterns import SECRET

log = logging.getLogger(__name__)

FILE = "encryption.json"
MOST_SECRETS = 100
_KEY_ID = re.compile("[0-9a-f]{16}")
_REMEDY = "restore it: without it new events would be in plain text"


@dataclass(frozen=True, slots=True)
class KeyReference:
    key_id: str
    secrets: tuple[str, ...]

    @classmethod
    def of(cls, keyring: Keyring | None) -> Self | None:
        return cls(keyring.current.id, tuple(keyring.keys)) if keyring else None

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        key_id, names = document.get("key"), document.get("secrets")
        if not isinstance(key_id, str) or not _KEY_ID.fullmatch(key_id):
            raise ValueError("it names no key")
        if not isinstance(names, list):
            raise ValueError("it names no secrets")
        secret_names = tuple(name for name in map(str, names) if SECRET.fullmatch(name))
        return cls(key_id, secret_names[:MOST_SECRETS])

    @property
    def document(self) -> dict[str, object]:
        return {"key": self.key_id, "secrets": list(self.secrets)}


class JournalCipher:
    """Encrypts and decrypts the frames of one journal. ``reference`` names its key; None for a
    journal in plain text. ``problem`` says why readers wait for the key, or is empty. ``opened``
    and ``search`` are thread-safe; only the writer calls other methods."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self.reference = _read(directory / FILE)
        self.problem = ""
        self._named: tuple[str, ...] = ()
        self._keyring = NO_KEYS
        self._sealer: Sealer | None = None

    @property
    def key_id(self) -> str | None:
        return self.reference.key_id if self.reference else None

    @property
    def lacks_key(self) -> bool:
        return bool(self.problem) or not (self.reference is None or self._keyring.keys)

    def adopt(self, reference: KeyReference) -> None:
        """Store the primary's key reference. Raises OSError; CorruptError for another key."""
        if self.key_id not in (None, reference.key_id):
            raise CorruptError(
                f"journal {self._directory.name} is encrypted with key {self.key_id}, but its "
                f"primary names key {reference.key_id}"
            )
        if reference != self.reference:
            write(self._directory, reference, self._disk)
            self.reference = reference

    def search(self, named: tuple[str, ...] = ()) -> None:
        """Find the key for readers in the ``named`` secrets (default: those of the last call) and
        the stored references; set ``problem``. Blocks."""
        self._named = named or self._named
        if self.reference is None:
            return
        keyring, problems = self._available()
        try:
            keyring.find(self.reference.key_id)
        except KeyMissingError:
            self._keep_waiting(self.reference.key_id, keyring, problems)
        else:
            self._keyring, self.problem = keyring, ""

    def use(self, keyring: Keyring | None) -> None:
        """Find the journal's key in the keyring (None: in the known secrets) and encrypt new frames
        with it. Raises OSError, and KeyMissingError without any change."""
        if self.reference is None:
            return
        problems: list[str] = []
        if keyring is None:
            keyring, problems = self._available()
        try:
            key = keyring.find(self.reference.key_id)
        except KeyMissingError as error:
            raise self._missing("; ".join([str(error), *problems])) from error
        reference = KeyReference(key.id, tuple(keyring.keys))
        if reference != self.reference:
            write(self._directory, reference, self._disk)
            self.reference = reference
        self._keyring, self.problem = keyring, ""
        self._sealer = Sealer(key, identity(self._directory.name))

    def sealed(
        self, header: FrameHeader, parts: list[Any], state: bytes, message: Any
    ) -> tuple[FrameHeader, list[Any]]:
        """Return a frame's header and buffers, encrypted unless the journal is in plain text.
        Raises UserError when the key is missing."""
        if self.reference is None:
            return header, parts
        if self._sealer is None:
            raise UserError(
                f"journal {self._directory.name} is encrypted, and takes no events without its key "
                f"{self.key_id}"
            )
        return self._sealer.seal(header, state, message)

    def opened(self, windows: Iterator[Window]) -> Iterator[Window]:
        """Yield decrypted windows. Raises KeyMissingError, CorruptError after all frames before."""
        for window in windows:
            if window.encrypted:
                yield from self._decrypted(window)
            else:
                yield window

    def _decrypted(self, window: Window) -> Iterator[Window]:
        frames: list[pa.Buffer] = []
        trouble: FlumengError | None = None
        for frame in window:
            try:
                frames.append(self._decrypt(frame))
            except BadFrameError as error:
                trouble = CorruptError(f"journal {self._directory.name}: {error}")
                trouble.__cause__ = error
                break
            except KeyMissingError as error:
                trouble = error
                break
        if frames:
            yield _joined(frames)
        if trouble is not None:
            raise trouble

    def _decrypt(self, frame: pa.Buffer) -> pa.Buffer:
        header = FrameHeader.unpack(frame, 0, identity(self._directory.name))
        try:
            return self._keyring.opened(frame, header)[0]
        except KeyMissingError:
            keyring, problems = self._available()
        try:
            opened, _ = keyring.opened(frame, header)
        except KeyMissingError as error:
            self._keep_waiting(key_of(frame, header), keyring, problems)
            raise self._missing("; ".join([str(error), *problems])) from error
        self._keyring, self.problem = keyring, ""
        return opened

    def _keep_waiting(self, key_id: str, keyring: Keyring, problems: list[str]) -> None:
        others = [f"{name} is key {key.id}" for name, key in keyring.keys.items()]
        why = "; ".join([*problems, *others]) or "no named secret holds it"
        self.problem = f"readers wait, since key {key_id} is not on this node: {why}"

    def _available(self) -> tuple[Keyring, list[str]]:
        """Return the keys found on this node, and an error text for each secret without one."""
        before = self.reference.secrets if self.reference else ()
        keys, problems = {}, []
        for name in dict.fromkeys((*self._named, *before)):
            try:
                keys[name] = Key.parse(secrets.resolve(name), name)
            except (UnavailableError, UserError) as error:
                problems.append(str(error))
        return Keyring(keys), problems

    def _missing(self, why: str) -> KeyMissingError:
        return KeyMissingError(
            f"journal {self._directory.name} is {why}; provide it on this node, as `key` or one "
            "of `previous_keys` of the flow's journal.encryption"
        )


def write(directory: Path, reference: KeyReference, disk: Disk) -> None:
    """Write a journal's key reference to its directory, atomically and durably. Raises OSError."""
    text = json.dumps(reference.document)
    draft = directory / f"{FILE}{UNFINISHED}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        disk.write(fd, [text.encode()], 0)
        disk.sync(fd)
    finally:
        os.close(fd)
    draft.rename(directory / FILE)
    disk.sync_directory(directory)


def _read(file: Path) -> KeyReference | None:
    if not file.exists():
        return None
    document = read_object(file, _REMEDY)
    try:
        return KeyReference.parse(document)
    except ValueError as error:
        raise CorruptError(f"{file} is damaged: {error}; {_REMEDY}") from error


def _joined(frames: list[pa.Buffer]) -> Window:
    offsets = [0]
    for frame in frames:
        offsets.append(offsets[-1] + frame.size)
    if len(frames) == 1:
        return Window(frames[0], offsets)
    return Window(aligned(frames, offsets[-1]), offsets)
