"""How the events of one journal are encrypted, and who can read them.

A journal is encrypted with one key all its life, or not at all; a flow with another key takes
another journal. In its directory lies which key that is, by its id, and which secrets may hold it,
by reference: so a process that knows nothing of the flow can serve what is left. Of the secrets
themselves nothing is written.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from flumeng.errors import CorruptError, FlumengError, UserError
from flumeng.journal.disk import Disk
from flumeng.journal.encryption import NO_KEYS, Key, Keyring, Sealer, aligned
from flumeng.journal.errors import KeyMissingError
from flumeng.journal.frame import BadFrameError, FrameHeader, identity
from flumeng.journal.segment import UNFINISHED, Window
from flumeng.runtime import secrets
from flumeng.runtime.whole_files import read_object
from flumeng.spec.patterns import SECRET

log = logging.getLogger(__name__)

FILE = "encryption.json"


class JournalCipher:
    """``key_id``: the key of all frames that are to come; None in a journal in plain text.

    Raises CorruptError for a damaged file. ``opened`` is for any thread, the rest for the one that
    writes the journal.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        document = read_object(directory / FILE)
        self.key_id, self._references = _parsed(directory / FILE, document)
        self._keyring = NO_KEYS
        self._sealer: Sealer | None = None

    def use(self, keyring: Keyring | None) -> None:
        """Encrypt with the journal's own key, and from now on look for it where ``keyring`` has it;
        without one, where it was before.

        Raises KeyMissingError, when all stays as it was, and OSError.
        """
        if self.key_id is None:
            return
        if keyring is None:
            keyring, _ = _found(self._references)
        try:
            key = keyring.find(self.key_id)
        except KeyMissingError as error:
            raise self._missing(str(error)) from error
        references = tuple(keyring.keys)
        if references != self._references:
            write(self._directory, self.key_id, references, self._disk)
            self._references = references
        self._keyring = keyring
        self._sealer = Sealer(key, identity(self._directory.name))

    def sealed(
        self, header: FrameHeader, parts: list[Any], state: bytes, message: Any
    ) -> tuple[FrameHeader, list[Any]]:
        """The frame as it is to be written: ``parts`` in a journal in plain text. Raises UserError
        while the key is not here: no event gets onto the disk as it is."""
        if self.key_id is None:
            return header, parts
        if self._sealer is None:
            raise UserError(
                f"journal {self._directory.name} is encrypted, and takes nothing without its key "
                f"{self.key_id}"
            )
        return self._sealer.seal(header, state, message)

    def opened(self, windows: Iterator[Window]) -> Iterator[Window]:
        """The same frames for their readers, who have no key. What is not encrypted passes as it
        is. Raises KeyMissingError and CorruptError; all before that place is yielded first."""
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
            keyring, problems = _found(self._references)
        try:
            opened, _ = keyring.opened(frame, header)
        except KeyMissingError as error:
            raise self._missing("; ".join([str(error), *problems])) from error
        self._keyring = keyring
        return opened

    def _missing(self, why: str) -> KeyMissingError:
        return KeyMissingError(
            f"journal {self._directory.name} is {why}; give it back to this node, as `key` or one "
            "of `previous_keys` of the flow's journal.encryption"
        )


def write(directory: Path, key_id: str, references: tuple[str, ...], disk: Disk) -> None:
    """Whole or not at all, and durable. Raises OSError."""
    text = json.dumps({"key": key_id, "secrets": references})
    draft = directory / f"{FILE}{UNFINISHED}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        disk.write(fd, [text.encode()], 0)
        disk.sync(fd)
    finally:
        os.close(fd)
    draft.rename(directory / FILE)
    disk.sync_directory(directory)


def _parsed(file: Path, document: dict[str, object]) -> tuple[str | None, tuple[str, ...]]:
    if not document:
        return None, ()
    key_id, references = document.get("key"), document.get("secrets")
    if not isinstance(key_id, str) or not isinstance(references, list):
        raise CorruptError(f"{file} is damaged: it names no key")
    return key_id, tuple(name for name in map(str, references) if SECRET.fullmatch(name))


def _found(references: tuple[str, ...]) -> tuple[Keyring, list[str]]:
    """Those of the keys that are here, and why the others are not."""
    keys, problems = {}, []
    for name in references:
        try:
            keys[name] = Key.parse(secrets.resolve(name), name)
        except UserError as error:
            problems.append(str(error))
    return Keyring(keys), problems


def _joined(frames: list[pa.Buffer]) -> Window:
    offsets = [0]
    for frame in frames:
        offsets.append(offsets[-1] + frame.size)
    if len(frames) == 1:
        return Window(frames[0], offsets)
    return Window(aligned(frames, offsets[-1]), offsets)
