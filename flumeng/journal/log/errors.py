"""Errors of journals."""

from __future__ import annotations

import errno

from flumeng.journal.log.disk import FULL, OUT_OF_DESCRIPTORS
from flumeng.platform.errors import CorruptError, NotAllowedError, UnavailableError


class JournalFailedError(UnavailableError):
    """No appends until the journal is reopened: a write failed, or another replica leads. No damage
    is known; whether unsynced events are on disk is not."""


class HeldError(UnavailableError):
    """Room, descriptors, memory or replicas are lacking for now. ``cause``: why, in short."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class DiskFullError(HeldError):
    """The disk, the journal or all journals together have reached their limit."""


class OutOfDescriptorsError(HeldError):
    """The process or the system has too many open files."""


class ThrottledError(UnavailableError):
    """A rate limit of the server or of the caller holds up the read; it goes on later."""


class NotServedError(UnavailableError):
    """The server does not serve the requested journal now."""


class KeyMissingError(UnavailableError):
    """The key of encrypted events is not on this node; readers wait for it."""


class DeniedError(NotAllowedError):
    """The caller is not authenticated or not authorized."""


class TapDeniedError(NotAllowedError):
    """The node's policy forbids a live tap of the requested flow."""


class TapsBusyError(UnavailableError):
    """The server has reached its limit of live taps; retry later."""


class DataLossError(CorruptError):
    """Events that should exist are missing."""


class BelowFloorError(DataLossError):
    """The requested range begins below the floor: its first events were trimmed."""


class AboveSafeError(DataLossError):
    """The requested range ends above the durable events."""


def held(what: str, error: OSError) -> HeldError | None:
    """Return a HeldError for a temporary lack of disk space, descriptors or memory, else None."""
    if error.errno in FULL:
        return DiskFullError(f"{what}: {error.strerror}", f"disk full: {error.strerror}")
    if error.errno in OUT_OF_DESCRIPTORS:
        return OutOfDescriptorsError(f"{what}: {error.strerror}", f"descriptors: {error.strerror}")
    if error.errno == errno.ENOMEM:
        return HeldError(f"{what}: {error.strerror}", f"memory: {error.strerror}")
    return None
