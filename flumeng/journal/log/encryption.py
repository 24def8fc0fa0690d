"""Encryption of events, frame by frame: AES-256-GCM.

    message of an encrypted frame: key id (8 bytes) | salt (16) | nonce (12) | ciphertext | tag (16)

HKDF-SHA256 derives the cipher's key from the journal's key, the salt and the journal's identity. A
``Sealer`` draws a salt when it is made and after ``FRAMES_A_SALT`` frames, and counts a salt's
frames in the nonce. A salt or nonce never depends on the disk or on an earlier process. So neither
a rewritten torn tail nor copied files reuse a nonce. Eight of its bytes are random as well, in case
the memory of a running process is copied.

The frame's header (except its checksums), source state, key id, salt and nonce are authenticated
with the events: a changed or moved frame is rejected. The frame's checksum covers the bytes on
disk, so scans, recovery and repair need no key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from flumeng.journal.log.errors import KeyMissingError
from flumeng.journal.log.frame import (
    ENCRYPTION_BYTES,
    HEADER_BYTES,
    BadFrameError,
    FrameHeader,
    payload_of,
    verify,
)
from flumeng.platform import secrets
from flumeng.platform.errors import UserError

KEY_BYTES = 32
FRAMES_A_SALT = 1 << 16
"""Maximum frames under one salt: far below the limits of AES-GCM, even for large frames."""
SALT_BYTES = 16
TAG_BYTES = 16
_ENVELOPE = struct.Struct(f"<8s{SALT_BYTES}s12s")
_NONCE = struct.Struct(">I8s")
_PURPOSE = b"flumeng journal "
CIPHERS_KEPT = 64
assert _ENVELOPE.size + TAG_BYTES == ENCRYPTION_BYTES


@dataclass(frozen=True, slots=True)
class Key:
    """An encryption key; its ``id`` names it in frames and messages without revealing it."""

    id: str
    material: bytes = field(repr=False)

    @classmethod
    def parse(cls, text: str, reference: str) -> Key:
        """Parse 32 bytes in hexadecimal or base64. Raises UserError, which omits the text."""
        material = b""
        with suppress(ValueError):  # whose trace would show the text
            material = bytes.fromhex(text) if len(text) == 2 * KEY_BYTES else _from_base64(text)
        if len(material) != KEY_BYTES:
            raise UserError(
                f"{reference} is not a key for a journal: use {KEY_BYTES} random bytes as "
                "hexadecimal digits or base64, as `openssl rand -hex 32` prints them"
            )
        named = hmac.digest(material, _PURPOSE + b"key id", hashlib.sha256)
        return cls(named[:8].hex(), material)


def _from_base64(text: str) -> bytes:
    plain = text.translate(str.maketrans("-_", "+/")).rstrip("=")
    return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)


@dataclass(frozen=True)
class Keyring:
    """Keys by the reference of the secret that holds each; the first key encrypts new journals."""

    keys: Mapping[str, Key]

    @classmethod
    def resolve(cls, references: Iterable[str]) -> Keyring:
        return cls({name: Key.parse(secrets.resolve(name), name) for name in references})

    @property
    def current(self) -> Key:
        return next(iter(self.keys.values()))

    def find(self, key_id: str) -> Key:
        """Return the key with an id. Raises KeyMissingError when the keyring lacks it."""
        for key in self.keys.values():
            if key.id == key_id:
                return key
        has = ", ".join(f"{name} is key {key.id}" for name, key in self.keys.items())
        raise KeyMissingError(
            f"encrypted with key {key_id}, which this node lacks ({has or 'no keys'})"
        )

    def opened(self, frame: pa.Buffer, header: FrameHeader) -> tuple[pa.Buffer, FrameHeader]:
        """Return a decrypted frame and its new header; a plain frame is returned unchanged. Raises
        KeyMissingError, and BadFrameError for a damaged, forged or moved frame."""
        if not header.encrypted:
            return frame, header
        key_id, salt, nonce = _ENVELOPE.unpack_from(frame, header.message_offset)
        key = self.find(key_id.hex())
        envelope = frame.slice(header.message_offset, _ENVELOPE.size)
        rest = header.message_bytes - _ENVELOPE.size
        sealed = frame.slice(header.message_offset + _ENVELOPE.size, rest)
        state = frame.slice(HEADER_BYTES, header.state_bytes).to_pybytes()
        message = _decrypted(
            _cipher(key, salt, header.journal), nonce, sealed, _associated(header, envelope, state)
        )
        if message is None:
            verify(frame, header.journal)
            raise BadFrameError(
                "a frame has a good checksum, but a bad authentication tag: it was forged or moved"
            )
        parts, crc = payload_of(state, [message])
        plain = replace(header, encrypted=False, message_bytes=len(message), payload_crc=crc)
        return aligned([plain.pack(), *parts], plain.length), plain


NO_KEYS = Keyring({})


def key_of(frame: pa.Buffer, header: FrameHeader) -> str:
    key_id, _, _ = _ENVELOPE.unpack_from(frame, header.message_offset)
    return bytes(key_id).hex()


def aligned(parts: Iterable[Any], size: int) -> pa.Buffer:
    buffer = pa.allocate_buffer(size)
    view, at = memoryview(buffer).cast("B"), 0
    for part in parts:
        data = memoryview(part).cast("B")
        view[at : at + data.nbytes] = data
        at += data.nbytes
    return buffer


def _decrypted(cipher: Any, nonce: bytes, sealed: pa.Buffer, associated: bytes) -> bytes | None:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415  loads OpenSSL

    try:
        message: bytes = cipher.decrypt(nonce, memoryview(sealed).cast("B"), associated)
    except InvalidTag:
        return None
    return message


@dataclass
class Sealer:
    """Encrypts the frames of one journal, in the thread that appends them."""

    key: Key
    journal: bytes
    chance: Callable[[int], bytes] = os.urandom
    frames_a_salt: int = FRAMES_A_SALT

    def __post_init__(self) -> None:
        self._begin()

    def seal(
        self, header: FrameHeader, state: bytes, message: Any
    ) -> tuple[FrameHeader, list[Any]]:
        """Encrypt a frame and return its new header and buffers, which differ at each call."""
        if self._count == self.frames_a_salt:
            self._begin()
        nonce = _NONCE.pack(self._count, self.chance(8))
        self._count += 1
        envelope = _ENVELOPE.pack(bytes.fromhex(self.key.id), self._salt, nonce)
        size = header.message_bytes + ENCRYPTION_BYTES
        header = replace(header, encrypted=True, message_bytes=size)
        associated = _associated(header, envelope, state)
        sealed = self._cipher.encrypt(nonce, memoryview(message).cast("B"), associated)
        parts, crc = payload_of(state, [envelope, sealed])
        header = replace(header, payload_crc=crc)
        return header, [header.pack(), *parts]

    def _begin(self) -> None:
        self._salt = self.chance(SALT_BYTES)
        self._cipher = _cipher(self.key, self._salt, self.journal)
        self._count = 0


def _associated(header: FrameHeader, envelope: Any, state: Any) -> bytes:
    return b"".join((header.identity, bytes(envelope), bytes(state)))


@lru_cache(CIPHERS_KEPT)
def _cipher(key: Key, salt: bytes, journal: bytes) -> Any:
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415  loads OpenSSL
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    derived = HKDF(hashes.SHA256(), KEY_BYTES, salt, _PURPOSE + b"frames" + journal)
    return AESGCM(derived.derive(key.material))
